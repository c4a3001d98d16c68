"""What a checkpoint's files show without torch: what they lack, how they are quantized, how long texts may be.

Runs in the front end, for `djl-serving check`, and in the worker before it starts an engine.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from ...config import read_json_object
from ...core.faults import Faults
from ...core.names import did_you_mean

#: Files of weights, in the order in which transformers looks for them.
_WHOLE: Final = ("model.safetensors", "pytorch_model.bin")
#: transformers' tables of the model types that this engine can load, in the source of its module `_TABLES_IN`.
_TABLES: Final = ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES")
_TABLES_IN: Final = Path("models", "auto", "modeling_auto.py")
_CONTEXTS: Final = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
_UNKNOWN_CONTEXT: Final = 2048
#: Values of option.quantize that round weights at load; the others say how a checkpoint is quantized already.
ROUNDED: Final = ("int8", "int4")
_LFS_POINTER: Final = b"version https://git-lfs"


def check_checkpoint(path: Path, trust_remote_code: bool) -> None:
    """Refuse a directory that transformers can't load a language model from.

    Raises:
        ModelLoadError: a line for each fault: no or another architecture, weights that are missing or incomplete.
    """
    faults = Faults()
    with faults.collected():
        faults.add(_architecture(path, read_json_object(path / "config.json"), trust_remote_code))
    with faults.collected():
        faults.add(_weights(path))
    faults.refuse()


def contexts(config: Any) -> tuple[int, int]:
    """(default context of a sequence, most that option.max_model_len may ask for), in tokens.

    YaRN's factor is part of the context that a checkpoint is made for. A linear factor leaves open whether
    `max_position_embeddings` includes it, so that the longer context has to be asked for.
    """
    stated = next(
        (value for name in _CONTEXTS if isinstance(value := getattr(config, name, None), int) and value > 0),
        _UNKNOWN_CONTEXT,
    )
    rope = getattr(config, "rope_parameters", None) or {}
    factor = float(rope.get("factor") or 1)
    if rope.get("rope_type") == "yarn":
        context = max(stated, int(factor * (rope.get("original_max_position_embeddings") or stated)))
        return context, context
    return stated, max(stated, int(factor * stated)) if rope.get("rope_type") == "linear" else stated


def context_fault(max_model_len: int | None, longest: int) -> str:
    """Why texts can't be as long as option.max_model_len says; "" if they can."""
    if max_model_len is None or max_model_len <= longest:
        return ""
    return f"option.max_model_len={max_model_len} is more than the checkpoint's context of {longest}"


def longest_of(config: Mapping[str, Any]) -> int | None:
    """`contexts`' longest text, of a config.json; None where only transformers' defaults tell."""
    text = config
    if isinstance(own := config.get("text_config"), dict):
        text = own
    if not any(name in text for name in _CONTEXTS):
        return None
    scaling = text.get("rope_parameters") or text.get("rope_scaling")
    if scaling and scaling.get("rope_type", scaling.get("type")) != "default":
        return None  # older checkpoints write it in several ways
    return contexts(SimpleNamespace(**{**text, "rope_parameters": None}))[1]


def method_of(stored: Any) -> str | None:
    """With what a checkpoint is quantized, of its configuration's `quantization_config`; None: with nothing."""
    name = stored.get("quant_method") if isinstance(stored, dict) else getattr(stored, "quant_method", None)
    return getattr(name, "value", name)


def quantization_fault(wanted: str, method: str | None) -> str:
    """Why a checkpoint that is quantized with `method` can't be what option.quantize says; "" if it can."""
    if wanted == "none" or (method == wanted if wanted not in ROUNDED else method is None):
        return ""
    if wanted in ROUNDED:
        return f"option.quantize={wanted}: the checkpoint is quantized already, with {method}"
    has = "is not quantized" if method is None else f"is quantized with {method}"
    return f"option.quantize={wanted}: the checkpoint {has}; expected none, which takes it as it is"


def _architecture(path: Path, config: Mapping[str, Any], trust_remote_code: bool) -> Iterator[str]:
    file = path / "config.json"
    if not file.is_file():
        yield f"{path}: there is no config.json: expected a checkpoint as transformers saves it"
        return
    kind, known = config.get("model_type"), _loadable()
    if not known or (isinstance(kind, str) and kind in known):
        return
    if config.get("auto_map"):
        if not trust_remote_code:
            yield (
                f"{file}: model_type {kind!r} has code of its own (auto_map): "
                "expected option.trust_remote_code=true, which lets it run"
            )
        return
    if not isinstance(kind, str):
        yield f"{file}: there is no model_type: expected one that transformers knows, such as llama"
        return
    yield (
        f"{file}: model_type {kind!r} is not a language model that transformers "
        f"{version('transformers')} knows{did_you_mean(kind, known)}"
    )


@cache
def _loadable() -> frozenset[str]:
    """The model types of transformers' language models, read from its source: importing it would import torch.

    Empty where a release keeps them elsewhere: then only loading a model tells.
    """
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        return frozenset()
    source = Path(spec.origin).parent / _TABLES_IN
    if not source.is_file():
        return frozenset()
    found: set[str] = set()
    for node in ast.parse(source.read_bytes()).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(args=[ast.List(elts=rows)])) if name in _TABLES:
                found.update(str(row.elts[0].value) for row in rows)  # type: ignore[attr-defined]
    return frozenset(found)


def _weights(path: Path) -> Iterator[str]:
    """Faults of the files of weights, of the first kind that there is."""
    for name in _WHOLE:
        index = path / f"{name}.index.json"
        if (path / name).is_file():
            yield from _files([path / name])
            return
        if index.is_file():
            yield from _shards(index)
            return
    yield f"{path}: there are no weights: expected {' or '.join(_WHOLE)}, or an index of shards (*.index.json)"


def _shards(index: Path) -> Iterator[str]:
    named = read_json_object(index).get("weight_map")
    if not isinstance(named, dict) or not named:
        yield f"{index}: expected weight_map, an object of tensors' names and the files that have them"
        return
    shards = sorted({str(name) for name in named.values()})
    missing = [name for name in shards if not (index.parent / name).is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        yield f"{index}: names {missing[0]}{more}, of {len(shards)} files, and the directory has no such file"
    yield from _files([index.parent / name for name in shards if name not in missing])


def _files(paths: list[Path]) -> Iterator[str]:
    from safetensors import SafetensorError, safe_open

    for path in paths:
        with path.open("rb") as file:
            begins = file.read(len(_LFS_POINTER))
        if begins == _LFS_POINTER:
            yield f"{path}: a pointer of Git LFS, not the file: git lfs pull fetches it"
        elif not begins:
            yield f"{path}: the file is empty"
        elif path.suffix == ".safetensors":
            try:
                with safe_open(path, framework="np"):  # its header is read, and that all of the file is there
                    pass
            except SafetensorError as exc:
                yield f"{path}: not a complete safetensors file: {exc}"
