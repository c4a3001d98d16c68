"""The engine process: opens an engine, takes sequences in, steps the batch, sends a frame per step.

Two threads: the main one computes, the other reads the socket (`inbox`). An engine that schedules its sequences itself
is run by `async_loop`.
"""

from __future__ import annotations

import gc
import logging
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from ..config.engines import ENGINES, ENGINES_OF_TASKS
from ..core import logs
from ..core.errors import ServingError, lacks_machine, lacks_memory, printable
from ..core.registry import load_object
from ..core.sequence_request import SequenceRequest
from ..core.types import TokenEvent
from ..ipc import event_loop
from ..ipc.encodings import EncodeRequest
from ..ipc.framing import encode_frame
from ..ipc.protocol import (
    AdapterChange,
    AnyMessage,
    Beat,
    Cancel,
    Done,
    Encoded,
    EngineMetrics,
    Open,
    Opened,
    SetVocabulary,
    Status,
    StepReport,
    Stop,
)
from ..usercode.module import put_on_path
from .async_loop import METRICS_EVERY_S, AsyncLoop
from .inbox import Inbox
from .interface import (
    AsyncEngine,
    Encoder,
    EngineSettings,
    Limits,
    PendingAdapter,
    Progress,
    RollingBatch,
    SteppedEngine,
    error_event,
    failed_encoding,
)
from .row import Engine, engine_of

log = logging.getLogger(__name__)

EXIT_LOAD_FAILED = 3
_NO_IDS: Final[Mapping[int, str]] = {}


def serve(sock: socket.socket) -> None:
    """Open the engine of the first message, then run it until a Stop comes."""
    inbox = Inbox(sock)
    opening = inbox.first()
    assert isinstance(opening, Open)
    with _failure_reported(sock):
        engine, opener, settings = _opener(opening)
    if isinstance(opener, type) and issubclass(opener, AsyncEngine):
        event_loop.run(_serve_async(sock, inbox, opening, opener, settings))
        return
    with _failure_reported(sock):
        further = (inbox.probe_ids,) if engine.takes_probe_ids else ()
        batch: SteppedEngine[Any] = opener(settings, _progress_to(sock), *further)
    _send_opened(sock, batch, opening)
    _step_until_stopped(sock, inbox, batch, settings.beat_s)


def _opener(opening: Open) -> tuple[Engine[Any], Any, EngineSettings]:
    """The engine's row, its class or opening function, and its settings."""
    engine = engine_of(opening.rolling_batch)
    if engine.name not in (*ENGINES, *ENGINES_OF_TASKS):
        put_on_path(Path.cwd())  # the model directory, which may contain the user's engine
    return engine, load_object(engine.opens), msgspec.msgpack.decode(opening.settings, type=engine.settings_type)


@contextmanager
def _failure_reported(sock: socket.socket) -> Iterator[None]:
    """Exit with `EXIT_LOAD_FAILED` after telling the worker why, whatever is raised."""
    try:
        yield
    except Exception as exc:  # the loop's boundary: whatever a model raises while loading is reported to the worker
        why = Status("failed", reason_of(exc), no_memory=lacks_memory(exc), lacking=lacks_machine(exc))
        sock.sendall(encode_frame([why]))
        sys.exit(EXIT_LOAD_FAILED)


def _progress_to(sock: socket.socket) -> Progress:
    def progress(what: str, done: int, total: int) -> None:
        sock.sendall(encode_frame([Status("loading", printable(what), done, total)]))

    return progress


def _send_opened(sock: socket.socket, limits: Limits, opening: Open) -> None:
    opened = Opened(
        limits.max_model_len,
        limits.max_batch_size,
        limits.kv_blocks,
        limits.block_size,
        limits.description,
        limits.takes_images,
        limits.info if limits.info.runner else msgspec.structs.replace(limits.info, runner=opening.rolling_batch),
        limits.vocabulary,
        limits.max_batch_tokens,
        limits.pooling,
        limits.decoder,
    )
    sock.sendall(encode_frame([opened]))
    gc.freeze()
    gc.enable()


async def _serve_async(
    sock: socket.socket, inbox: Inbox, opening: Open, engine_class: type[AsyncEngine], settings: EngineSettings
) -> None:
    with _failure_reported(sock):
        engine = await engine_class.open(settings, _progress_to(sock))
    _send_opened(sock, engine, opening)
    await AsyncLoop(sock, inbox, engine, settings.beat_s).run()


def _step_until_stopped(sock: socket.socket, inbox: Inbox, batch: SteppedEngine[Any], beat_s: float = 1.0) -> None:
    report = Encoded if isinstance(batch, Encoder) else StepReport
    http_request_ids: dict[int, str] = {}  # of the requests in the batch
    beside = _Beside(sock, inbox, batch)
    while True:
        events: list[Any] = []
        messages = inbox.take(at_most_s=beat_s if batch.idle else batch.pause_s)
        beside.tell()
        if not messages and batch.idle:
            sock.sendall(encode_frame([Beat()]))
            continue
        beside.measure_soon()
        for message in messages:
            if isinstance(message, Stop):
                batch.close()
                return
            if isinstance(message, SequenceRequest | EncodeRequest):
                http_request_ids[message.id] = message.http_request_id
            elif isinstance(message, Cancel):
                http_request_ids.pop(message.id, None)
            events += beside.change(message) if isinstance(message, AdapterChange) else apply_message(batch, message)
        steps = not batch.idle
        if steps:
            events += run_step(batch, http_request_ids)
        for event in events:
            if event.ends:
                http_request_ids.pop(event.request_id, None)
        stats = batch.stats
        if not steps:  # they still describe the previous step, which has been reported
            stats = msgspec.structs.replace(stats, step_s=0.0, step_sequences=0)
        sock.sendall(encode_frame([report(events, stats)]))


class _Beside:
    """What the loop tells between two steps: that adapters have been changed, whose files are read beside the steps;
    and the engine's own metrics."""

    def __init__(self, sock: socket.socket, inbox: Inbox, batch: SteppedEngine[Any]) -> None:
        self._sock = sock
        self._inbox = inbox
        self._batch = batch
        self._pending: dict[int, PendingAdapter] = {}
        self._done: list[Done] = []
        self._metrics_due_s: float | None = None  # None: nothing has happened since they were told

    def change(self, change: AdapterChange) -> list[TokenEvent]:
        """Change an adapter, or begin to. There are no events."""
        batch = self._batch
        assert isinstance(batch, RollingBatch)
        try:
            if change.operation == "unregister":
                batch.remove_adapter(change.name, change.version)
                self._done.append(Done(change.id))
            else:
                pending = batch.add_adapter(change.name, change.version, change.source, change.options)
                self._pending[change.id] = pending
                pending.read.add_done_callback(lambda _: self._inbox.wake())
        except Exception as exc:  # the loop's boundary: what can't be changed costs no sequence anything
            self._done.append(_failed_change(change.id, exc))
        self._inbox.wake()
        return []

    def measure_soon(self) -> None:
        """Tell the metrics before long."""
        if self._metrics_due_s is None:
            self._metrics_due_s = time.monotonic() + METRICS_EVERY_S

    def tell(self) -> None:
        """Take the adapters that have been read, and tell what is due."""
        for number, pending in [(n, p) for n, p in self._pending.items() if p.read.done()]:
            del self._pending[number]
            try:
                pending.complete()
                self._done.append(Done(number))
            except Exception as exc:  # the loop's boundary: as above
                self._done.append(_failed_change(number, exc))
        if self._done:
            self._sock.sendall(encode_frame(self._done))
            self._done = []
        if self._metrics_due_s is not None and time.monotonic() >= self._metrics_due_s:
            self._metrics_due_s = None
            if isinstance(self._batch, RollingBatch) and (families := self._batch.metrics()):
                self._sock.sendall(encode_frame([EngineMetrics(families)]))


def _failed_change(number: int, failure: Exception) -> Done:
    if not isinstance(failure, ServingError):
        log.exception("an adapter can't be changed")
    event = error_event(number, failure)
    return Done(number, error=event.error or "", error_kind=event.error_kind)


def reason_of(failure: Exception) -> str:
    """Why a model can't be opened, in words. The traceback of a foreign error is printed too."""
    if isinstance(failure, ServingError):
        return failure.message
    traceback.print_exception(failure)
    return printable(f"{type(failure).__name__}: {failure}")


def apply_message(batch: SteppedEngine[Any], message: AnyMessage) -> list[Any]:
    """Pass a message on to an engine. A sequence that can't be added gets an error event, which is returned."""
    if isinstance(message, Cancel):
        batch.cancel(message.id)
    elif isinstance(message, SetVocabulary) and isinstance(batch, RollingBatch):
        batch.set_vocabulary(message.vocabulary)
    elif isinstance(message, SequenceRequest | EncodeRequest):
        with logs.about(message.http_request_id):
            try:
                _add(batch, message)
            except Exception as exc:  # the loop's boundary: a sequence that can't be added affects no other
                if not isinstance(exc, ServingError):
                    log.exception("a sequence can't be added")
                    batch.cancel(message.id)
                failed = error_event if isinstance(message, SequenceRequest) else failed_encoding
                return [failed(message.id, exc)]
    return []


def _add(batch: SteppedEngine[Any], message: SequenceRequest | EncodeRequest) -> None:
    if isinstance(message, EncodeRequest):
        assert isinstance(batch, Encoder)
        batch.add(message)
    else:
        assert isinstance(batch, RollingBatch)
        batch.add(message)


def run_step(batch: SteppedEngine[Any], http_request_ids: Mapping[int, str] = _NO_IDS) -> list[Any]:
    """The events of a step. One that fails costs the sequence at fault, and no other."""
    try:
        return batch.step()
    except Exception as exc:  # the loop's boundary: a failing step costs its culprit only
        log.exception("a step failed")
        events = batch.isolate(exc)  # if it raises, this process ends
    for event in events:
        if event.error is not None:
            log.error(
                "the step failed because of a sequence, which ends: %s",
                event.error,
                extra={"request_id": http_request_ids.get(event.request_id, "")},
            )
    return events
