"""Dynamic batching: calls that arrive close together become one call of the handler.

Runs in the worker's event loop. It gathers items and distributes answers, whatever their types; `batch_parts`
implements DJL's form of a batch.

An error belongs to one call. When the batch function raises, its items are run again one by one, so that only the item
at fault fails. The handler then sees items twice: a handler whose calls have side effects should not be batched. When
the batch function returns, nothing is run again, even if every answer is an error.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..ipc.event_loop import result_of
from .errors import contained, one_line

T = TypeVar("T")
R = TypeVar("R")

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Waiting(Generic[T, R]):
    """A call that has not been answered; `at_s` is its arrival on the event loop's clock, in seconds."""

    item: T
    answer: asyncio.Future[R]
    at_s: float

    def resolve(self, answer: R | BaseException) -> None:
        """Hand over the answer, unless the caller has gone."""
        if self.answer.done():
            return
        if isinstance(answer, BaseException):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)


class DynamicBatcher(Generic[T, R]):
    """Gathers up to `batch_size` items, waiting at most `max_batch_delay_ms` after the first; one batch runs at a time.

    `run(items)` returns an answer for each item, in order; an answer that is an exception is raised to its caller.
    If `run` raises, the items are run again one by one; what it raises for one item is raised to that item's caller.
    """

    def __init__(
        self,
        run: Callable[[Sequence[T]], Coroutine[Any, Any, Sequence[R | Exception]]],
        batch_size: int,
        max_batch_delay_ms: int,
        discard: Callable[[R | Exception], None] = lambda _: None,
    ) -> None:
        """`discard` is called with each answer whose caller has gone."""
        self._run = run
        self._discard = discard
        self._batch_size = batch_size
        self._delay_s = max_batch_delay_ms / 1000
        self._waiting: list[_Waiting[T, R]] = []
        self._arrived = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None

    async def submit(self, item: T) -> R:
        """The answer to `item`.

        Cancelling this call removes the item, unless its batch has begun. A batch that has lost all of its callers is
        cancelled: one that never ended would hold up every other.
        """
        loop = asyncio.get_running_loop()
        waiting: _Waiting[T, R] = _Waiting(item, loop.create_future(), loop.time())
        self._waiting.append(waiting)
        self._arrived.set()
        if self._worker is None:
            self._worker = asyncio.create_task(self._work(), context=contextvars.Context())  # not this caller's alone
        try:
            return await result_of(waiting.answer, self._discard)
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    async def close(self) -> None:
        """Stop, and cancel the callers that wait."""
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
                    finally:  # no caller is left without an answer, even when this task is cancelled
                        for waiting in batch:
                            waiting.answer.cancel()
        finally:
            self._worker = None

    async def _gather(self) -> None:
        """Wait until a batch is full, its first item has waited long enough, or no item is waiting."""
        while self._waiting and len(self._waiting) < self._batch_size:
            self._arrived.clear()
            try:
                async with asyncio.timeout_at(self._waiting[0].at_s + self._delay_s):
                    await self._arrived.wait()
            except TimeoutError:
                return

    async def _answer(self, batch: Sequence[_Waiting[T, R]]) -> None:
        # As a task, so that its exception can be inspected.
        run = asyncio.ensure_future(self._run([waiting.item for waiting in batch]))

        def left(_: asyncio.Future[R]) -> None:
            if all(waiting.answer.done() for waiting in batch):
                run.cancel()

        for waiting in batch:
            waiting.answer.add_done_callback(left)
        try:
            await asyncio.wait((run,))
        finally:
            run.cancel()
        failure = contained(asyncio.CancelledError()) if run.cancelled() else run.exception()
        if failure is None:
            for waiting, answer in zip(batch, run.result(), strict=True):
                if waiting.answer.done():
                    self._discard(answer)
                waiting.resolve(answer)
        elif len(batch) == 1:
            batch[0].resolve(failure)
        elif not all(waiting.answer.done() for waiting in batch):
            log.warning(
                "a batch of %d failed (%s): its calls are run one by one",
                *(len(batch), one_line(failure)),
            )
            for waiting in batch:
                if not waiting.answer.done():
                    await self._answer([waiting])
