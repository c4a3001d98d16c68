"""Answers a batch's requests, several at a time, and appends their results to its journal. Runs on an event loop.

An error of the request is its result, in the error file. An error of the server is not: while it can't take requests
    (`NotTakenError`: a full queue, a model that loads, a server that restarts) they wait. A request at which the server
    failed is tried once more, alone, when all others have their results, so that a request which kills workers affects
no other.

A run may be cancelled, or killed, at any time; another goes on from the journal.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import BinaryIO, Final, TypeVar

from .journal import Journal, JournalRecord
from .lines import InputFile, RequestLine
from .results import NO_ANSWER, BatchReply, answered, unanswered

T = TypeVar("T")

#: Requests that are read from the input at a time, in a thread.
READ_AHEAD: Final = 64
#: Seconds that a request waits that could not be taken: at first, and at most.
FIRST_WAIT_S: Final = 0.25
MAX_WAIT_S: Final = 30.0
#: Statuses of a server's failure that may not happen again, LMI's 424 among them.
_TRY_AGAIN: Final = frozenset({424, *range(500, 600)})


class NotTakenError(Exception):
    """The server takes no requests now, whatever the request; `retry_after_s` is the server's, or 0."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NoReplyError(Exception):
    """The server took a request and did not answer it."""


class GivenUpError(Exception):
    """The server has taken no request for too long. The batch can go on later."""


#: Answers a request. Raises NotTakenError or NoReplyError.
Send = Callable[[RequestLine], Awaitable[BatchReply]]


class Run:
    """One run of a batch, until each request has its result.

    Args:
        concurrency: how many requests are with the server at a time.
        on_result: called after each result, with nothing: `journal` has the counts.
        patience_s: seconds without any answer after which a run gives up; None: never.
    """

    def __init__(
        self,
        source: InputFile,
        journal: Journal,
        send: Send,
        concurrency: int,
        *,
        on_result: Callable[[], None] = lambda: None,
        patience_s: float | None = None,
    ) -> None:
        self._source = source
        self._journal = journal
        self._send = send
        self._concurrency = concurrency
        self._on_result = on_result
        self._patience_s = patience_s
        self._heard_s = time.monotonic()
        self._again: list[int] = []
        self._results: asyncio.Queue[JournalRecord | None] = asyncio.Queue(2 * concurrency)

    async def run(self) -> None:
        """Run to the end.

        Raises:
            GivenUpError: see `patience_s`.
            OSError: the input can't be read, or the journal can't be written.
        """
        with self._source.path.open("rb") as file:
            try:
                async with asyncio.TaskGroup() as group:
                    writing = group.create_task(self._write())
                    await self._answer_all(file, self._journal.pending(), self._concurrency)
                    await self._answer_all(file, sorted(self._again), 1, last=True)
                    await self._results.put(None)
                    await writing
            except BaseExceptionGroup as failed:
                raise _first(failed) from failed
            except asyncio.CancelledError:
                await self._append(self._waiting_results())
                raise

    async def _answer_all(self, file: BinaryIO, indices: Sequence[int], most: int, *, last: bool = False) -> None:
        requests = _Requests(self._source.requests(indices, file))

        async def work() -> None:
            while (indexed_request := await requests.next()) is not None:
                await self._answer(*indexed_request, last=last)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(most, len(indices))):
                group.create_task(work())

    async def _answer(self, index: int, request: RequestLine, *, last: bool) -> None:
        try:
            reply = await self._patiently(request)
        except NoReplyError as exc:
            if last:
                line = unanswered(request.custom_id, NO_ANSWER, str(exc))
                await self._results.put(JournalRecord.of(index, line, failed=True))
            else:
                self._again.append(index)
            return
        self._heard_s = time.monotonic()
        if reply.status in _TRY_AGAIN and not last:
            self._again.append(index)
            return
        await self._results.put(JournalRecord.of(index, answered(request.custom_id, reply), failed=reply.failed))

    async def _patiently(self, request: RequestLine) -> BatchReply:
        """The reply to a request, once the server takes it."""
        for tries in itertools.count():
            try:
                return await self._send(request)
            except NotTakenError as exc:
                quiet_s = time.monotonic() - self._heard_s
                if self._patience_s is not None and quiet_s > self._patience_s:
                    raise GivenUpError(f"no request has been taken for {quiet_s:.0f} s: {exc}") from exc
                wait_s = min(MAX_WAIT_S, FIRST_WAIT_S * 2.0 ** min(tries, 10))
                await asyncio.sleep(max(exc.retry_after_s, wait_s * random.uniform(0.5, 1.0)))
        raise AssertionError("itertools.count ends")

    async def _write(self) -> None:
        """Append results to the journal, each time all that have arrived."""
        while True:
            results = [await self._results.get(), *self._waiting_results()]
            await self._append(results)
            if results[-1] is None:
                return

    def _waiting_results(self) -> list[JournalRecord | None]:
        return [self._results.get_nowait() for _ in range(self._results.qsize())]

    async def _append(self, results: Sequence[JournalRecord | None]) -> None:
        records = [record for record in results if record is not None]
        await finished(asyncio.to_thread(self._journal.append, records))
        for _ in records:
            self._on_result()


class _Requests:
    """Requests that several tasks take from, read in a thread."""

    def __init__(self, requests: Iterable[tuple[int, RequestLine]]) -> None:
        self._remaining = iter(requests)
        self._ahead: Iterator[tuple[int, RequestLine]] = iter(())
        self._lock = asyncio.Lock()

    async def next(self) -> tuple[int, RequestLine] | None:
        """The next request with its index; None: there is none."""
        async with self._lock:
            request = next(self._ahead, None)
            if request is None:
                read = await finished(asyncio.to_thread(lambda: list(itertools.islice(self._remaining, READ_AHEAD))))
                self._ahead = iter(read)
                request = next(self._ahead, None)
            return request


async def finished(work: Awaitable[T]) -> T:
    """The result of work in a thread, which can't be interrupted: a cancellation waits for it."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _first(failed: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first of the errors that are in a group of groups."""
    first = failed.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
