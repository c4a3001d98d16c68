"""What the files of a model on this machine say of it: `core.model_files.model_card.ModelCard`.

Runs in threads of the front end. No weights are read: only the headers of their files.
"""

from __future__ import annotations

import functools
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from ..config import ModelConfig
from ..config.infilling import infill_tokens
from ..config.model import read_json_object
from ..core.errors import ServingError
from ..core.model_files.model_card import ModelCard
from ..gguf import described_by
from .finding import downloaded_path

#: Cards that are kept: a page shows those of all models.
_MOST_KEPT: Final = 64
#: The most cards with vocabularies, which have some 20 MB each.
_MOST_WHOLE: Final = 2
_LICENSE_BYTES: Final = 64 << 10
#: The header of a safetensors file has a line for each tensor.
_LONGEST_HEADER: Final = 64 << 20
_LENGTH_BYTES: Final = 8
#: Numbers that a byte of it has at most: the smallest type has four bits.
_MOST_PER_BYTE: Final = 2
#: Formats of weights, by the suffixes of their files, in order of preference.
_FORMATS: Final = {".safetensors": "safetensors", ".bin": "pytorch", ".pt": "pytorch", ".pth": "pytorch"}
#: The name of the usual chat template, and a chat template's variable of tools.
_USUAL: Final = "default"
_TOOLS: Final = re.compile(r"\btools\b")
#: GGUF's names of torch's types.
_TYPES: Final = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
#: GGUF's keys, by those of config.json.
_KEYS: Final = {
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "sliding_window": "attention.sliding_window",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "rope_theta": "rope.freq_base",
    "num_local_experts": "expert_count",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "vocab_size": "vocab_size",
}


def card_of(config: ModelConfig, *, whole: bool = False) -> ModelCard:
    """The card of a model; an empty one where its files are not on this machine, or can't be read. Blocks.

    Args:
        whole: whether `info` has the arrays of a GGUF file too, such as its vocabulary.
    """
    if not (config.path or config.option.model_id):
        return ModelCard()  # it could not be read
    try:
        path = downloaded_path(config.option.model_id, config.option.revision, Path(config.path))
        if path is None:
            return ModelCard()
        file = described_by(path)
        return _of_checkpoint(path, _stamp(path / "config.json")) if file is None else _of_gguf(path, file, whole)
    except (ServingError, OSError):  # a handler of the user's knows what it loads; what is wrong its worker will say
        return ModelCard()


def _of_gguf(path: Path, file: Path, whole: bool) -> ModelCard:
    return (_whole_gguf_card if whole else _kept_gguf_card)(path, file, _stamp(file))


@functools.lru_cache(maxsize=_MOST_KEPT)
def _kept_gguf_card(path: Path, file: Path, stamp: int) -> ModelCard:
    return _gguf_card(path, file, whole=False)


@functools.lru_cache(maxsize=_MOST_WHOLE)
def _whole_gguf_card(path: Path, file: Path, stamp: int) -> ModelCard:
    return _gguf_card(path, file, whole=True)


def _gguf_card(path: Path, file: Path, *, whole: bool) -> ModelCard:
    from ..gguf.summary import facts_of  # numpy, which a server without GGUF files need not import

    facts, templates = facts_of(file, whole=whole), _templates(path)
    return ModelCard(
        format="gguf",
        architecture=facts.architecture,
        parameters=facts.parameters,
        quantization=facts.quantization,
        size_bytes=facts.size_bytes,
        info=facts.info,
        generation=read_json_object(path / "generation_config.json"),
        template=templates.get(_USUAL, ""),
        shows_tools=_show_tools(templates),
        license=facts.license,
        infills=infill_tokens(path) is not None,
    )


@functools.lru_cache(maxsize=_MOST_KEPT)
def _of_checkpoint(path: Path, stamp: int) -> ModelCard:
    config = read_json_object(path / "config.json")
    templates, (suffix, files) = _templates(path), _weights(path)
    quantized = _object(config.get("quantization_config"))
    parameters = sum(map(_numbers, files)) if suffix == ".safetensors" and not quantized else 0
    architecture = _text(config.get("model_type", ""))
    language = _object(config.get("text_config")) or config
    dtype = str(language.get("dtype") or language.get("torch_dtype") or config.get("dtype") or "")
    return ModelCard(
        format=_FORMATS.get(suffix, ""),
        architecture=architecture,
        parameters=parameters,
        quantization=_text(quantized.get("quant_method", "")) or _TYPES.get(dtype, ""),
        size_bytes=sum(file.stat().st_size for file in files),
        info=_info(architecture, parameters, language) if architecture else {},
        generation=read_json_object(path / "generation_config.json"),
        template=templates.get(_USUAL, ""),
        shows_tools=_show_tools(templates),
        license=_license(path),
        takes_images="vision_config" in config,
        infills=infill_tokens(path) is not None,
    )


def _info(architecture: str, parameters: int, config: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of config.json by GGUF's keys."""
    info: dict[str, Any] = {"general.architecture": architecture}
    if parameters:
        info["general.parameter_count"] = parameters
    given = {**config, **_object(config.get("rope_parameters"))}
    return info | {f"{architecture}.{name}": given[key] for key, name in _KEYS.items() if _is_number(given.get(key))}


def _weights(path: Path) -> tuple[str, Sequence[Path]]:
    """(Suffix, files) of the weights; ("", ()) where there are none."""
    for suffix in _FORMATS:
        if files := sorted(file for file in path.glob(f"*{suffix}") if file.is_file()):
            return suffix, files
    return "", ()


def _numbers(file: Path) -> int:
    """How many numbers a safetensors file has, by its header; 0 of a file that is none, or can't have so many."""
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(_LENGTH_BYTES), "little")
        header = opened.read(size) if size <= _LONGEST_HEADER else b""
    try:
        tensors = msgspec.json.decode(header, type=dict[str, _Tensor])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # damaged: its worker will say so
        return 0
    numbers = sum(math.prod(tensor.shape) for name, tensor in tensors.items() if name != "__metadata__")
    return numbers if 0 < numbers <= file.stat().st_size * _MOST_PER_BYTE else 0


class _Tensor(msgspec.Struct):
    """An entry of the header. Also the entry of the metadata, which is none."""

    shape: list[int] = []


def _templates(path: Path) -> Mapping[str, str]:
    """The chat templates by name, as transformers keeps them; "default" is the usual one."""
    given = read_json_object(path / "tokenizer_config.json").get("chat_template", "")
    if isinstance(given, list):
        templates = {str(each.get("name")): each.get("template") for each in given if isinstance(each, dict)}
    else:
        templates = {_USUAL: given}
    files = {_USUAL: path / "chat_template.jinja"}
    files |= {file.stem: file for file in (path / "additional_chat_templates").glob("*.jinja")}
    templates |= {name: file.read_text("utf-8", errors="replace") for name, file in files.items() if file.is_file()}
    return {name: _text(template) for name, template in templates.items() if isinstance(template, str)}


def _show_tools(templates: Mapping[str, str]) -> bool:
    return any(map(_TOOLS.search, templates.values()))


def _license(path: Path) -> str:
    """The text of the file that is called so."""
    file = next((each for each in sorted(path.glob("LICENSE*")) if each.is_file()), None)
    if file is None:
        return ""
    with file.open("rb") as opened:
        return opened.read(_LICENSE_BYTES).decode(errors="replace")


def _object(value: Any) -> Mapping[str, Any]:
    """A part of config.json that should be an object; {} if it is something else."""
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    """A value as text that can be sent: JSON may have halves of surrogate pairs."""
    return str(value).encode(errors="replace").decode()


def _is_number(value: Any) -> bool:
    """Whether it is a number that can be sent."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.maxsize if isinstance(value, int) else math.isfinite(value)


def _stamp(file: Path) -> int:
    """What changes when a file does."""
    return file.stat().st_mtime_ns if file.is_file() else 0
