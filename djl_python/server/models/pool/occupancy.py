"""How many calls a pool has, for its model's metrics and for those that wait until it has none.

Runs in the front end's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ...metrics.model_metrics import ModelMetrics


class Occupancy:
    """Shows the latest numbers of a pool's calls.

    Args:
        on_unused: called when the last call has left.
    """

    def __init__(self, metrics: ModelMetrics, on_unused: Callable[[], None]) -> None:
        self._metrics = metrics
        self._on_unused = on_unused
        self._counted = (0, 0, 0)  # as added to the gauges
        self._idle = asyncio.Event()
        self._idle.set()
        self._was_unused = True

    def update(self, queued: int, in_flight: int, background: int, *, busy: bool, unused: bool) -> None:
        """Take note of a change.

        Args:
            queued, in_flight, background: as the metrics have them: interactive calls that wait, all that workers have,
                and those of batches among the latter.
            busy: whether a client waits for an answer.
            unused: whether no call waits, those of batches included, and none occupies a worker.
        """
        # Only differences are added: during a reload, a model has two pools.
        before, self._counted = self._counted, (queued, in_flight, background)
        self._metrics.queued.inc(queued - before[0])
        self._metrics.in_flight.inc(in_flight - before[1])
        self._metrics.batch_in_flight.inc(background - before[2])
        if busy:
            self._idle.clear()
        else:
            self._idle.set()
        was_unused, self._was_unused = self._was_unused, unused
        if unused and not was_unused:
            self._on_unused()

    async def wait_idle(self) -> None:
        """Wait until no client waits for an answer."""
        await self._idle.wait()
