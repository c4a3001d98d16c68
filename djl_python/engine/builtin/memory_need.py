"""Estimates the memory of a checkpoint, from its config.json and the headers of its weight files.

Runs in the front end, for `djl-serving check`, before anything is loaded; needs no torch. The constants below were
measured; `tests/real/test_memory_need.py` compares estimates with the memory of loaded models.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from ...config import ModelConfig, has_gpu, read_json_object
from ...config.engines import engine_name
from ...gguf import coded_bytes, described_by
from ...gguf.shards import read_model
from ...gguf.weights import weights_of
from ..checkpoints.directory import longest_of, method_of
from ..checkpoints.rounding import Quantize, Role, rounding_of
from ..devices.free_memory import available_bytes, cache_bytes_of
from ..native.api import cache_prefault_bytes, lacking
from .options import BuiltInOptions

#: Bytes of a worker's processes without weights and cache: of its own, and of its engine, which has torch.
WORKER_BYTES: Final = 105 << 20
ENGINE_BYTES: Final = 385 << 20
#: Bytes of one number, by the names of safetensors, and by those of option.dtype.
_STORED: Final[Mapping[str, float]] = {
    **dict.fromkeys(("F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    "F4": 0.5,
}
#: Bytes of a file's header at most; safetensors takes no longer one.
_LONGEST_HEADER: Final = 100_000_000
#: The same formats by the names that config.json has.
_KINDS: Final[Mapping[str, str]] = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_DTYPES: Final[Mapping[str, int]] = {"fp32": 4, "fp16": 2, "bf16": 2}
#: Bytes of a weight of a matrix product in the kernels' packing: bf16 takes 12 bits of 16; codes have scales beside.
_PACKED: Final[Mapping[str, float]] = {"none": 0.75, "int8": 1.01, "int6": 0.83, "int5": 0.705, "int4": 0.58}
#: By parts of their names, the matrices that have roles of their own.
_ROLES: Final[Mapping[Role, tuple[str, ...]]] = {
    "up": ("gate_proj", "up_proj", "gate_up", "fc1", "c_fc", "fc_in", "dense_h_to_4h", ".w1.", ".w3.", "input_linear"),
    "out": (
        *("down_proj", "o_proj", "out_proj", "fc2", "c_proj", "fc_out", "dense_4h_to_h", "attention.dense.", ".w2."),
        "output_linear",
    ),
}
_FLOATS: Final = ("F64", "F32", "F16", "BF16")
_EMBEDDINGS: Final = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
#: Names in config.json of the number of layers, of heads, and of numbers between layers.
_SHAPE: Final = (("num_hidden_layers", "n_layer"), ("num_attention_heads", "n_head"), ("hidden_size", "n_embd"))
_HEADS: Final = ("lm_head.weight", "embed_out.weight")


@dataclass(frozen=True)
class MemoryNeed:
    """The expected memory of one worker of a model, in bytes.

    Attributes:
        weights: once it is loaded.
        cache: the most that the KV cache may take; None: known only after loading.
        cache_at_once: the part of the cache that is taken before any request.
        peak: the most while it loads.
        free: free memory now.
        on_gpu: whether weights and cache are in a GPU's memory; the other values are always the machine's.
    """

    weights: int
    cache: int | None
    cache_at_once: int
    peak: int
    free: int
    on_gpu: bool

    @property
    def loaded(self) -> int:
        """The memory of its processes once it is loaded, before any request."""
        return WORKER_BYTES + ENGINE_BYTES + (0 if self.on_gpu else self.weights + self.cache_at_once)


@dataclass(frozen=True)
class _Tensor:
    """One tensor of a checkpoint, as a file's header has it."""

    name: str
    kind: str
    shape: tuple[int, ...]

    @property
    def numbers(self) -> int:
        return math.prod(self.shape)

    @property
    def is_matrix(self) -> bool:
        return len(self.shape) > 1


def memory_need(config: ModelConfig, checkpoint: Path) -> MemoryNeed | None:
    """Estimate a worker's memory for a local checkpoint; None if its files are neither safetensors nor GGUF.

    Raises:
        ModelLoadError: config.json can't be read.
    """
    described = read_json_object(checkpoint / "config.json")
    tensors = list(_tensors(checkpoint))
    if not tensors:
        return None
    # Options of other engines have the same names where they mean the same.
    own = {name: value for name, value in config.engine_options.items() if name in BuiltInOptions.__struct_fields__}
    options = msgspec.convert(own, BuiltInOptions) if engine_name(config.option.rolling_batch) == "auto" else None
    on_gpu = config.option.device != "cpu" and has_gpu()
    itemsize = _DTYPES.get(config.option.dtype, 0) or _itemsize(tensors)
    as_stored = method_of(described.get("quantization_config")) is not None
    loaded = int(sum(_loaded_bytes(tensor, itemsize, as_stored) for tensor in tensors))
    native = options is not None and not on_gpu and options.kernels != "torch" and not lacking()
    weights = loaded
    if native and options is not None and not as_stored:
        rounds = options.quantize if options.quantize in ("int8", "int4") else None
        weights = int(_packed_bytes(tensors, described, itemsize, rounds))
        if options.quantize == "none" and (coded := coded_bytes(checkpoint)):
            weights = loaded = coded
    free = available_bytes()
    cache = _cache_bytes(config, described, itemsize, options, free)
    ahead = cache_prefault_bytes(cache) if native and cache is not None else 0
    # The kernels have their weights while the checkpoint's are still in memory.
    peak = WORKER_BYTES + ENGINE_BYTES + (loaded + weights + ahead if native else 0 if on_gpu else loaded)
    return MemoryNeed(weights, None if on_gpu else cache, ahead, peak, free, on_gpu)


def _tensors(checkpoint: Path) -> Iterator[_Tensor]:
    """The tensors of a checkpoint's safetensors: of the whole one, or of the shards that the index names.

    Weights of a GGUF file count as what they become.
    """
    if (gguf := described_by(checkpoint)) is not None:
        kind = _KINDS.get(str(read_json_object(checkpoint / "config.json").get("dtype")), "BF16")
        for name, weight in weights_of(read_model(gguf)).items():
            yield _Tensor(name, kind, weight.shape)
        return
    index = read_json_object(checkpoint / "model.safetensors.index.json").get("weight_map")
    whole = checkpoint / "model.safetensors"
    shards = {str(name) for name in index.values()} if isinstance(index, dict) else set()
    for file in [whole] if whole.is_file() else [checkpoint / name for name in sorted(shards)]:
        for name, tensor in _header(file).items():
            if name != "__metadata__":
                yield _Tensor(name, tensor["dtype"], tuple(tensor["shape"]))


def _header(file: Path) -> dict[str, Any]:
    """The JSON object at the beginning of a safetensors file, after its length in 8 bytes; {} if there is none.

    The checks of checkpoints report faulty files.
    """
    try:
        with file.open("rb") as opened:
            header = json.loads(opened.read(min(_LONGEST_HEADER, int.from_bytes(opened.read(8), "little"))))
    except (OSError, ValueError, RecursionError):
        return {}
    return header if isinstance(header, dict) else {}


def _itemsize(tensors: list[_Tensor]) -> int:
    """Bytes of a number in the format that most of a checkpoint's numbers have."""
    numbers: dict[str, int] = {}
    for tensor in tensors:
        if tensor.kind in _FLOATS:
            numbers[tensor.kind] = numbers.get(tensor.kind, 0) + tensor.numbers
    return int(_STORED[max(numbers, key=lambda kind: numbers[kind])]) if numbers else 2


def _loaded_bytes(tensor: _Tensor, itemsize: int, as_stored: bool) -> float:
    is_float = tensor.kind in _FLOATS and not as_stored
    return tensor.numbers * (itemsize if is_float else _STORED.get(tensor.kind, 1))


def _packed_bytes(
    tensors: list[_Tensor], described: Mapping[str, Any], itemsize: int, quantize: Quantize | None
) -> float:
    """Bytes of weights as the native program has them: matrices packed, the embedding as it was, the head beside it.

    A bf16 head is also kept in 8 bits, to find the logits that are worth computing exactly.
    """
    total = 0.0
    exact = itemsize * (_PACKED["none"] if itemsize == 2 else 1)
    head = exact + (1 if itemsize == 2 else 0) if quantize is None else _PACKED["int8"]
    has_head = any(tensor.name.endswith(_HEADS) for tensor in tensors)
    text = own if isinstance(own := described.get("text_config"), dict) else described
    width = _positive(text, *_SHAPE[2])
    for tensor in tensors:
        each = float(itemsize)
        if tensor.name.endswith(_HEADS):
            each = head
        elif tensor.name.endswith(_EMBEDDINGS):
            each += 0 if has_head else head
        elif tensor.is_matrix:
            each = exact
            if (rounding := rounding_of(_role(tensor.name), quantize, width)) is not None:
                each = _PACKED[rounding]
        total += tensor.numbers * each
    return total


def _role(name: str) -> Role:
    return next((role for role, parts in _ROLES.items() if any(part in name for part in parts)), "other")


def _cache_bytes(
    config: ModelConfig, described: Mapping[str, Any], itemsize: int, options: BuiltInOptions | None, free: int
) -> int | None:
    """The most that the KV cache may take; None if config.json does not show a token's size."""
    text = own if isinstance(own := described.get("text_config"), dict) else described
    token = _token_bytes(text, itemsize)
    context = config.option.max_model_len or longest_of(described)
    if options is None or token is None or context is None:
        return None
    blocks = config.option.max_rolling_batch_size * -(-context // options.block_size)
    workers = max(1, config.serving.max_workers or config.serving.min_workers)
    return min(blocks * options.block_size * token, cache_bytes_of(options.kv_cache_memory_mb, workers, free))


def _token_bytes(text: Mapping[str, Any], itemsize: int) -> int | None:
    """Bytes of a token's keys and values in all layers; None: not all layers have full or sliding attention."""
    kinds = set(text.get("layer_types") or ("full_attention",))
    if "kv_lora_rank" in text or not kinds <= {"full_attention", "sliding_attention"}:
        return None
    layers, heads, width = (_positive(text, *names) for names in _SHAPE)
    shared = _positive(text, "num_key_value_heads") or heads
    each = _positive(text, "head_dim") or width // (heads or 1)
    return 2 * layers * shared * each * itemsize or None


def _positive(text: Mapping[str, Any], *names: str) -> int:
    """The number that one of these names has in a config.json; 0 where none has one."""
    return next((value for name in names if isinstance(value := text.get(name), int) and value > 0), 0)
