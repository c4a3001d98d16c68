"""Which of the waiting batches runs next. Runs in the front end's event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ...core.access.shares import fits


class Turns:
    """Turns to run, which owners share: a batch waits behind its owner's others, and not behind all of another's.

    The owner with the fewest running batches goes first; among equals, the one that was served least recently.

    Args:
        most: how many run at a time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._running = Counter[str]()
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []  # in order of arrival
        # The number of the last turn of each owner who is here. One who comes goes before the owner of the latest turn,
        # and after those who have waited since an earlier one.
        self._served: dict[str, float] = {}
        self._number = 0

    @asynccontextmanager
    async def turn(self, owner: str) -> AsyncIterator[None]:
        """Wait for a turn, and give it back at the end."""
        waiter = (owner, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._served.setdefault(owner, self._number - 0.5)
        self._go_on()
        try:
            await waiter[1]
            yield
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            else:
                self._running[owner] -= 1
            self._go_on()

    def _go_on(self) -> None:
        """Give free turns to waiting batches."""
        while self._waiting:
            running = self._running.total()
            waiting = [one for one in self._waiting if not one[1].cancelled()]
            may = [one for one in waiting if fits(one[0], self._running[one[0]], running, self._most)]
            if not may:
                break
            owner, future = chosen = min(may, key=lambda one: (self._running[one[0]], self._served[one[0]]))
            self._waiting.remove(chosen)
            self._running[owner] += 1
            self._number += 1
            self._served[owner] = self._number
            future.set_result(None)
        self._running += Counter()  # forgets owners with 0
        here = {owner for owner, _ in self._waiting} | self._running.keys()
        self._served = {owner: number for owner, number in self._served.items() if owner in here}
