"""What another process answers with a `Done`. Runs in the event loop of the front end and of workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..core.errors import ServingError, from_kind
from .protocol import AdapterChange, Done, Expand


class Replies:
    """The answers that are waited for, by the ids of what was asked."""

    def __init__(self) -> None:
        self._awaited: dict[int, asyncio.Future[list[int]]] = {}

    async def to(self, asked: AdapterChange | Expand, send: Callable[[], object]) -> list[int]:
        """Have a message sent, and wait for its answer.

        Raises:
            ServingError: the other process could not do it, or will not answer (`fail`).
        """
        answer: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self._awaited[asked.id] = answer
        try:
            send()
            return await answer
        finally:
            del self._awaited[asked.id]

    def answered(self, done: Done) -> None:
        """Take an answer; nobody may wait for it any more."""
        answer = self._awaited.get(done.id)
        if answer is None or answer.done():
            return
        if done.error:
            answer.set_exception(from_kind(done.error_kind, done.error))
        else:
            answer.set_result(done.ids)

    def fail(self, error: Callable[[], ServingError]) -> None:
        """What is waited for will not come, as the other process has ended."""
        for answer in self._awaited.values():
            if not answer.done():
                answer.set_exception(error())
