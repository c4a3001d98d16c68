"""Operations on models that go on by themselves: those on one model in turn, those on different ones side by side.

Runs in the front end's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from ...core.errors import ServingError

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

#: A model's name and version.
Key = tuple[str, str]


class Operations:
    """The operations that have been begun and not ended yet.

    Args:
        on_end: called with the key of each that has ended.
    """

    def __init__(self, on_end: Callable[[Key], None] = lambda _key: None) -> None:
        self._on_end = on_end
        self._tasks: set[asyncio.Task[Any]] = set()
        self._begun: Counter[Key] = Counter()
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()  # kept by those that wait for them

    def begin(
        self, key: Key, operation: Callable[P, Awaitable[T]], *arguments: P.args, **options: P.kwargs
    ) -> asyncio.Task[T]:
        """Perform an operation as soon as those have ended that were begun before it with the same key."""

        async def in_turn() -> T:
            async with self._locks.setdefault(key, asyncio.Lock()):
                return await operation(*arguments, **options)

        def ended(_task: asyncio.Task[T]) -> None:
            self._begun[key] -= 1
            if not self._begun[key]:
                del self._begun[key]
            self._on_end(key)

        self._begun[key] += 1
        task = self._keep(in_turn())
        task.add_done_callback(ended)
        return task

    def busy(self, key: Key) -> bool:
        """Whether an operation with this key has been begun and has not ended."""
        return key in self._begun

    def together(self, tasks: Iterable[asyncio.Task[None]]) -> asyncio.Task[None]:
        """A task that is done when all of these are."""

        async def all_of_them() -> None:
            await asyncio.gather(*tasks)

        return self._keep(all_of_them())

    async def wait(self) -> None:
        """Wait until every operation that has been begun has ended."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _keep(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ServingError):  # perhaps nobody awaits the task
            log.error("an operation on a model failed", exc_info=error)


async def unless(event: asyncio.Event, work: Coroutine[Any, Any, T], error: ServingError) -> T:
    """The result of `work`; once the event is set, `work` is cancelled, and `error` raised when that has ended."""
    if event.is_set():
        work.close()
        raise error
    doing, ended = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((doing, ended), return_when=asyncio.FIRST_COMPLETED)
        if event.is_set():
            raise error
        return doing.result()
    finally:
        ended.cancel()
        if doing.cancel():
            await asyncio.wait({doing})  # it may have something to clean up
        if not doing.cancelled():
            doing.exception()  # else asyncio logs that nobody has looked at it
