"""Reads a checkpoint's files without torch: finds faults, the quantization, and the context length.

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
from ...gguf import described_by
from ...gguf.shards import read_model

#: Files of weights, in the order in which transformers looks for them.
_WHOLE: Final = ("model.safetensors", "pytorch_model.bin")
#: Files that configure a processor of images, one of which a checkpoint that takes images has.
PROCESSOR_FILES: Final = ("processor_config.json", "preprocessor_config.json")
#: transformers' tables of the model types that this engine can load, in the source of its module `_TABLES_IN`: of
#: texts alone, and of images with texts, which it loads with a processor.
_OF_TEXTS: Final = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"
_OF_IMAGES: Final = "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES"
_OF_ENCODED_TEXTS: Final = "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"
_TABLES: Final = (_OF_TEXTS, _OF_IMAGES, _OF_ENCODED_TEXTS)
_TABLES_IN: Final = Path("models", "auto", "modeling_auto.py")
_CONTEXTS: Final = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
_UNKNOWN_CONTEXT: Final = 2048
#: The setting of models that know only how far tokens are from each other (T5), and the longest text of one.
_RELATIVE: Final = "relative_attention_num_buckets"
_LONGEST_RELATIVE: Final = 1 << 20
#: Values of option.quantize that round weights at load; the others say how a checkpoint is quantized already.
ROUNDED: Final = ("int8", "int4")
_LFS_POINTER: Final = b"version https://git-lfs"
#: Names of sizes in config.json, by what they count.
_LAYERS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth", "encoder_layers", "decoder_layers")
_WIDTHS: Final = ("hidden_size", "n_embd", "d_model", "dim", "embed_dim")
#: Sizes of which each unit has weights for every number of the width.
_ROWS: Final = (
    *("vocab_size", "intermediate_size", "moe_intermediate_size", "ffn_dim", "n_inner"),
    *("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_attention_heads", "n_head"),
)
#: No format stores a weight in less than one bit.
_WEIGHTS_IN_A_BYTE: Final = 8


def check_checkpoint(path: Path, trust_remote_code: bool, tables: tuple[str, ...] = _TABLES) -> None:
    """Refuse a directory that transformers can't load a model from; without `tables`, a language model.

    Args:
        tables: transformers' tables of the models that may be loaded.

    Raises:
        ModelLoadError: a line for each fault: no or another architecture, weights that are missing or incomplete.
    """
    faults = Faults()
    with faults.collected():
        faults.add(_architecture(path, read_json_object(path / "config.json"), trust_remote_code, tables))
    with faults.collected():
        faults.add(_weights(path))
    if not faults:  # then the files can be counted
        faults.add(_sizes(path))
    faults.refuse()


def contexts(config: Any) -> tuple[int, int]:
    """(default context of a sequence, most that option.max_model_len may ask for), in tokens.

    YaRN's factor is part of the context that a checkpoint is made for. A linear factor leaves open whether
    `max_position_embeddings` includes it, so that the longer context has to be asked for. An encoder-decoder that knows
    only how far tokens are from each other reads longer texts than it was trained with.
    """
    stated = next(
        (value for name in _CONTEXTS if isinstance(value := getattr(config, name, None), int) and value > 0),
        _UNKNOWN_CONTEXT,
    )
    if getattr(config, "is_encoder_decoder", False) and hasattr(config, _RELATIVE):
        return max(stated, _UNKNOWN_CONTEXT), _LONGEST_RELATIVE
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
    """`contexts`' longest text in a config.json; None if only transformers' defaults have it."""
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
    """The quantization method in a configuration's `quantization_config`; None: not quantized."""
    name = stored.get("quant_method") if isinstance(stored, dict) else getattr(stored, "quant_method", None)
    return getattr(name, "value", name)


def quantization_fault(wanted: str, method: str | None) -> str:
    """Why a checkpoint that is quantized with `method` can't be rounded to option.quantize; "": it can, or the option
    is not set."""
    if wanted not in ROUNDED or method is None:
        return ""
    return f"option.quantize={wanted}: the checkpoint is quantized already, with {method}"


def quantization_remark(wanted: str, method: str | None) -> str:
    """A message if a checkpoint of `method` does not have the format that option.quantize names, else ""."""
    if wanted == "none" or wanted in ROUNDED or wanted == method:
        return ""
    has = "is not quantized" if method is None else f"is quantized with {method}"
    return (
        f"option.quantize={wanted} has no effect: the checkpoint {has}, and weights keep its format (on CPUs, int8 "
        "or int4 quantizes them)"
    )


def _architecture(
    path: Path, config: Mapping[str, Any], trust_remote_code: bool, tables: tuple[str, ...]
) -> Iterator[str]:
    file = path / "config.json"
    if not file.is_file():
        yield f"{path}: there is no config.json: expected a checkpoint as transformers saves it"
        return
    kind, known = config.get("model_type"), frozenset[str]().union(*map(_loadable, tables))
    if not known or (isinstance(kind, str) and kind in known):
        needs_processor = tables == _TABLES and kind in _loadable(_OF_IMAGES) - _loadable(_OF_TEXTS)
        if needs_processor and not any((path / name).is_file() for name in PROCESSOR_FILES):
            yield (
                f"{path}: there is no {' and no '.join(PROCESSOR_FILES)}: model_type {kind!r} takes images, and one of "
                "these files says how they are prepared"
            )
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
        f"{file}: model_type {kind!r} is not a {'language ' if tables == _TABLES else ''}model that transformers "
        f"{version('transformers')} knows{' for this task' * (tables != _TABLES)}{did_you_mean(kind, known)}"
    )


@cache
def _loadable(table: str) -> frozenset[str]:
    """The model types of a table of transformers', read from its source: importing it would import torch.

    Empty if a release keeps them elsewhere: then loading a model will show it.
    """
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        return frozenset()
    source = Path(spec.origin).parent / _TABLES_IN
    if not source.is_file():
        return frozenset()
    model_types: set[str] = set()
    for node in ast.parse(source.read_bytes()).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(args=[ast.List(elts=rows)])) if name == table:
                model_types.update(str(row.elts[0].value) for row in rows)  # type: ignore[attr-defined]
    return frozenset(model_types)


def _weights(path: Path) -> Iterator[str]:
    """Faults of the files of weights, of the first kind that there is."""
    if described_by(path) is not None:  # its tensors were looked at when it was described
        return
    for name in _WHOLE:
        index = path / f"{name}.index.json"
        if (path / name).is_file():
            yield from _files([path / name])
            return
        if index.is_file():
            yield from _shards(index)
            return
    yield f"{path}: there are no weights: expected {' or '.join(_WHOLE)}, or an index of shards (*.index.json)"


def _sizes(path: Path) -> Iterator[str]:
    """What config.json names more of than the files of weights can hold."""
    from safetensors import safe_open

    if (gguf := described_by(path)) is not None:
        model = read_model(gguf)
        config = read_json_object(path / "config.json")
        yield from size_faults(path / "config.json", config, model.size, len(model.tensors))
        return
    files = _weight_files(path)
    tensors: int | None = None
    if all(file.suffix == ".safetensors" for file in files):
        tensors = 0
        for file in files:
            with safe_open(file, framework="np") as opened:
                tensors += len(opened.keys())
    stored_bytes = sum(file.stat().st_size for file in files)
    yield from size_faults(path / "config.json", read_json_object(path / "config.json"), stored_bytes, tensors)


def _weight_files(path: Path) -> list[Path]:
    """The files of a checkpoint's weights, which are all there."""
    for name in _WHOLE:
        if (path / name).is_file():
            return [path / name]
        if (index := path / f"{name}.index.json").is_file():
            return [path / shard for shard in sorted(set(read_json_object(index)["weight_map"].values()))]
    return []


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


def size_faults(file: Path, config: Mapping[str, Any], stored_bytes: int, tensors: int | None) -> Iterator[str]:
    """Sizes in a configuration that its weight files can't hold: transformers makes objects for each layer and each
    expert before it looks at the weights.

    Args:
        file: where the configuration is, for the messages.
        stored_bytes: total size of the files.
        tensors: how many they have; None: unknown.
    """
    most = stored_bytes * _WEIGHTS_IN_A_BYTE
    held, counted = f"the files of weights have {stored_bytes} bytes", f"the files of weights have {tensors} tensors"
    for path, part in _parts(config):
        widths = _stated(part, _WIDTHS)
        if wide := [f"{file}: {path}{name} is {size}, and {held}" for name, size in widths if size > most]:
            yield from wide
            continue
        width = max((size for _, size in widths), default=1)
        for name, layers in _stated(part, _LAYERS):
            if layers > (most // width if tensors is None else tensors):
                yield f"{file}: {path}{name} is {layers}, and {held if tensors is None else counted}"
        for name, rows in _stated(part, _ROWS):
            if rows * width > most:
                yield f"{file}: {path}{name} is {rows}, {width} numbers wide, and {held}"


def _parts(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The configuration, and those of a model's parts in it (`text_config`), each with the path of its fields."""
    yield "", config
    for name, part in config.items():
        if name.endswith("_config") and isinstance(part, dict) and name != "quantization_config":
            yield f"{name}.", part


def _stated(config: Mapping[str, Any], names: tuple[str, ...]) -> list[tuple[str, int]]:
    """The sizes that a configuration states, by name."""
    return [(name, size) for name in names if isinstance(size := config.get(name), int) and not isinstance(size, bool)]
