"""The one thread that runs the user's synchronous code: imports, loading, calls, in order, never two at once.

Owned by the worker's event loop, which stays free to notice cancellations and the end of the front end. A running
function can't be interrupted: `released` says whether it has returned.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Final, ParamSpec, TypeVar

from ..ipc.event_loop import result_of
from ..outputs import Output
from ..usercode.errors import contained
from .tracebacks import user_traceback

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger(__name__)

_END: Final = object()


class _Job:
    """A function for the thread. `owners` are the calls that it runs for; a clean-up has no `result` to wait for."""

    def __init__(
        self, owners: Sequence[object], function: Callable[[], Any], result: asyncio.Future[Any] | None
    ) -> None:
        self.owners = owners
        self.function = function
        self.result = result
        self.started = False
        self.ended = asyncio.Event()


class HandlerThread:
    """Runs functions in the thread, for coroutines of the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: set[_Job] = set()
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="handler", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a function other than a clean-up is running. A clean-up is worth waiting for at exit."""
        return any(job.started for job in self._jobs if job.result is not None)

    async def run(self, owners: Sequence[object], function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a function and return its result. Cancelling this removes it from the queue, or discards its result.

        Raises:
            Exception: what the function raised, passed through `contained`.
        """
        result: asyncio.Future[R] = self._loop.create_future()
        context = contextvars.copy_context()  # records of the thread belong to the same request
        self._put(_Job(owners, lambda: context.run(function, *args, **kwargs), result))
        return await result_of(result, self._discard)

    def post(self, function: Callable[[], Any]) -> None:
        """Run a clean-up function after the queued ones; its exceptions are logged."""
        self._put(_Job((), function, None))

    def close(self) -> None:
        """Wait for the queued functions, and end the thread."""
        self._queue.put(None)
        self._thread.join()

    async def iterate(self, owners: Sequence[object], items: Iterable[Any]) -> AsyncIterator[Any]:
        """The items of a synchronous iterable, each fetched in the thread. Closing this closes its iterator."""
        iterator = await self.run(owners, iter, items)
        try:
            while (item := await self.run(owners, next, iterator, _END)) is not _END:
                yield item
        finally:
            if (close := getattr(iterator, "close", None)) is not None:
                self.post(close)

    async def released(self, owner: object, timeout_s: float | None) -> bool:
        """Whether `owner` is released within `timeout_s` seconds; None: wait for as long as it takes.

        A function that runs for it holds it, and so does a running clean-up ahead of its queued function. No call owns
        a clean-up: if it did not count, one that never returns would cause every timeout without being blamed.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while (job := self._holding(owner)) is not None:
                    await job.ended.wait()
        except TimeoutError:
            return False
        return True

    def _holding(self, owner: object) -> _Job | None:
        own = [job for job in self._jobs if any(owner is other for other in job.owners)]
        running = [job for job in self._jobs if job.started]
        return next((job for job in running if job in own or (own and job.result is None)), None)

    def _put(self, job: _Job) -> None:
        self._jobs.add(job)
        self._queue.put(job)

    # One callback into the loop per job: the library's thread pools need two, and a lock that both sides wait for. In a
    # worker that takes one call at a time, nothing else happens meanwhile.
    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            value: Any = None
            error: BaseException | None = None
            if job.result is None or not job.result.cancelled():
                job.started = True
                try:
                    value = job.function()
                except BaseException as exc:  # raised by user code, for the coroutine that waits
                    error = exc
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process is about to end
                self._loop.call_soon_threadsafe(self._end, job, value, error)
            del job, value, error  # do not keep them until the next job

    def _end(self, job: _Job, value: Any, error: BaseException | None) -> None:
        self._jobs.discard(job)
        job.ended.set()
        if job.result is None:
            if error is not None:
                log.error("clean-up failed: %s", user_traceback(contained(error)))
        elif not job.result.done():
            if error is None:
                job.result.set_result(value)
            else:
                job.result.set_exception(contained(error))
        else:
            self._discard(value)

    def _discard(self, value: object) -> None:
        if isinstance(value, Output):
            self.post(value.execute_finalize)  # it will not be sent
