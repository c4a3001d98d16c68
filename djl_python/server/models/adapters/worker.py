"""Brings the adapters of one worker to the state that its model wants. Runs in the front end's event loop."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Final, Protocol

from ....core.errors import ServingError, WorkerDiedError
from ....ipc.protocol import AdapterChange, Done
from ....ipc.replies import Replies
from .adapter import Adapter, Adapters

log = logging.getLogger(__name__)

_ids: Final = itertools.count(1)


class Wanted(Protocol):
    """Gives the wanted adapters, which may change between two calls."""

    @property
    def wanted(self) -> Adapters:
        """By name."""
        ...


class WorkerAdapters:
    """The adapters of one worker, from its start to its end.

    Args:
        has: those that it has when it is ready.
        send: sends it a message.
    """

    def __init__(self, has: Adapters, send: Callable[[AdapterChange], None]) -> None:
        self._has = dict(has)
        self._send = send
        self._lost = False
        self._replies = Replies()
        self._turn = asyncio.Lock()

    def lacks(self, model: Wanted) -> bool:
        """Whether the worker's adapters differ from the wanted ones."""
        return self._next(model.wanted) is not None

    async def become(self, model: Wanted, *, even_so: bool = False) -> None:
        """Have the worker load the adapters that it lacks, and remove those that are no longer wanted.

        Args:
            even_so: whether to go on when the worker refuses a change, which is logged and not tried again.

        Raises:
            ServingError: the worker refused something.
            WorkerDiedError: it has ended; not raised with `even_so`.
        """
        async with self._turn:
            while (name := self._next(model.wanted)) is not None:
                now = model.wanted.get(name)
                try:
                    await self._make(name, now)
                except ServingError as exc:
                    if not even_so:
                        raise
                    if isinstance(exc, WorkerDiedError):
                        return
                    log.error("a worker has not what it should have of the adapter %s: %s", name, exc.message)
                if now is None:
                    del self._has[name]
                else:
                    self._has[name] = now

    def answered(self, done: Done) -> None:
        """The worker has answered."""
        self._replies.answered(done)

    def lost(self) -> None:
        """The worker has ended, and answers no more."""
        self._lost = True
        self._replies.fail(lambda: WorkerDiedError("the worker ended while its adapters were changed"))

    def _next(self, wanted: Adapters) -> str | None:
        """The name of an adapter that the worker lacks, or has in another registration."""
        names = (*self._has, *wanted)
        return next((name for name in names if self._has.get(name) is not wanted.get(name)), None)

    async def _make(self, name: str, now: Adapter | None) -> None:
        if self._lost:
            raise WorkerDiedError("the worker has ended")
        change_id = next(_ids)
        if now is None:
            change = AdapterChange(change_id, "unregister", name)
        elif name in self._has:
            change = AdapterChange(change_id, "update", name, now.source, now.options)
        else:
            change = AdapterChange(change_id, "register", name, now.source, now.options)
        await self._replies.to(change, lambda: self._send(change))
