"""The engine process: takes sequences in, steps the batch, sends one frame of events a step.

Two threads: the main one computes, the other reads the socket, so that messages wait in memory while a step runs and
the worker's death ends this process at once.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import socket
import sys
import threading
import traceback
from collections import deque
from pathlib import Path

import msgspec

from ..core.errors import ServingError, printable
from ..core.types import TokenEvent
from ..ipc.protocol import (
    Add,
    AnyMessage,
    Cancel,
    FrameReader,
    Know,
    Open,
    Opened,
    Status,
    Step,
    Stop,
    TrialText,
    encode_frame,
)
from ..usercode.module import put_on_path
from .interface import ROLLING_BATCHES, EngineSettings, RollingBatch, error_event, rolling_batch_class
from .trial_text import sent_text

log = logging.getLogger(__name__)

_READ_BYTES = 1 << 16
EXIT_LOAD_FAILED = 3
EXIT_BROKEN_FRAME = 4


class Inbox:
    """Messages from the worker, read by a thread of their own."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._messages: deque[AnyMessage] = deque()
        self._arrived = threading.Condition()
        threading.Thread(target=self._read, name="inbox", daemon=True).start()

    def first(self) -> AnyMessage:
        """Wait for a message, and take it alone."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._messages)
            return self._messages.popleft()

    def take(self, *, wait: bool) -> list[AnyMessage]:
        """Everything that has arrived; with `wait`, at least one message."""
        with self._arrived:
            if wait:
                self._arrived.wait_for(lambda: self._messages)
            messages = list(self._messages)
            self._messages.clear()
        return messages

    def _read(self) -> None:
        status = EXIT_BROKEN_FRAME
        try:
            reader = FrameReader()
            with contextlib.suppress(ConnectionError):  # from a worker that left without reading all that it was sent
                while data := self._sock.recv(_READ_BYTES):
                    messages = reader.feed(data)
                    for message in messages:
                        if isinstance(message, Open) and message.sends_text:
                            sent_text.expect()
                        elif isinstance(message, TrialText):
                            sent_text.arrive(message.ids)
                    with self._arrived:
                        self._messages += messages
                        self._arrived.notify()
            status = 0
        except ValueError as exc:
            log.critical("what the worker sent is not a frame: %s", exc)
        finally:
            os._exit(status)  # whatever ended this thread: nobody would hear the worker, or its end, any more


def serve(sock: socket.socket) -> None:
    """Open what the first message says, then step until told to stop."""
    inbox = Inbox(sock)
    batch = _open(sock, inbox)
    gc.freeze()
    gc.enable()
    while True:
        events: list[TokenEvent] = []
        for message in inbox.take(wait=batch.idle):
            if isinstance(message, Stop):
                batch.close()
                return
            events += _apply(batch, message)
        steps = not batch.idle
        if steps:
            events += _step(batch)
        stats = batch.stats
        if not steps:  # they still tell of the step before, which has been reported
            stats = msgspec.structs.replace(stats, step_s=0.0, step_sequences=0)
        sock.sendall(encode_frame([Step(events, stats)]))


def _open(sock: socket.socket, inbox: Inbox) -> RollingBatch:
    """Load the engine; exit with `EXIT_LOAD_FAILED` after telling why if that can't be done."""
    opening = inbox.first()
    assert isinstance(opening, Open)

    def progress(what: str, done: int, total: int) -> None:
        sock.sendall(encode_frame([Status("loading", printable(what), done, total)]))

    try:
        settings = msgspec.msgpack.decode(opening.settings, type=EngineSettings)
        if opening.rolling_batch not in ROLLING_BATCHES:
            put_on_path(Path.cwd())  # the model directory, which may contain the user's engine
        batch = rolling_batch_class(opening.rolling_batch)(settings, progress)
    except Exception as exc:  # the loop's boundary: whatever a model raises while loading is reported to the worker
        sock.sendall(encode_frame([Status("failed", reason_of(exc))]))
        sys.exit(EXIT_LOAD_FAILED)
    opened = Opened(
        batch.max_model_len,
        batch.max_batch_size,
        batch.kv_blocks,
        batch.block_size,
        batch.description,
        batch.takes_images,
        batch.info if batch.info.runner else msgspec.structs.replace(batch.info, runner=opening.rolling_batch),
        batch.vocabulary,
    )
    sock.sendall(encode_frame([opened]))
    return batch


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
        try:
            batch.add(message.id, message.prompt_ids, message.sampling, message.images)
        except Exception as exc:  # the loop's boundary: what can't be added costs no other sequence anything
            if not isinstance(exc, ServingError):
                log.exception("a sequence can't be added")
                batch.cancel(message.id)
            return [error_event(message.id, exc)]
    return []


def _step(batch: RollingBatch) -> list[TokenEvent]:
    try:
        return batch.step()
    except Exception as exc:  # the loop's boundary: a failing step costs its culprit only
        log.exception("a step failed")
        return batch.isolate(exc)  # if it raises, this process ends
