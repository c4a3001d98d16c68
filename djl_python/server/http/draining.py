"""The unfinished answers that a server waits for before it ends.

Runs in the front end's event loop.
"""

from __future__ import annotations

import asyncio
from typing import Any


class Draining:
    """The pages that are being made, and the answers that the kernel has not taken yet.

    Attributes:
        begun: whether the server is about to end: calls are refused with 503, and connections close after their answer.
    """

    def __init__(self) -> None:
        self.begun = False
        self._unsent: set[asyncio.Future[None]] = set()
        self._doing: set[asyncio.Future[None]] = set()
        self._waiting: set[asyncio.Future[Any]] = set()

    def begin(self) -> None:
        """The server is about to end. What waits for a model to be loaded is cancelled: no model would answer it."""
        self.begun = True
        for task in list(self._waiting):
            task.cancel()

    def waiting(self, task: asyncio.Future[Any]) -> None:
        """Track a request that waits until its model is loaded."""
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)
        if self.begun:
            task.cancel()

    def keep(self, task: asyncio.Future[None]) -> None:
        """Keep a reference to the task of an unfinished page: the event loop alone would not."""
        self._doing.add(task)
        task.add_done_callback(self._doing.discard)

    @property
    def doing(self) -> int:
        """How many pages are still being made."""
        return len(self._doing)

    async def wait_done(self) -> None:
        """Wait until every page that is being made has been answered."""
        if self._doing:
            await asyncio.wait(self._doing)

    def sending(self, sent: asyncio.Future[None]) -> None:
        """Track a complete answer that the kernel has not taken yet; `sent` is done when it has."""
        self._unsent.add(sent)
        sent.add_done_callback(self._unsent.discard)

    async def wait_sent(self, timeout_s: float | None = None) -> None:
        """Wait until the kernel has taken every complete answer, at most `timeout_s` seconds."""
        if self._unsent:
            await asyncio.wait(self._unsent, timeout=timeout_s)
