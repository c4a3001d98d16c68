"""What is left to do of a server's answers, which its end waits for.

Runs in the front end's event loop.
"""

from __future__ import annotations

import asyncio


class Draining:
    """The pages that are being made, and the answers that the kernel has not taken yet.

    Attributes:
        begun: whether the server is about to end: calls are refused with 503, and connections close after their answer.
    """

    def __init__(self) -> None:
        self.begun = False
        self._unsent: set[asyncio.Future[None]] = set()
        self._doing: set[asyncio.Future[None]] = set()

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
