"""The instances of models that may have workers: those that serve, those that will, and those whose requests finish.

Runs in the front end's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from .registration import reason_of_end
from .served_model import ServedModel


class ModelInstances:
    """Starts and ends instances.

    Args:
        drain_timeout_s: how many seconds the requests to an instance that ends get to finish.
        max_workers: how many workers of an instance are started, whatever it says; None: as many as it says.
    """

    def __init__(self, drain_timeout_s: float, max_workers: int | None = None) -> None:
        self._drain_timeout_s = drain_timeout_s
        self._max_workers = max_workers
        self._running: list[ServedModel] = []

    @property
    def running(self) -> Sequence[ServedModel]:
        """Those that were started, and have not ended."""
        return list(self._running)

    def start(self, model: ServedModel) -> None:
        """Start an instance's workers."""
        self._running.append(model)
        model.start(self._max_workers)

    async def retire(self, model: ServedModel) -> None:
        """Let an instance that gets no more requests answer those that it has, and end it."""
        model.pool.close_batches()
        with suppress(TimeoutError):  # `stop` fails the remaining requests
            async with asyncio.timeout(self._drain_timeout_s):
                await model.pool.wait_idle()
        await self.stop(model)

    async def stop(self, model: ServedModel) -> None:
        """End an instance now; the requests that it has fail."""
        await model.stop(reason_of_end(model))
        if model in self._running:
            self._running.remove(model)
