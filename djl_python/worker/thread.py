"""The one thread that runs a synchronous handler: its import, its loading, its calls, in order, never two at once.

Owned by the worker's event loop, which stays free to notice cancellations and the end of the front end. A running
function can't be interrupted: `released` tells whether it came back.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Final, ParamSpec, TypeVar

from ..errors import HandlerError
from .tracebacks import user_traceback

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger(__name__)

_END: Final = object()


class _Job:
    """A function in the thread. `owners` are the calls that wait for it."""

    def __init__(self, owners: Sequence[object]) -> None:
        self.owners = owners
        self.started = False
        self.ended = asyncio.Event()


class HandlerThread:
    """Runs functions in the thread, for coroutines of the loop."""

    def __init__(self) -> None:
        self._executor = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="handler")
        self._loop = asyncio.get_running_loop()
        self._jobs: set[_Job] = set()

    @property
    def busy(self) -> bool:
        """Whether a function is running."""
        return any(job.started for job in self._jobs)

    async def run(self, owners: Sequence[object], function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """The result of a function. Cancelling this takes it out of the queue, or discards its result.

        Raises:
            HandlerError: the function called sys.exit.
            RuntimeError: it raised StopIteration, which no coroutine can raise.
        """
        job = _Job(owners)
        future = self._executor.submit(_run, job, lambda: function(*args, **kwargs))
        self._jobs.add(job)
        future.add_done_callback(lambda _: self._tell_end(job))
        return await asyncio.wrap_future(future)

    def post(self, function: Callable[[], Any]) -> None:
        """Have a function called after what is queued; what it raises is logged."""

        def log_failure(future: concurrent.futures.Future[Any]) -> None:
            if not future.cancelled() and (exc := future.exception()) is not None:
                log.error("clean-up failed: %s", user_traceback(exc))

        self._executor.submit(_run, None, function).add_done_callback(log_failure)

    async def iterate(self, owners: Sequence[object], items: Iterable[Any]) -> AsyncIterator[Any]:
        """The items of a synchronous iterable, each fetched in the thread. It is closed when this is."""
        iterator = await self.run(owners, iter, items)
        try:
            while (item := await self.run(owners, next, iterator, _END)) is not _END:
                yield item
        finally:
            if (close := getattr(iterator, "close", None)) is not None:
                self.post(close)

    async def released(self, owner: object, timeout_s: float) -> bool:
        """Whether no function is running for `owner`, or it ends within `timeout_s`."""
        for job in [job for job in self._jobs if job.started and any(owner is other for other in job.owners)]:
            try:
                async with asyncio.timeout(timeout_s):
                    await job.ended.wait()
            except TimeoutError:
                return False
        return True

    def _tell_end(self, job: _Job) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process is about to end
            self._loop.call_soon_threadsafe(self._end, job)

    def _end(self, job: _Job) -> None:
        self._jobs.discard(job)
        job.ended.set()


def _run(job: _Job | None, function: Callable[[], R]) -> R:
    if job is not None:
        job.started = True
    try:
        return function()
    except StopIteration as exc:
        raise RuntimeError("the handler raised StopIteration") from exc
    except SystemExit as exc:
        raise HandlerError(f"the handler called sys.exit({exc.code!r})") from exc
