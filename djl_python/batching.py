"""Dynamic batching: calls that arrive close together become one call of the handler.

Runs in the worker's event loop. It gathers and distributes, and knows nothing of what it carries: the form that calls
and answers have in a batch is `batch_parts`'s.

An error belongs to one call. When a batch fails as a whole, its items are run again one by one, so that only the
culprit fails. The handler then sees the items twice: a handler whose calls have effects of their own should not be
batched. What a batch function returns is never run again, also when it is an error for every item.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .user_errors import contained, one_line

T = TypeVar("T")
R = TypeVar("R")

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Waiting(Generic[T, R]):
    """A call that has not been answered; `at_s` is when it came, in the loop's time."""

    item: T
    answer: asyncio.Future[R]
    at_s: float

    def settle(self, answer: R | BaseException) -> None:
        """Hand over the answer, unless the caller has gone."""
        if self.answer.done():
            return
        if isinstance(answer, BaseException):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)


class DynamicBatcher(Generic[T, R]):
    """Gathers up to `batch_size` items, waiting at most `max_batch_delay_ms` after the first; one batch runs at a time.

    `run(items)` gives an answer for each item, in order; an answer that is an exception is raised to its own caller.
    If it raises, the items are run again singly; what it raises for a single item is raised to that one's caller.
    """

    def __init__(
        self,
        run: Callable[[Sequence[T]], Coroutine[Any, Any, Sequence[R | Exception]]],
        batch_size: int,
        max_batch_delay_ms: int,
        discard: Callable[[R | Exception], None] = lambda _: None,
    ) -> None:
        """`discard` is given answers whose callers have gone."""
        self._run = run
        self._discard = discard
        self._batch_size = batch_size
        self._delay_s = max_batch_delay_ms / 1000
        self._waiting: list[_Waiting[T, R]] = []
        self._arrived = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None

    async def submit(self, item: T) -> R:
        """The answer to `item`. Cancelling it takes the item out, unless its batch has begun."""
        loop = asyncio.get_running_loop()
        waiting: _Waiting[T, R] = _Waiting(item, loop.create_future(), loop.time())
        self._waiting.append(waiting)
        self._arrived.set()
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        try:
            return await waiting.answer
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    async def close(self) -> None:
        """Stop; callers that wait are cancelled."""
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.wait((self._worker,))
        for waiting in self._waiting:
            waiting.answer.cancel()

    async def _work(self) -> None:
        try:
            while self._waiting:
                await self._gather()
                batch = self._waiting[: self._batch_size]
                del self._waiting[: self._batch_size]
                if batch:
                    try:
                        await self._answer(batch)
                    finally:  # nobody is left without an answer, also when this task is cancelled
                        for waiting in batch:
                            waiting.answer.cancel()
        finally:
            self._worker = None

    async def _gather(self) -> None:
        """Wait until a batch is full, or its first item has waited long enough, or nobody waits any more."""
        while self._waiting and len(self._waiting) < self._batch_size:
            self._arrived.clear()
            try:
                async with asyncio.timeout_at(self._waiting[0].at_s + self._delay_s):
                    await self._arrived.wait()
            except TimeoutError:
                return

    async def _answer(self, batch: Sequence[_Waiting[T, R]]) -> None:
        # As a task, so that what it raises is a value to look at.
        run = asyncio.ensure_future(self._run([waiting.item for waiting in batch]))
        try:
            await asyncio.wait((run,))
        finally:
            run.cancel()
        failure = contained(asyncio.CancelledError()) if run.cancelled() else run.exception()
        if failure is None:
            for waiting, answer in zip(batch, run.result(), strict=True):
                if waiting.answer.done():
                    self._discard(answer)
                waiting.settle(answer)
        elif len(batch) == 1:
            batch[0].settle(failure)
        else:
            log.warning(
                "a batch of %d failed (%s): its calls are run one by one",
                *(len(batch), one_line(failure)),
            )
            for waiting in batch:
                if not waiting.answer.done():
                    await self._answer([waiting])
