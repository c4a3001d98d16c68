"""A RowScanner of the native kernels. Runs in the engine process."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from ..row_scan import BLOCK, Bounds, Scan, States
from .pool import Kind, Op, Pool, Step

# With fewer numbers than this the calling thread is done before another one is awake.
_SHARED_FROM: Final = 400_000


class NativeScanner:
    """Reads rows with the program's threads, or alone where there is little to read."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._alone = Pool(1)

    def scan(self, scores: Tensor, inverse_temperature: Tensor | None) -> Scan:
        rows, vocabulary = scores.shape
        maxima = torch.empty(rows, -(-vocabulary // BLOCK))
        masses = None if inverse_temperature is None else torch.empty_like(maxima)
        log_mass = torch.empty(rows)
        operation = Op(
            kind=Kind.SCAN,
            n=vocabulary,
            in_=scores.data_ptr(),
            out=maxima.data_ptr(),
            weight=None if inverse_temperature is None else inverse_temperature.data_ptr(),
            keys=None if masses is None else masses.data_ptr(),
            values=log_mass.data_ptr(),
        )
        self._run(operation, Step(wanted=rows), scores.numel())
        return Scan(maxima, log_mass, masses, inverse_temperature)

    def best(self, scores: Tensor, scan: Scan, rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
        values = torch.empty(len(rows), width)
        ids = torch.empty(len(rows), width, dtype=torch.long)
        operation = Op(
            kind=Kind.BEST,
            n=scores.shape[1],
            k=width,
            in_=scores.data_ptr(),
            out=values.data_ptr(),
            weight=scan.maxima.data_ptr(),
            keys=ids.data_ptr(),
        )
        self._run(operation, Step(wanted=len(rows), rows=rows.data_ptr()), len(rows) * scan.maxima.shape[1] * width)
        return values, ids

    def draw(self, scores: Tensor, scan: Scan, rows: Tensor, bounds: Bounds, states: States) -> Tensor:
        assert scan.masses is not None
        assert scan.inverse_temperature is not None
        ids = torch.empty(len(rows), dtype=torch.long)
        states = np.ascontiguousarray(states)
        operation = Op(
            kind=Kind.DRAW,
            n=scores.shape[1],
            in_=scores.data_ptr(),
            out=ids.data_ptr(),
            weight=scan.maxima.data_ptr(),
            weight2=scan.masses.data_ptr(),
            weight3=scan.inverse_temperature.data_ptr(),
            bias=bounds.top_p.data_ptr(),
            sinks=bounds.min_p.data_ptr(),
            values=states.ctypes.data,
        )
        self._run(operation, Step(wanted=len(rows), rows=rows.data_ptr()), len(rows) * scores.shape[1])
        return ids

    def close(self) -> None:
        """End its own threads; the program's are the program's."""
        self._alone.close()

    def _run(self, operation: Op, step: Step, numbers: int) -> None:
        pool = self._pool if numbers >= _SHARED_FROM else self._alone
        pool.run((Op * 1)(operation), 1, step)
