"""The start of a worker: in its turn, and unless it is not wanted any more. Runs in the front end's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from ..placement import Started


class Turn:
    """One worker's turn among those that want to load.

    Args:
        turns: has a place for each that may load; None: all may.
    """

    def __init__(self, turns: asyncio.Semaphore | None) -> None:
        self._turns = turns
        self._is_taken = False

    @property
    def is_awaited(self) -> bool:
        """Whether others have to end loading first."""
        return self._turns is not None and self._turns.locked()

    async def take(self, stopping: asyncio.Event) -> None:
        """Wait until the worker may load, or until it is not to load any more."""
        if self._turns is None:
            return
        taken = asyncio.ensure_future(self._turns.acquire())
        stopped = asyncio.ensure_future(stopping.wait())
        await asyncio.wait((taken, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        self._is_taken = not taken.cancel()

    def give_back(self) -> None:
        """Let another worker load, if this one has a turn."""
        if self._is_taken and self._turns is not None:
            self._is_taken = False
            self._turns.release()


async def begun(start: Coroutine[Any, Any, Started], stopping: asyncio.Event, gives_up: bool) -> Started | None:
    """A worker that has been started; None: starting it was given up, and nothing is left of it.

    Args:
        gives_up: whether to give up when `stopping` is set meanwhile. On this machine, starting takes but a moment.
    """
    starting = asyncio.create_task(start)
    stopped = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done() and gives_up:
            starting.cancel()
        await asyncio.wait((starting,))
        return None if starting.cancelled() else starting.result()
    finally:
        starting.cancel()
        stopped.cancel()
