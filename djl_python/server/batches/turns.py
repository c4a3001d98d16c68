"""Which of the waiting batches runs next. Runs in the front end's event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ...core.access.shares import fits
from ...core.turns.fair_queue import FairQueue
from ...core.turns.precedence import Precedence


class _Waiter:
    """A batch that waits, and then runs. `started` is done when its turn comes."""

    def __init__(self, owner: str) -> None:
        self.precedence = Precedence(owner)
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Turns:
    """Turns to run, which owners share: a batch waits behind its owner's others, and not behind all of another's.

    Args:
        most: how many run at a time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._queue = FairQueue[_Waiter]()
        self._running = Counter[str]()

    @asynccontextmanager
    async def turn(self, owner: str) -> AsyncIterator[None]:
        """Wait for a turn, and give it back at the end."""
        waiter = _Waiter(owner)
        self._queue.add(waiter)
        self._start_next()
        try:
            await waiter.started
            yield
        finally:
            if waiter in self._queue:
                self._queue.remove(waiter)
            else:
                self._queue.leave(waiter)
                self._running[owner] -= 1
            self._start_next()

    def _start_next(self) -> None:
        """Give free turns to waiting batches."""
        while (waiter := self._next()) is not None:
            self._queue.take(waiter)
            self._running[waiter.precedence.tenant] += 1
            waiter.started.set_result(None)

    def _next(self) -> _Waiter | None:
        """The batch that gets the next turn; None: no waiting batch may have one now."""
        running = self._running.total()
        for waiter in self._queue.firsts:
            owner = waiter.precedence.tenant
            if not waiter.started.cancelled() and fits(owner, self._running[owner], running, self._most):
                return waiter
        return None
