"""Runs batches from validating to completed. Runs in the front end's event loop.

A batch goes through OpenAI's states; each is saved before its work begins. After a restart a batch goes on: while
requests were being answered, from its journal; otherwise from the beginning of its state.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from ...batch import outputs
from ...batch.journal import Journal, JournalError, JournalHead
from ...batch.lines import Fault, InputFile, RequestLine, Rules, scan
from ...batch.results import CANCELLED, EXPIRED, BatchReply
from ...batch.runner import Run, Send, finished
from ...core.access.api_key import ANYONE, ApiKey
from ...core.errors import PayloadError, lacks_room
from ...core.turns.precedence import ANY, Precedence
from ...dialects.shared.batches import (
    Batch,
    BatchFault,
    BatchFaults,
    BatchRequest,
    BatchUsage,
    InputTokensDetails,
    OutputTokensDetails,
    RequestCounts,
)
from .calls import Origin
from .store import ENDED, KEPT_S, BatchState, Store, new_id
from .turns import Turns

log = logging.getLogger(__name__)

#: A full disk fails no batch: the batch waits, and looks for room after so many seconds.
FULL_WAIT_S: Final = 10.0
#: How many requests of a batch wait for a worker or run at a time.
CONCURRENCY: Final = 256
_HOUR_S: Final = 3600
_EXPIRED: Final = outputs.Gap(EXPIRED, "This request could not be executed before the completion window expired.")
_CANCELLED: Final = outputs.Gap(CANCELLED, "The batch was cancelled before this request was executed.")
_CANCELLABLE: Final = frozenset({"validating", "in_progress", "cancelling"})


#: `Send` for a request of this batch.
BatchSend = Callable[[RequestLine, Origin], Awaitable[BatchReply]]


class Jobs:
    """The batches of a server that have not ended.

    Args:
        send: answers a request of a batch.
        endpoints: where requests may go.
        max_running: how many batches run at a time.
        max_requests: how many requests a batch may have.
    """

    def __init__(
        self, store: Store, send: BatchSend, endpoints: Collection[str], *, max_running: int, max_requests: int
    ) -> None:
        self._store = store
        self._send = send
        self._endpoints = endpoints
        self._max_requests = max_requests
        self._turns = Turns(max_running)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Go on with what an earlier server began."""
        for state in self._store.states():
            if state.batch.status not in ENDED and state.batch.id not in self._tasks:
                log.info("batch %s goes on: %s", state.batch.id, state.batch.status)
                self._begin(state.batch.id)

    async def close(self) -> None:
        """Stop; every batch can go on from what is on disk."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def create(
        self,
        wanted: BatchRequest,
        trace: Callable[[str], Mapping[str, str]],
        key: ApiKey = ANYONE,
        precedence: Precedence = ANY,
    ) -> Batch:
        """Begin a batch over a kept file.

        Args:
            trace: gives the context that the spans of its requests are linked with, of its id.
            key: the owner's.
            precedence: its requests' tenant and priority.

        Raises:
            OverloadedError: too many have not ended.
        """
        now = int(time.time())
        hours = int(wanted.completion_window.removesuffix("h"))
        batch = Batch(
            id=new_id("batch_"),
            endpoint=wanted.endpoint,
            input_file_id=wanted.input_file_id,
            completion_window=wanted.completion_window,
            status="validating",
            created_at=now,
            expires_at=now + hours * _HOUR_S,
            metadata=wanted.metadata,
        )
        expiry = wanted.output_expires_after
        kept_s = KEPT_S if expiry is None else expiry.seconds
        created = dict(trace(batch.id))
        made = BatchState(batch, new_id("file-"), new_id("file-"), kept_s, created, key.name, key.models, precedence)
        await self._store.save(made)
        self._begin(batch.id)
        return batch

    async def cancel(self, batch_id: str) -> Batch:
        """Have a batch answer no more requests; the answers so far become its output.

        Raises:
            KeptNotFoundError: there is none.
            PayloadError: it is at its end, or its files are being written.
        """
        batch = self._store.state(batch_id).batch
        if batch.status not in _CANCELLABLE:
            raise PayloadError(f"batch_id: a batch with status '{batch.status}' can't be cancelled", "batch_id")
        if batch.status != "cancelling":
            # Its task is cancelled in the same turn of the loop: it must not begin to finish the batch in between.
            if (task := self._tasks.get(batch_id)) is not None:
                task.cancel()
            await _set(self._store, batch_id, status="cancelling", cancelling_at=_now())
        return self._store.state(batch_id).batch

    def _begin(self, batch_id: str) -> None:
        state = self._store.state(batch_id)
        batch = state.batch
        rules = Rules(urls=(batch.endpoint,), max_lines=self._max_requests)
        origin = Origin(batch_id, state.trace, state.models, state.precedence)
        job = _Job(self._store, batch_id, lambda request: self._send(request, origin), rules)
        task = self._tasks[batch_id] = asyncio.create_task(job.run(self._turns))
        task.add_done_callback(lambda _: self._tasks.pop(batch_id))


class _Job:
    """One batch, from its present state to its end."""

    def __init__(self, store: Store, batch_id: str, send: Send, rules: Rules) -> None:
        self._store = store
        self._id = batch_id
        self._send = send
        self._rules = rules
        self._source: InputFile | None = None
        self._journal: Journal | None = None

    async def run(self, turns: Turns) -> None:
        """Bring the batch to its end. If this task is cancelled, leave the batch as it is, unless its status is
        cancelling.

        An error of the disk fails the batch, but a full disk only makes it wait.
        """
        reported = False
        while True:
            try:
                await self._unless_cancelling(self._in_turn(turns))
                if self._batch.status == "cancelling":
                    await self._finish("cancelled", _CANCELLED)
                return
            except (OSError, JournalError) as exc:
                if not lacks_room(exc):
                    log.warning("batch %s has failed: %s", self._id, exc)
                    await self._fail([Fault("server_error", str(exc))])
                    return
                if not reported:
                    log.warning("batch %s waits for room on the disk: %s", self._id, exc)
                reported = True
            finally:
                await self._close_journal()
            await self._unless_cancelling(asyncio.sleep(FULL_WAIT_S))

    async def _in_turn(self, turns: Turns) -> None:
        if self._batch.status != "cancelling":
            async with turns.turn(self._store.state(self._id).owner):
                await self._answer()

    async def _unless_cancelling(self, work: Awaitable[None]) -> None:
        """Do this, and end it early without an error if the batch is to be cancelled."""
        try:
            await work
        except asyncio.CancelledError:
            if self._batch.status != "cancelling":
                raise

    async def _close_journal(self) -> None:
        journal, self._journal = self._journal, None
        if journal is not None:
            try:
                await finished(asyncio.to_thread(journal.close))
            except OSError as exc:  # requests whose answers are not on the disk are answered again
                log.warning("batch %s: its journal can't be closed: %s", self._id, exc)

    @property
    def _batch(self) -> Batch:
        return self._store.state(self._id).batch

    async def _answer(self) -> None:
        source = await self._read()
        if source.faults:
            await self._fail(source.faults, source.fault_count)
            return
        if self._batch.status == "validating":
            log.info("batch %s: %d requests", self._id, source.count)
            await self._set(status="in_progress", in_progress_at=_now(), model=source.model or msgspec.UNSET)
        journal = await self._open(source)
        gap = None
        if self._batch.status == "in_progress":
            run = Run(source, journal, self._send, CONCURRENCY, on_result=self._publish)
            try:
                async with asyncio.timeout(self._batch.expires_at - time.time()):
                    await run.run()
            except TimeoutError:
                gap = _EXPIRED
            await asyncio.to_thread(journal.sync)  # the next state's work is complete
            await self._set(status="finalizing", finalizing_at=_now())
        elif journal.done < source.count:  # it had expired when the server ended
            gap = _EXPIRED
        await self._finish("completed" if gap is None else "expired", gap)

    async def _read(self) -> InputFile:
        path = self._store.path(self._batch.input_file_id)
        self._source = await asyncio.to_thread(scan, path, self._rules)
        return self._source

    async def _open(self, source: InputFile) -> Journal:
        head = JournalHead(source.sha256, source.count, self._batch.endpoint)
        path = self._store.journal(self._id)
        opening = asyncio.ensure_future(asyncio.to_thread(Journal.open, path, head))
        try:
            self._journal = await asyncio.shield(opening)
        except asyncio.CancelledError:  # the thread opens it all the same
            self._journal = await opening
            raise
        self._publish()
        return self._journal

    def _publish(self) -> None:
        """Publish its progress."""
        state, journal = self._store.state(self._id), self._journal
        assert journal is not None
        counts = RequestCounts(journal.head.count, journal.done - journal.failed, journal.failed)
        self._store.update(msgspec.structs.replace(state, batch=_replaced(state.batch, request_counts=counts)))

    async def _finish(self, status: str, gap: outputs.Gap | None) -> None:
        """Write the files, keep them, and end. May be done again from its beginning."""
        changes: dict[str, Any] = {"status": status, f"{status}_at": _now()}
        journal_path = self._store.journal(self._id)
        if self._journal is None and journal_path.exists():  # cancelled, and no server has gone on with it yet
            await self._open(await self._read())
        if self._journal is not None and self._source is not None:
            changes.update(await self._written(self._journal, self._source, gap))
        await self._set(**changes)
        if self._journal is not None:
            journal_path.unlink(missing_ok=True)
        counts = self._batch.request_counts
        log.info(
            "batch %s: %s, %d of %d requests answered, %d failed",
            *(self._id, status, counts.completed, counts.total, counts.failed),
        )

    async def _written(self, journal: Journal, source: InputFile, gap: outputs.Gap | None) -> dict[str, Any]:
        """Write both files; returns what changes in the batch."""
        state, changes = self._store.state(self._id), dict[str, Any]()
        for_output, for_errors = self._store.path(state.output_id), self._store.path(state.error_id)
        failed = await asyncio.to_thread(outputs.write_outputs, journal, for_output, for_errors, source, gap)
        for kind, file_id in (("output", state.output_id), ("error", state.error_id)):
            if self._store.path(file_id).exists():
                name = f"{self._id}_{kind}.jsonl"
                await self._store.register_file(file_id, name, "batch_output", state.output_kept_s, state.owner)
                changes[f"{kind}_file_id"] = file_id
        usage = journal.usage
        changes["request_counts"] = RequestCounts(source.count, journal.done - journal.failed, failed)
        changes["usage"] = BatchUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputTokensDetails(usage.cached_tokens),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputTokensDetails(usage.reasoning_tokens),
            total_tokens=usage.prompt_tokens + usage.completion_tokens,
        )
        return changes

    async def _fail(self, faults: Sequence[Fault], count: int = 0) -> None:
        reported = [BatchFault(fault.code, fault.message, fault.param, fault.line) for fault in faults]
        if count > len(reported):
            reported.append(BatchFault("too_many_errors", f"and {count - len(reported)} more", None, None))
        try:
            await _set(self._store, self._id, status="failed", failed_at=_now(), errors=BatchFaults(data=reported))
        except OSError as exc:  # the next server tries the batch again
            log.warning("batch %s: that it has failed can't be written: %s", self._id, exc)
        log.info("batch %s: failed, %s", self._id, reported[0].message)

    async def _set(self, **changes: Any) -> None:
        """Enter a state; it is published only once it is safely on the disk."""
        before = self._store.state(self._id)
        try:
            await _set(self._store, self._id, **changes)
        except OSError:
            if self._batch.status == changes["status"]:  # else it is to be cancelled since
                self._store.update(before)
            raise


async def _set(store: Store, batch_id: str, **changes: Any) -> None:
    state = store.state(batch_id)
    await store.save(msgspec.structs.replace(state, batch=_replaced(state.batch, **changes)))


def _replaced(batch: Batch, **changes: Any) -> Batch:
    return msgspec.structs.replace(batch, **changes)


def _now() -> int:
    return int(time.time())
