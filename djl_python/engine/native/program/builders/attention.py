"""Builds attention: projection, heads into the KV cache, attention over it. Runs in the engine process, once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import torch

from ....reading.recipe.mixers import Attention, AttentionMixer
from ....reading.recipe.primitives import Norm, NotUnderstoodError, Rotary
from ...abi.decoder import AttentionOp, GateOp, RopeKvCacheOp
from ...abi.enums import Mode
from ...abi.parts import HeadRows, Output, Rotation
from ...kv_layout import head_rows, heads_fit
from .builder import ProgramBuilder, Rows

_ALL_AHEAD: Final = 1 << 30


@dataclass
class CacheLayout:
    """Addresses of the layers' keys and values in the first block of the KV cache.

    Args:
        next: address for the next layer.
        begins: addresses of the attentions so far.
    """

    next: int
    block_size: int
    begins: list[int] = field(default_factory=list)

    def take(self, attention: AttentionMixer, dtype: torch.dtype) -> int:
        """The address of a layer's keys and values in the first block: another layer's, if this one reads its cache."""
        if attention.reads is None:
            self.begins.append(self.next)
            self.next += attention.shape.block_bytes(self.block_size, dtype)
        else:
            self.begins.append(self.begins[attention.reads])
        return self.begins[-1]


def build_attention(
    builder: ProgramBuilder, attention: Attention, given: Rows, cache: CacheLayout, *, last: bool
) -> Rows:
    """Build an attention without its output projection; returns the rows that `attention.output` reads.

    Args:
        last: once keys and values are stored, go on with only the rows whose logits are wanted.
    """
    of_layer = attention.shape
    if not heads_fit(of_layer):
        raise NotUnderstoodError(f"heads of {attention.dim} and {attention.value_dim} dimensions")
    of_heads = attention.heads * attention.dim
    if attention.reads is None:
        of_heads += attention.kv_heads * (attention.dim + attention.value_dim)
    mixed_columns = attention.heads * attention.value_dim
    columns = of_heads + mixed_columns * attention.gated
    projected = builder.buffer("projected", columns, torch.float32)
    builder.add_stacked(attention.projection, given, Output(out=projected, mode=Mode.STORE_FP32))
    address = cache.take(attention, builder.dtype)
    rows = head_rows(of_layer, address, stride=columns)

    def weight(norm: Norm | None) -> int | None:
        return None if norm is None else builder.keep(norm.weight.contiguous())

    builder.add(
        RopeKvCacheOp(
            rows=rows if attention.reads is None else head_rows(of_layer, None, stride=columns), in_=projected,
            query_norm=weight(attention.query_norm), key_norm=weight(attention.key_norm),
            norms_across=attention.norms_across,
            eps=next((norm.eps for norm in (attention.query_norm, attention.key_norm) if norm is not None), 0.0),
            value_norm=weight(attention.value_norm),
            value_eps=0.0 if attention.value_norm is None else attention.value_norm.eps,
            rotation=rotation(builder, attention.rotary),
        )
    )  # fmt: skip
    if last:
        (projected,) = builder.begin_late(("projected", columns, torch.float32, projected))
    mixed = builder.rows("mixed", mixed_columns)
    add_attention(builder, attention, rows, projected, mixed)
    if attention.gated:
        opening = projected + 4 * of_heads
        builder.add(GateOp(n=mixed_columns, in_=opening, stride=columns, out=mixed.at, pitch=mixed.stride))
    return mixed


def rotation(builder: ProgramBuilder, rotary: Rotary | None) -> Rotation:
    """What the kernels need of a rotary embedding, if there is one."""
    if rotary is None:
        return Rotation()
    cosines, sines = builder.keep_in_order(rotary.cosines), builder.keep_in_order(rotary.sines)
    return Rotation(dims=2 * rotary.cosines.shape[1], interleaved=rotary.interleaved, cosines=cosines, sines=sines)


def add_attention(builder: ProgramBuilder, attention: AttentionMixer, rows: HeadRows, asked: int, mixed: Rows) -> None:
    """Attend to the cache with the queries that rows at `asked` begin with; results go to `mixed`."""
    sinks, slopes = (
        None if each is None else builder.keep(each.float().contiguous())
        for each in (attention.sinks, attention.slopes)
    )
    builder.add(
        AttentionOp(
            rows=rows, in_=asked, out=mixed.at, pitch=mixed.stride, scale=attention.scale, softcap=attention.softcap,
            window=attention.window, ahead=_tokens_ahead(attention), sinks=sinks, slopes=slopes,
        )
    )  # fmt: skip


def _tokens_ahead(attention: AttentionMixer) -> int:
    """How many tokens after its own one a query sees, as the kernels are told it."""
    ahead = attention.ahead if isinstance(attention, Attention) else 0
    return _ALL_AHEAD if ahead is None else ahead
