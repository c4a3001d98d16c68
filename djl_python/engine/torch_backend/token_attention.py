"""Attention of single tokens over a paged KV cache, as Triton kernels. Runs in the engine process, on GPUs.

Each token of a flat batch finds its sequence's blocks by numbers that lie on the device, so that the same launches
serve every step of as many tokens: what a CUDA graph needs. A token's keys are divided among `splits` programs, whose
sums are put together afterwards, as flash decoding does (Dao et al., "Flash-Decoding for long-context inference",
2023).
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..attention.parameters import AttentionParams

# Programs that keep a GPU busy, and into how many a token's keys are divided at most for that.
_PROGRAMS: Final = 256
_MOST_SPLITS: Final = 16
# Rows and columns that a tensor core multiplies at least.
_LEAST: Final = 16


def attend_by_token(
    query: Tensor, keys: Tensor, values: Tensor, positions: Tensor, starts: Tensor, blocks: Tensor, how: AttentionParams
) -> Tensor:
    """Attend with each token to its sequence's keys up to its own, (T, heads, value_dim).

    Args:
        query: (heads, T, key_dim).
        keys, values: (blocks, block_size, kv_heads, dim), contiguous; the step's own are in them.
        positions: (T,) int64, in the sequences.
        starts: (T,) int64, where a token's sequence begins in `blocks`.
        blocks: (n,) int64, the block numbers of one sequence after the other.
    """
    heads, tokens, key_dim = query.shape
    block_size, kv_heads, value_dim = values.shape[1:]
    group = heads // kv_heads
    splits = min(_MOST_SPLITS, triton.next_power_of_2(max(1, _PROGRAMS // (tokens * kv_heads))))
    made = torch.empty(tokens, heads, value_dim, dtype=values.dtype, device=query.device)
    sums = torch.empty(tokens, heads, splits, value_dim, dtype=torch.float32, device=query.device)
    weights = torch.empty(2, tokens, heads, splits, dtype=torch.float32, device=query.device)
    padded_key, padded_value = (max(_LEAST, triton.next_power_of_2(dim)) for dim in (key_dim, value_dim))
    sinks = query if how.sinks is None else how.sinks
    _attend[(tokens, kv_heads, splits)](
        query, keys, values, positions, starts, blocks, sums, weights[0], weights[1],
        query.stride(0), query.stride(1), how.scaling,
        GROUP=group, ROWS=max(_LEAST, triton.next_power_of_2(group)),
        KEY=key_dim, PADDED_KEY=padded_key, VALUE=value_dim, PADDED_VALUE=padded_value,
        BLOCK_SIZE=block_size, WINDOW=how.window, SOFTCAP=how.softcap,
        TILE=32 if max(padded_key, padded_value) > 128 else 64, SPLITS=splits,
    )  # fmt: skip
    _put_together[(tokens, heads)](
        sums, weights[0], weights[1], sinks, made,
        VALUE=value_dim, PADDED_VALUE=padded_value, SPLITS=splits, SINKS=how.sinks is not None,
    )  # fmt: skip
    return made


# Triton reads these functions' source: it knows no annotations but its own.
@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    query, keys, values, positions, starts, blocks, sums, greatest, totals, head_stride, token_stride, scaling,
    GROUP: tl.constexpr, ROWS: tl.constexpr, KEY: tl.constexpr, PADDED_KEY: tl.constexpr, VALUE: tl.constexpr,
    PADDED_VALUE: tl.constexpr, BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    TILE: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """One token, the query heads of one key head, and one part of the keys: their weighted sum of values.

    Writes sums (T, heads, splits, VALUE), not divided yet, and the greatest score and the total weight of each,
    (T, heads, splits).
    """
    token, kv_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    kv_heads = tl.num_programs(1)
    position = tl.load(positions + token)
    start = tl.load(starts + token)
    first = tl.maximum(position - WINDOW + 1, 0) if WINDOW > 0 else position * 0
    first_tile = first // TILE
    tiles = position // TILE + 1
    each = (tiles - first_tile + SPLITS - 1) // SPLITS
    begin = first_tile + split * each
    end = tl.minimum(begin + each, tiles)

    row = tl.arange(0, ROWS)
    head = kv_head * GROUP + row
    of_key = tl.arange(0, PADDED_KEY)
    of_value = tl.arange(0, PADDED_VALUE)
    q = tl.load(
        query + head[:, None] * head_stride + token * token_stride + of_key[None, :],
        mask=(row < GROUP)[:, None] & (of_key < KEY)[None, :],
        other=0.0,
    )
    greatest_score = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    weighted = tl.zeros((ROWS, PADDED_VALUE), tl.float32)
    for tile in range(begin, end):
        place = tile * TILE + tl.arange(0, TILE)
        seen = (place >= first) & (place <= position)
        block = tl.load(blocks + start + place // BLOCK_SIZE, mask=seen, other=0)
        slot = (block * BLOCK_SIZE + place % BLOCK_SIZE) * kv_heads + kv_head
        k = tl.load(
            keys + slot[:, None] * KEY + of_key[None, :], mask=seen[:, None] & (of_key < KEY)[None, :], other=0.0
        )
        # What is not seen may hold a former owner's NaN, which a weight of 0 would not stop.
        v = tl.load(
            values + slot[:, None] * VALUE + of_value[None, :],
            mask=seen[:, None] & (of_value < VALUE)[None, :],
            other=0.0,
        )
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scaling  # of fp32 all bits
        if SOFTCAP > 0:
            scores = SOFTCAP * (2 * tl.sigmoid(2 * scores / SOFTCAP) - 1)
        scores = tl.where(seen[None, :], scores, float("-inf"))
        greater = tl.maximum(greatest_score, tl.max(scores, 1))  # each tile has a key that is seen
        kept = tl.exp(greatest_score - greater)
        weight = tl.exp(scores - greater[:, None])
        total = total * kept + tl.sum(weight, 1)
        weighted = weighted * kept[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        greatest_score = greater
    at = (token * kv_heads * GROUP + head) * SPLITS + split
    tl.store(
        sums + at[:, None] * VALUE + of_value[None, :],
        weighted,
        mask=(row < GROUP)[:, None] & (of_value < VALUE)[None, :],
    )
    tl.store(greatest + at, greatest_score, mask=row < GROUP)
    tl.store(totals + at, total, mask=row < GROUP)


@triton.jit  # type: ignore[untyped-decorator]
def _put_together(  # type: ignore[no-untyped-def]
    sums, greatest, totals, sinks, made,
    VALUE: tl.constexpr, PADDED_VALUE: tl.constexpr, SPLITS: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """One token and query head: divide the sum over all splits by their total weight, a sink's included."""
    at = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    split = at * SPLITS + tl.arange(0, SPLITS)
    of_value = tl.arange(0, PADDED_VALUE)
    scores = tl.load(greatest + split)
    most = tl.max(scores, 0)
    if SINKS:
        sink = tl.load(sinks + tl.program_id(1)).to(tl.float32)
        most = tl.maximum(most, sink)
    kept = tl.exp(scores - most)
    total = tl.sum(kept * tl.load(totals + split), 0)
    if SINKS:
        total += tl.exp(sink - most)
    parts = tl.load(sums + split[:, None] * VALUE + of_value[None, :], mask=(of_value < VALUE)[None, :], other=0.0)
    mean = tl.sum(kept[:, None] * parts, 0) / total
    tl.store(made + at * VALUE + of_value, mean.to(made.dtype.element_ty), mask=of_value < VALUE)
