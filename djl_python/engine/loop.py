"""The engine process: opens the engine that it is told, takes sequences in, steps the batch, sends a frame per step.

Two threads: the main one computes, the other reads the socket (`inbox`). An engine that schedules its sequences itself
is run by `async_loop`.
"""

from __future__ import annotations

import gc
import logging
import socket
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from ..config.engines import ENGINES
from ..core import logs
from ..core.errors import ServingError, lacks_memory, printable
from ..core.pictures import Pictures
from ..core.registry import load_object
from ..core.types import TokenEvent
from ..ipc import event_loop
from ..ipc.protocol import Add, AnyMessage, Cancel, Know, Open, Opened, Status, Step, Stop, encode_frame
from ..usercode.module import put_on_path
from .async_loop import AsyncLoop
from .inbox import Inbox
from .interface import AsyncEngine, EngineSettings, Limits, Progress, RollingBatch, engine_of, error_event

log = logging.getLogger(__name__)

EXIT_LOAD_FAILED = 3
_NO_IDS: Final[Mapping[int, str]] = {}


def serve(sock: socket.socket) -> None:
    """Open what the first message says, then run it until told to stop."""
    inbox = Inbox(sock)
    opening = inbox.first()
    assert isinstance(opening, Open)
    with _failure_told(sock):
        opener, settings = _opener(opening)
    if isinstance(opener, type) and issubclass(opener, AsyncEngine):
        event_loop.run(_serve_async(sock, inbox, opening, opener, settings))
        return
    with _failure_told(sock):
        batch: RollingBatch = opener(settings, _progress_to(sock))
    _tell_opened(sock, batch, opening)
    _step_until_stopped(sock, inbox, batch)


def _opener(opening: Open) -> tuple[Any, EngineSettings]:
    """The engine's class, or the function that opens it, and what to open it with."""
    engine = engine_of(opening.rolling_batch)
    if engine.name not in ENGINES:
        put_on_path(Path.cwd())  # the model directory, which may contain the user's engine
    return load_object(engine.opens), msgspec.msgpack.decode(opening.settings, type=engine.settings_type)


@contextmanager
def _failure_told(sock: socket.socket) -> Iterator[None]:
    """Exit with `EXIT_LOAD_FAILED` after telling the worker why, whatever is raised."""
    try:
        yield
    except Exception as exc:  # the loop's boundary: whatever a model raises while loading is reported to the worker
        sock.sendall(encode_frame([Status("failed", reason_of(exc), no_memory=lacks_memory(exc))]))
        sys.exit(EXIT_LOAD_FAILED)


def _progress_to(sock: socket.socket) -> Progress:
    def progress(what: str, done: int, total: int) -> None:
        sock.sendall(encode_frame([Status("loading", printable(what), done, total)]))

    return progress


def _tell_opened(sock: socket.socket, limits: Limits, opening: Open) -> None:
    opened = Opened(
        limits.max_model_len,
        limits.max_batch_size,
        limits.kv_blocks,
        limits.block_size,
        limits.description,
        limits.takes_images,
        limits.info if limits.info.runner else msgspec.structs.replace(limits.info, runner=opening.rolling_batch),
        limits.vocabulary,
    )
    sock.sendall(encode_frame([opened]))
    gc.freeze()
    gc.enable()


async def _serve_async(
    sock: socket.socket, inbox: Inbox, opening: Open, engine_class: type[AsyncEngine], settings: EngineSettings
) -> None:
    with _failure_told(sock):
        engine = await engine_class.open(settings, _progress_to(sock))
    _tell_opened(sock, engine, opening)
    await AsyncLoop(sock, inbox, engine).run()


def _step_until_stopped(sock: socket.socket, inbox: Inbox, batch: RollingBatch) -> None:
    request_ids: dict[int, str] = {}  # of the sequences in the batch
    while True:
        events: list[TokenEvent] = []
        for message in inbox.take(wait=batch.idle):
            if isinstance(message, Stop):
                batch.close()
                return
            if isinstance(message, Add):
                request_ids[message.id] = message.request_id
            elif isinstance(message, Cancel):
                request_ids.pop(message.id, None)
            events += _apply(batch, message)
        steps = not batch.idle
        if steps:
            events += _step(batch, request_ids)
        for event in events:
            if event.finish is not None or event.error is not None:
                request_ids.pop(event.request_id, None)
        stats = batch.stats
        if not steps:  # they still tell of the step before, which has been reported
            stats = msgspec.structs.replace(stats, step_s=0.0, step_sequences=0)
        sock.sendall(encode_frame([Step(events, stats)]))


def reason_of(failure: Exception) -> str:
    """Why a model can't be opened, in words. What is not ours is printed too."""
    if isinstance(failure, ServingError):
        return failure.message
    traceback.print_exception(failure)
    return printable(f"{type(failure).__name__}: {failure}")


def _apply(batch: RollingBatch, message: AnyMessage) -> list[TokenEvent]:
    if isinstance(message, Cancel):
        batch.cancel(message.id)
    elif isinstance(message, Know):
        batch.know(message.vocabulary)
    elif isinstance(message, Add):
        with logs.about(message.request_id):
            try:
                assert not isinstance(message.images, Pictures)  # they are for engines that schedule by themselves
                batch.add(message.id, message.prompt_ids, message.sampling, message.images)
            except Exception as exc:  # the loop's boundary: what can't be added costs no other sequence anything
                if not isinstance(exc, ServingError):
                    log.exception("a sequence can't be added")
                    batch.cancel(message.id)
                return [error_event(message.id, exc)]
    return []


def _step(batch: RollingBatch, request_ids: Mapping[int, str] = _NO_IDS) -> list[TokenEvent]:
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
                extra={"request_id": request_ids.get(event.request_id, "")},
            )
    return events
