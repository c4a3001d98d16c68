"""The least time a machine can need for a model: what no server can beat. From the checkpoint's files alone.

A wave of N requests of P prompt tokens and T output tokens is one prefill of N x P tokens, which gives every request
its first token, and T - 1 decode steps of N rows. Each takes the longer of two times: its arithmetic at the machine's
GEMM peak, and its bytes (weights once, keys and values of the context) at the machine's read bandwidth. Norms,
activations and sampling cost nothing here, the head is computed for positions that need it only, and nothing overlaps
between phases.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from transformers import AutoConfig

BYTES: Final = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "int8": 1.0, "int4": 0.5}
_EMBEDDINGS: Final = (
    *("embed_tokens", "wte", "wpe", "word_embeddings", "embed_in", "embed_positions", "embeddings."),
    *("tokens_embed", "positions_embed"),
)

_OF_LAYERS: Final = "embed_tokens_per_layer"  # looked up, not multiplied
_STATES: Final = ("linear", "conv", "mamba", "moe", "mlp")  # in the names of layers without attention


@dataclass(frozen=True)
class Shape:
    """What a decode step of a model consists of.

    Attributes:
        body, head: parameters of the matrices that every token passes, and of the one that makes logits.
        kv_values: numbers that one token leaves in the cache.
        attention_flop: floating-point operations of one token's attention to one position.
    """

    body: int
    head: int
    kv_values: int
    attention_flop: int


def read_shape(model: Path) -> Shape:
    """From config.json and the headers of *.safetensors.

    Raises:
        OSError, ValueError: the directory has not both, or transformers doesn't know the architecture.
    """
    config = AutoConfig.from_pretrained(model).get_text_config(decoder=True)
    experts = _first(config, "num_local_experts", "num_experts", "n_routed_experts")
    share = _first(config, "num_experts_per_tok") / experts if experts else 1.0
    body, embedding, head = 0.0, 0, 0
    for name, shape in _tensors(model):
        if len(shape) < 2 or _OF_LAYERS in name:
            continue
        size = math.prod(shape)
        if any(part in name for part in _EMBEDDINGS):
            embedding = max(embedding, size)
        elif name.startswith(("lm_head", "embed_out", "output.")):
            head = size
        else:
            body += size * (share if ".experts." in name else 1.0)
    attending = _attending(config)
    kv_values = sum(2 * _kv_heads(layer) * _head_size(layer) for layer, own in attending if own)
    flop = sum(4 * _first(layer, "num_attention_heads") * _head_size(layer) for layer, _ in attending)
    return Shape(int(body), head or embedding, kv_values, flop)


def _attending(config: Any) -> list[tuple[Any, bool]]:
    """(configuration, whether it has keys and values of its own) of each layer with attention."""
    kinds = getattr(config, "layer_types", None) or ["attention"] * config.num_hidden_layers
    of_layers = getattr(config, "per_layer_config", None)  # most models have the same for all
    reading = len(kinds) - _first(config, "num_kv_shared_layers")
    return [
        (of_layers[i] if of_layers else config, i < reading)
        for i, kind in enumerate(kinds)
        if not any(each in kind for each in _STATES)
    ]


def _head_size(layer: Any) -> int:
    heads = _first(layer, "num_attention_heads")
    return _first(layer, "head_dim") or (layer.hidden_size // heads if heads else 0)


def _kv_heads(layer: Any) -> int:
    return _first(layer, "num_key_value_heads", "num_kv_heads") or _first(layer, "num_attention_heads")


def _first(config: Any, *names: str) -> int:
    """The first of these numbers that a configuration has; 0 without any, as models without attention have no heads."""
    return next((value for name in names if (value := getattr(config, name, None))), 0)


def _tensors(model: Path) -> Iterator[tuple[str, list[int]]]:
    """Names and shapes. A safetensors file begins with the length of its header, and the header in JSON."""
    paths = sorted(model.glob("*.safetensors"))
    if not paths:
        raise FileNotFoundError(f"{model} has no *.safetensors")
    for path in paths:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header: dict[str, Any] = json.loads(file.read(length))
        yield from ((name, entry["shape"]) for name, entry in header.items() if name != "__metadata__")


def tokens_s(
    shape: Shape, machine: Mapping[str, Any], precision: str, concurrency: int, prompt: int, output: int
) -> float:
    """Output tokens per second that can't be exceeded; `machine` is what machine.measure() gives."""
    peaks: Mapping[str, float] = machine["gemm_gflop_s"]
    # Processors without bf16 multiply it as fp32.
    peak = (peaks["fp32"] if precision == "fp32" else max(peaks.values())) * 1e9
    bandwidth: float = machine["read_gb_s"] * 1e9
    weights = (shape.body + shape.head) * BYTES[precision]
    kv = shape.kv_values * (4.0 if precision == "fp32" else 2.0)

    def phase_s(rows: int, positions: int, contexts: int, head_rows: int) -> float:
        flop = 2 * (rows * shape.body + head_rows * shape.head) + positions * shape.attention_flop
        return max(flop / peak, (weights + contexts * kv) / bandwidth)

    total_s = phase_s(concurrency * prompt, concurrency * prompt * (prompt + 1) // 2, 0, concurrency)
    for step in range(1, output):
        context = concurrency * (prompt + step)
        total_s += phase_s(concurrency, context, context, concurrency)
    return concurrency * output / total_s
