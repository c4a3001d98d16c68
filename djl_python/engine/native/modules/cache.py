"""A paged KV cache of the native kernels, for models that torch runs. Runs in the engine process.

torch's CPU attention is made for many queries: with one query per sequence it takes several times as long as reading
the keys and values, which have to be gathered from their blocks first. The kernels read the blocks in place.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...attention.parameters import AttentionParams, LayerShape
from ...batch.chunk import SequenceChunk
from ..abi.decoder import AttentionOp, ClearValuesOp, RopeKvCacheOp
from ..abi.enums import KEYS_PER_GROUP
from ..abi.operations import OperationArray
from ..abi.step_inputs import StepInputs
from ..kv_layout import head_rows, heads_fit
from ..memory import PrefaultedMemory
from ..prefault import cache_prefault_bytes
from ..program.step_arrays import AttentionArrays, attention_arrays, cache_slots, tile_size, token_range
from ..thread_pool import FORMATS, ThreadPool


@dataclass
class NativePlan:
    """A `StepPlan`; `step` points to `arrays`."""

    order: list[SequenceChunk]
    positions: Tensor
    arrays: AttentionArrays
    step: StepInputs


class NativeCache:
    """A `PagedCache` for layers that `fits` accepts."""

    def __init__(
        self, layers: list[LayerShape], blocks: int, block_size: int, dtype: torch.dtype, pool: ThreadPool
    ) -> None:
        self.block_size = block_size
        self._layers = layers
        self._dtype = dtype
        self._pool = pool
        self._tile = tile_size(max(each.heads // each.kv_heads for each in layers))
        bytes_each = [each.block_bytes(block_size, dtype) for each in layers]
        self._block_bytes = sum(bytes_each)
        size = blocks * self._block_bytes
        self._memory = PrefaultedMemory(size, cache_prefault_bytes(size))
        self._begins = [sum(bytes_each[:layer]) for layer in range(len(layers))]
        self._rows = torch.empty(0)
        self._operations: dict[Any, tuple[OperationArray, Tensor | None]] = {}

    @staticmethod
    def fits(layers: list[LayerShape], block_size: int, dtype: torch.dtype) -> bool:
        """Whether the kernels support heads and blocks of these sizes in this dtype."""
        return (
            dtype in FORMATS
            and block_size % KEYS_PER_GROUP == 0
            and all(heads_fit(each) and each.heads % each.kv_heads == 0 for each in layers)
        )

    @contextmanager
    def step(self, chunks: list[SequenceChunk]) -> Iterator[NativePlan]:
        spans = [token_range(chunk) for chunk in chunks]
        arrays = attention_arrays(spans, self.block_size, self._tile)
        slots = np.array([slot for span in spans for slot in cache_slots(span, self.block_size)], np.int64)
        step = arrays.step_inputs(self.block_size, self._block_bytes)
        step.slots = slots.ctypes.data
        self._memory.used_to((int(slots.max()) // self.block_size + 1) * self._block_bytes)
        try:
            yield NativePlan(chunks, torch.from_numpy(arrays.positions), arrays, step)
        finally:
            self._memory.rest()

    def attend(
        self, layer: int, plan: NativePlan, query: Tensor, key: Tensor, value: Tensor, how: AttentionParams
    ) -> Tensor:
        shape = self._layers[layer]
        tokens = query.shape[2]
        given = [each[0].transpose(0, 1).flatten(1) for each in (query, key, value)]
        widths = [each.shape[1] for each in given]
        if self._rows.numel() < tokens * sum(widths):  # kept: first-touch page faults cost more
            self._rows = torch.empty(tokens * sum(widths))
        rows = self._rows[: tokens * sum(widths)].view(tokens, -1)
        for end, width, each in zip(itertools.accumulate(widths), widths, given, strict=True):
            rows[:, end - width : end] = each
        made = torch.empty(1, tokens, shape.heads, shape.value_dim, dtype=self._dtype)
        operations = self._of(layer, how)
        attention = operations.view(2, AttentionOp)
        operations.view(1, RopeKvCacheOp).in_ = attention.in_ = rows.data_ptr()
        attention.out = made.data_ptr()
        self._pool.run(operations, plan.step, bf16=self._dtype == torch.bfloat16)
        return made.to(query.dtype)

    def close(self) -> None:
        self._memory.close()

    def _of(self, layer: int, how: AttentionParams) -> OperationArray:
        """A layer's operations, made once: `how` is the same in every step."""
        name = layer, how.scaling, how.window, how.softcap, how.sinks is not None
        if name not in self._operations:
            rows = head_rows(self._layers[layer], self._memory.bytes.data_ptr() + self._begins[layer])
            sinks = None if how.sinks is None else how.sinks.float().contiguous()
            attention = AttentionOp(
                rows=rows, scale=how.scaling, softcap=how.softcap, window=how.window,
                sinks=None if sinks is None else sinks.data_ptr(),
            )  # fmt: skip
            operations = OperationArray([ClearValuesOp(), RopeKvCacheOp(rows=rows), attention])
            self._operations[name] = operations, sinks
        return self._operations[name][0]
