"""Checks of the tasks of encoders before anything is loaded. `djl-serving check` makes them too; imports no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from djl_python.config import ModelConfig, read_json_object, task_of
from djl_python.config.sources import shown_url
from djl_python.core.errors import ModelLoadError
from djl_python.core.faults import Faults
from djl_python.engine.checkpoints.directory import check_checkpoint
from djl_python.engine.encoding.row import ENGINE
from djl_python.engine.encoding.sentence_transformers import SentenceTransformer
from djl_python.engine.encoding.settings import Head
from djl_python.sources import path_here
from djl_python.text.tokens.tokenizer_files import TokenizerFiles, check_tokenizer

from .checkpoint import EncoderCheckpoint

_MODEL: Final = "option.model_id"
#: Tasks -> the head of their models; for embeddings and rankings, the checkpoint decides.
_HEADS: Final[Mapping[str, Head]] = {
    "text-classification": Head.CLASSES,
    "zero-shot-classification": Head.CLASSES,
    "token-classification": Head.TOKEN_CLASSES,
    "question-answering": Head.SPANS,
    "fill-mask": Head.MASKED,
}
_EMBEDS: Final = frozenset({"feature-extraction", "sentence-similarity", "text-ranking"})
#: transformers' tables of the models that have a head.
_TABLES: Final[Mapping[Head, tuple[str, ...]]] = {
    Head.EMBEDDING: ("MODEL_MAPPING_NAMES",),
    Head.CLASSES: ("MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",),
    Head.TOKEN_CLASSES: ("MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",),
    Head.SPANS: ("MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",),
    Head.MASKED: ("MODEL_FOR_MASKED_LM_MAPPING_NAMES",),
}
#: Ends of the names of transformers' classes behind the model's own name, in lower case.
_HEAD: Final = re.compile(r"model|encodermodel|lmheadmodel|for\w+")
_CLASSIFIER: Final = "ForSequenceClassification"


def head_of(task: str, path: Path) -> Head:
    """The head of the checkpoint in `path` that does a task.

    Raises:
        ModelLoadError: the files of sentence-transformers are broken.
    """
    if task not in _EMBEDS:
        return _HEADS[task]
    if task == "text-ranking" and any(name.endswith(_CLASSIFIER) for name in _architectures(path)):
        return Head.CLASSES
    return Head.MASKED if SentenceTransformer.read(path).modules.is_sparse else Head.EMBEDDING


def check(config: ModelConfig, *, thorough: bool = False) -> None:
    """Refuse a model whose directory or settings show that it can't be served.

    Args:
        thorough: also read the tokenizer, which loading would read anyway.

    Raises:
        ModelLoadError: a line for each fault: the setting or the file, and what was expected.
    """
    faults = Faults()
    with faults.collected():
        ENGINE.check_model(config)
    with faults.collected():
        path = path_here(
            config.option.model_id, Path(config.path), config.cite(_MODEL, shown_url(config.option.model_id))
        )
        if path is not None:
            check_files(config, task_of(config, path).name, path)
            if thorough:
                TokenizerFiles.read(path).backend()
    faults.refuse()


def check_files(config: ModelConfig, task: str, path: Path) -> None:
    """Refuse a local checkpoint with missing or unsuitable files.

    Raises:
        ModelLoadError: a line for each fault.
    """
    faults, trusts = Faults(), config.option.trust_remote_code
    with faults.collected():
        check_tokenizer(path)
    with faults.collected():
        EncoderCheckpoint.read(path, config.option)
        head = head_of(task, path)
        _check_own_code(path, trusts)
        check_checkpoint(path, trusts, _TABLES[head])
    faults.refuse()


def without_effect(config: ModelConfig) -> list[str]:
    """Sentences about settings that have an effect in other handlers, and none in this one."""
    option = config.option
    remarks = []
    if option.enable_streaming:
        remarks.append(
            f"{config.where('option.enable_streaming')}option.enable_streaming has no effect: this model does not "
            "stream"
        )
    if config.properties.get("quantize", "none") not in ("none", ""):
        remarks.append(
            f"{config.where('option.quantize')}option.quantize has no effect: this model generates no text "
            "(option.dtype sets its number format)"
        )
    return remarks


def _check_own_code(path: Path, trusts: bool) -> None:
    """Refuse a checkpoint with code of its own: transformers would load its weights into another class.

    Raises:
        ModelLoadError: names the architecture.
    """
    config = read_json_object(path / "config.json")
    names = _architectures(path)
    known = _base_name(str(config.get("model_type", "")))
    if trusts or "auto_map" not in config or not names or all(_is_transformers(name, known) for name in names):
        return
    raise ModelLoadError(
        f"{path}: {', '.join(names)} (config.json) is code of the checkpoint's own (auto_map): expected "
        "option.trust_remote_code=true, which lets it run, or a checkpoint for a model of transformers'"
    )


def _is_transformers(name: str, model_type: str) -> bool:
    """Whether an architecture's name is that of a model type of transformers' with one of its heads, or with none.

    Jina v3 says XLMRobertaLoRA of the type xlm-roberta: its weights would be loaded without their adapters.
    """
    base = _base_name(name)
    return base.startswith(model_type) and bool(_HEAD.fullmatch(base.removeprefix(model_type)))


def _base_name(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def _architectures(path: Path) -> list[str]:
    named: Any = read_json_object(path / "config.json").get("architectures")
    return [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
