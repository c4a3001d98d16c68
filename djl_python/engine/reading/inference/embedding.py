"""Explains the computation from token ids to the first layer. Runs in the engine process, at load."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...checkpoints.dequantizing_linear import DequantizingEmbedding
from ...checkpoints.linears import Linear
from ...checkpoints.weights import Weight
from ..comparison import factor_of, rounded_factor, same
from ..recipe.primitives import Norm, NotUnderstoodError
from ..watching.copies import Copy
from ..watching.run import ModuleCall, WatchedRun
from .layer_record import linear_call_of
from .norms import norm_call


@dataclass(frozen=True)
class EmbeddingTable:
    """norm(projection(table[id]) * scale + positions[position + offset]); see `Recipe`, which has these fields."""

    module: nn.Module
    table: Weight
    scale: float
    projection: Linear | None
    positions: Tensor | None
    position_offset: int
    norm: Norm | None


def read_embedding(copy: Copy, seen: WatchedRun) -> EmbeddingTable:
    """How the first layer's input is made.

    Raises:
        NotUnderstoodError: it could not be explained.
    """
    table = copy.model.get_input_embeddings()
    lookup = next((call for call in seen.module_calls if call.copied is table), None)
    if lookup is None or not isinstance(lookup.module, nn.Embedding | DequantizingEmbedding):
        raise NotUnderstoodError("the embedding is not a table")
    start = seen.layers[0].input.float()
    rows = nn.functional.embedding(lookup.x, table.weight).float()
    before = seen.module_calls[: seen.layers[0].module_calls.start]
    widened = linear_call_of(before, rows)
    if widened is not None:
        rows = widened[0].result.float()
    positions, offset = None, 0
    added: Tensor | float = 0.0
    for call in before:
        looked_up = None if call.copied is table else _looked_up(call, rows)
        if looked_up is not None:
            positions, offset = looked_up[0], looked_up[1] - seen.first_position
            added = call.result.reshape(rows.shape).float()
            break
    norm = next((n for call in before if (n := norm_call(call)) is not None and same(call.result, start)), None)
    stream = start if norm is None else norm.call.x.float()
    scale = rounded_factor(factor_of(rows, stream - added))
    if not same(scale * rows + added, stream) or (widened is not None and scale != 1):
        raise NotUnderstoodError("the first layer does not read the embedding")
    return EmbeddingTable(
        module=lookup.module,
        table=lookup.module.weight.data if isinstance(lookup.module, nn.Embedding) else lookup.module.weight,
        scale=scale,
        projection=None if widened is None else widened[1],
        positions=positions,
        position_offset=offset,
        norm=None if norm is None else norm.norm,
    )


def _looked_up(call: ModuleCall, rows: Tensor) -> tuple[Tensor, int] | None:
    """(the model's own table, index of the first row) of a module that returned consecutive rows of a table.

    Args:
        rows: (1, rows, columns), the shape of the rows that it returned.
    """
    if not isinstance(call.result, Tensor) or call.result.numel() != rows.numel():
        return None
    given = call.result.reshape(rows.shape)[0]
    for table, own in zip(_tables_of(call.copied), _tables_of(call.module), strict=True):
        if table.dim() != 2 or table.shape[1] != given.shape[1]:
            continue
        for first in (table == given[0]).all(1).nonzero().flatten().tolist():
            if torch.equal(table[first : first + len(given)], given):
                return own.data, int(first)
    return None


def _tables_of(module: nn.Module) -> Iterator[Tensor]:
    return itertools.chain(module.parameters(recurse=False), module.buffers(recurse=False))
