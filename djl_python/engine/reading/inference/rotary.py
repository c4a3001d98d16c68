"""Finds the rotary embeddings that a model may use, and applies one. Runs in the engine process, at load."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ...checkpoints.rope import original_length
from ..comparison import same
from ..recipe.primitives import Rotary
from ..watching.run import TOKENS, ModuleCall, WatchedRun


def rotary_candidates(model: nn.Module, seen: WatchedRun, max_positions: int) -> list[Rotary]:
    """Every rotary embedding that the model's cos and sin tables could mean, for all positions; layers share them."""
    candidates = []
    tables = list(_tables(model, seen, max_positions))
    for cos, sin, short_rows in (*tables, *((cos, -sin, rows) for cos, sin, rows in tables)):  # some rotate backwards
        half = cos.shape[-1] // 2
        first, alternate = (cos[:, :half], sin[:, :half]), (cos[:, 0::2], sin[:, 0::2])
        candidates += [
            Rotary(*first, interleaved=False, short_rows=short_rows),
            Rotary(*first, interleaved=True, short_rows=short_rows),
            Rotary(*alternate, interleaved=True, short_rows=short_rows),
            Rotary(cos, sin, interleaved=False, short_rows=short_rows),
        ]
    return candidates


def _tables(model: nn.Module, seen: WatchedRun, max_positions: int) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Every table that the model has or made, for all positions: cos and sin (rows, rotated), `Rotary.short_rows`."""
    for call in seen.module_calls:
        if "Rotary" not in type(call.module).__name__:
            continue
        short_rows = original_length(call.module)
        short_rows = 0 if short_rows >= max_positions else short_rows
        made = [pair for rows in (short_rows, max_positions) if rows and (pair := _table(call, rows)) is not None]
        if made:
            cos, sin = (torch.cat(parts) for parts in zip(*made, strict=True))
            yield cos, sin, short_rows
    for table in model.buffers():  # GPT-J's: sines, then cosines; each layer has the same
        if table.dim() != 2 or len(table) < max_positions or not table.is_floating_point():
            continue
        sin, cos = table[:max_positions].float().chunk(2, -1)
        if sin.shape == cos.shape and same(sin.square() + cos.square(), torch.ones_like(sin)):
            yield torch.cat([cos, cos], -1), torch.cat([sin, sin], -1), 0
            return


def _table(call: ModuleCall, rows: int) -> tuple[Tensor, Tensor] | None:
    """cos and sin, (rows, rotated) fp32, that a rotary module makes for the first `rows` positions, if it does."""
    positions = torch.arange(rows)[None]

    def for_all_rows(value: Any) -> Any:
        is_positions = isinstance(value, Tensor) and not value.is_floating_point() and value.shape[-1] == TOKENS
        return positions if is_positions else value

    args = tuple(for_all_rows(value) for value in call.args)
    kwargs = {name: for_all_rows(value) for name, value in call.kwargs.items()}
    made = call.copied(*args, **kwargs)
    if isinstance(made, tuple):
        return made[0][0].float(), made[1][0].float()
    if made.is_complex():
        return torch.cat([made[0].real] * 2, -1).float(), torch.cat([made[0].imag] * 2, -1).float()
    return None


def rotate(x: Tensor, rotary: Rotary, positions: slice) -> Tensor:
    """x (heads, tokens, dim) with its first dimensions rotated for these positions."""
    cos, sin = rotary.cosines[positions], rotary.sines[positions]
    half = cos.shape[-1]
    rotated, rest = x[..., : 2 * half], x[..., 2 * half :]
    if rotary.interleaved:
        a, b = rotated[..., 0::2], rotated[..., 1::2]
        rotated = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    else:
        a, b = rotated[..., :half], rotated[..., half:]
        rotated = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    return torch.cat([rotated, rest], -1)
