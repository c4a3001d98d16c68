"""Lays a recipe out as a list of operations, and runs it. Runs in the engine process.

The list is made once; a step changes nothing but `Step`: the tokens, their places in the cache, the wanted rows.
Weights are packed into panels as the kernels read them; the model's own copies can be dropped after that.
"""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .build import library
from .recipe import Attention, Layer, Linear, Mlp, Norm, NotUnderstoodError, Recipe

KEYS: Final = 16  # of a cache group: block sizes are multiples of it
QUERIES: Final = 24  # (query, head) pairs that share a walk over the keys
_PANEL: Final = 64
_HUGE_PAGE: Final = 2 << 20
_EMBED, _NORM, _LINEAR, _HEADS, _ATTEND, _GATHER = range(6)
_STORE, _ADD, _STORE_FP32 = range(3)
_NORM_KINDS: Final = {"rms": 0, "layer": 1, None: 2}
_ACTIVATIONS: Final = {None: 0, "silu": 1, "gelu_tanh": 2, "gelu": 3, "relu": 4}

_INTS: Final = (
    "kind", "rows_from", "n", "k", "mode", "activation", "gated", "heads", "kv_heads", "dim", "value_dim", "rotary",
    "interleaved", "window", "layer",
)  # fmt: skip
_POINTERS: Final = (
    "in_", "out", "weight", "bias", "weight2", "weight3", "cosines", "sines", "sinks", "keys", "values",
)  # fmt: skip


class _Op(ctypes.Structure):
    """`Op` of program.h."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in _INTS),
        *((name, ctypes.c_float) for name in ("eps", "scale", "softcap")),
        *((name, ctypes.c_void_p) for name in _POINTERS),
    )


class _Step(ctypes.Structure):
    """`Step` of program.h."""

    _fields_ = (
        ("tokens", ctypes.c_int32),
        ("wanted", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("ids", "positions", "slots", "rows")),
        ("tiles", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("tile_start", "tile_size", "tile_table", "blocks")),
        ("block_size", ctypes.c_int32),
    )


@dataclass(frozen=True)
class StepArrays:
    """One step. Tiles are runs of consecutive tokens of one sequence, each with the place of its blocks in `blocks`."""

    ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    tile_start: npt.NDArray[np.int32]
    tile_size: npt.NDArray[np.int32]
    tile_table: npt.NDArray[np.int64]
    blocks: npt.NDArray[np.int64]


class Program:
    """A decoder, its packed weights and its cache.

    Args:
        dtype: bf16 or fp32, of weights, cache and the activations between matrix products.
        blocks, block_size: of the cache.
        max_tokens: of a step.
    """

    def __init__(
        self, recipe: Recipe, dtype: torch.dtype, blocks: int, block_size: int, max_tokens: int, threads: int
    ) -> None:
        self._library = library()
        if (self._library.djl_op_size(), self._library.djl_step_size()) != (ctypes.sizeof(_Op), ctypes.sizeof(_Step)):
            raise NotUnderstoodError("program.h and program.py disagree about their structures")
        self._bf16 = dtype == torch.bfloat16
        self._dtype = dtype
        self._block_size = block_size
        self._blocks = blocks
        self._kept: list[Any] = []  # what the operations point to
        self._ops: list[_Op] = []
        self._max_tokens = max_tokens
        self.vocabulary = len(recipe.head.weight)
        self.heads_per_kv_head = max(layer.attention.heads // layer.attention.kv_heads for layer in recipe.layers)
        self._lay_out(recipe)
        self._array = (_Op * len(self._ops))(*self._ops)
        self._pool = self._library.djl_pool(threads)

    def run(self, step: StepArrays) -> Tensor:
        """Logits of the wanted rows: (rows, vocabulary) fp32."""
        wanted = len(step.rows)
        logits = torch.empty(wanted, self.vocabulary)
        hidden = torch.empty(wanted, self._width)
        normed = torch.empty(wanted, self._width, dtype=self._dtype)
        gather, norm, head = self._array[-3], self._array[-2], self._array[-1]
        gather.out = norm.in_ = hidden.data_ptr()
        norm.out = head.in_ = normed.data_ptr()
        head.out = logits.data_ptr()
        given = _Step(tokens=len(step.ids), wanted=wanted, tiles=len(step.tile_start), block_size=self._block_size)
        for name in ("ids", "positions", "slots", "rows", "tile_start", "tile_size", "tile_table", "blocks"):
            setattr(given, name, getattr(step, name).ctypes.data)
        count = len(self._ops) if wanted else len(self._ops) - 3
        if self._library.djl_run(self._pool, self._array, count, ctypes.byref(given), int(self._bf16)):
            raise RuntimeError("the program has more operations than the kernels take")
        return logits

    def close(self) -> None:
        """End the threads."""
        self._library.djl_pool_close(self._pool)

    # ------------------------------------------------------------------------------------ layout

    def _lay_out(self, recipe: Recipe) -> None:
        self._width = recipe.embedding.shape[1]
        self._hidden = self._buffer(self._width, torch.float32)
        self._normed = self._buffer(self._width, self._dtype)
        self._branch = self._buffer(self._width, torch.float32)
        head, head_bias = self._pack(recipe.head)
        tied = recipe.head.weight.data_ptr() == recipe.embedding.data_ptr()
        positions = None if recipe.positions is None else self._keep(recipe.positions.to(self._dtype).contiguous())
        self._add(
            _EMBED,
            n=self._width,
            mode=int(tied),
            scale=recipe.embedding_scale,
            weight=head if tied else self._keep(recipe.embedding.to(self._dtype).contiguous()),
            bias=positions,
            k=recipe.position_offset,
            out=self._hidden,
        )
        for layer in recipe.layers:
            self._add_layer(layer)
        self._add(_GATHER, n=self._width, in_=self._hidden)
        self._add_norm(recipe.final_norm, None, None, rows_from=1)
        self._add(
            _LINEAR,
            rows_from=1,
            n=self.vocabulary,
            k=self._width,
            mode=_STORE_FP32,
            scale=recipe.head_scale,
            softcap=recipe.head_softcap,
            weight=head,
            bias=head_bias,
        )

    def _add_layer(self, layer: Layer) -> None:
        self._add_norm(layer.before_attention, self._hidden, self._normed)
        mixed = self._add_attention(layer.attention)
        if layer.parallel:  # the MLP reads the stream as it was before the attention's branch
            self._add_norm(layer.before_mlp, self._hidden, self._normed)
        self._add_branch(layer.attention.output, mixed, layer.after_attention, layer.scale)
        if not layer.parallel:
            self._add_norm(layer.before_mlp, self._hidden, self._normed)
        inner = self._add_mlp(layer.mlp)
        self._add_branch(layer.mlp.down, inner, layer.after_mlp, layer.scale)

    def _add_attention(self, attention: Attention) -> int:
        columns = (attention.heads + attention.kv_heads) * attention.dim + attention.kv_heads * attention.value_dim
        projected = self._buffer(columns, torch.float32)
        weight, bias = self._pack(attention.projection)
        self._add(
            _LINEAR, n=columns, k=self._width, mode=_STORE_FP32, scale=1.0, in_=self._normed, out=projected,
            weight=weight, bias=bias,
        )  # fmt: skip
        if attention.dim % 2 or attention.value_dim % 16:
            raise NotUnderstoodError(f"heads of {attention.dim} and {attention.value_dim} dimensions")
        cache = [
            self._keep(_untouched(self._blocks * attention.kv_heads * self._block_size * dim * self._dtype.itemsize))
            for dim in (attention.dim, attention.value_dim)
        ]
        shape: dict[str, Any] = {
            "heads": attention.heads, "kv_heads": attention.kv_heads, "dim": attention.dim,
            "value_dim": attention.value_dim, "keys": cache[0], "values": cache[1],
        }  # fmt: skip
        turn: dict[str, Any] = {}
        if attention.rotary is not None:
            turn = {
                "rotary": 2 * attention.rotary.cosines.shape[1],
                "interleaved": int(attention.rotary.interleaved),
                "cosines": self._keep_once(attention.rotary.cosines),
                "sines": self._keep_once(attention.rotary.sines),
            }
        norms = {
            name: self._keep(norm.weight.contiguous())
            for name, norm in (("weight2", attention.query_norm), ("weight3", attention.key_norm))
            if norm is not None
        }
        eps = next((norm.eps for norm in (attention.query_norm, attention.key_norm) if norm is not None), 0.0)
        self._add(_HEADS, in_=projected, eps=eps, **shape, **turn, **norms)
        mixed = self._buffer(attention.heads * attention.value_dim, self._dtype)
        sinks = None if attention.sinks is None else self._keep(attention.sinks.float().contiguous())
        self._add(
            _ATTEND, in_=projected, out=mixed, scale=attention.scale, softcap=attention.softcap,
            window=attention.window, sinks=sinks, **shape,
        )  # fmt: skip
        return mixed

    def _add_mlp(self, mlp: Mlp) -> int:
        width = len(mlp.up.weight)
        inner = self._buffer(width, self._dtype)
        weight, bias = self._pack(mlp.up) if mlp.gate is None else self._pack_gated(mlp.gate, mlp.up)
        self._add(
            _LINEAR, n=width, k=self._width, mode=_STORE, activation=_ACTIVATIONS[mlp.activation],
            gated=int(mlp.gate is not None), in_=self._normed, out=inner, weight=weight, bias=bias,
        )  # fmt: skip
        return inner

    def _add_branch(self, linear: Linear, given: int, after: Norm | None, scale: float) -> None:
        """hidden += scale * after(linear(given))"""
        weight, bias = self._pack(linear)
        n, k = linear.weight.shape
        operands: dict[str, Any] = {"n": n, "k": k, "in_": given, "weight": weight, "bias": bias}
        if after is None:
            self._add(_LINEAR, mode=_ADD, scale=scale, out=self._hidden, **operands)
        else:
            self._add(_LINEAR, mode=_STORE_FP32, scale=1.0, out=self._branch, **operands)
            self._add_norm(after, self._branch, self._hidden, scale=scale)

    def _add_norm(self, norm: Norm | None, given: int | None, out: int | None, **more: Any) -> None:
        details: dict[str, Any] = {}
        if norm is not None:
            details = {"eps": norm.eps, "weight": self._keep(norm.weight.contiguous())}
            if norm.bias is not None:
                details["bias"] = self._keep(norm.bias.contiguous())
        kind = None if norm is None else norm.kind
        self._add(_NORM, n=self._width, mode=_NORM_KINDS[kind], in_=given, out=out, **details, **more)

    # ------------------------------------------------------------------------------------ memory

    def _add(self, kind: int, **fields: Any) -> None:
        self._ops.append(_Op(kind=kind, **fields))

    def _keep(self, tensor: Tensor) -> int:
        self._kept.append(tensor)
        return int(tensor.data_ptr())

    def _keep_once(self, tensor: Tensor) -> int:
        """All layers turn by the same tables."""
        for kept in self._kept:
            if kept is tensor:
                return int(tensor.data_ptr())
        return self._keep(tensor)

    def _buffer(self, columns: int, dtype: torch.dtype) -> int:
        """(max_tokens, columns), shared by all layers that ask for the same kind one after the other."""
        return self._keep(torch.empty(self._max_tokens, columns, dtype=dtype))

    def _pack(self, linear: Linear) -> tuple[int, int | None]:
        return self._packed(linear.weight, None), self._bias([linear.bias], len(linear.weight))

    def _pack_gated(self, gate: Linear, up: Linear) -> tuple[int, int | None]:
        return self._packed(gate.weight, up.weight), self._bias([gate.bias, up.bias], len(gate.weight))

    def _packed(self, weight: Tensor, second: Tensor | None) -> int:
        n, k = weight.shape
        if k % 2:
            raise NotUnderstoodError(f"a weight of odd width {k}")
        weight = weight.to(self._dtype).contiguous()
        panels = -(-n // _PANEL) if second is None else -(-n // (_PANEL // 2))
        packed = _on_huge_pages(panels * _PANEL * k * self._dtype.itemsize).view(self._dtype)
        gate = None if second is None else second.to(self._dtype).contiguous()
        self._library.djl_pack(
            weight.data_ptr(), None if gate is None else gate.data_ptr(), packed.data_ptr(), n, k, int(self._bf16)
        )
        return self._keep(packed)

    def _bias(self, parts: list[Tensor | None], n: int) -> int | None:
        if all(part is None for part in parts):
            return None
        step = _PANEL // len(parts)
        panels = -(-n // step)
        bias = torch.zeros(panels, len(parts), step)
        for i, part in enumerate(parts):
            if part is not None:
                padded = torch.zeros(panels * step)
                padded[:n] = part.float()
                bias[:, i] = padded.view(panels, step)
        return self._keep(bias.contiguous())


def _on_huge_pages(size: int) -> Tensor:
    """Bytes for weights, which are read from end to end: on small pages every 4 KiB would cost a look-up of its own."""
    memory = mmap.mmap(-1, -(-size // _HUGE_PAGE) * _HUGE_PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8, count=size)


def _untouched(size: int) -> Tensor:
    """Zeros whose memory the operating system gives only when it is written."""
    return torch.from_numpy(np.zeros(size, np.uint8))
