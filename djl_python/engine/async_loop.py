"""Runs an engine that schedules its sequences itself: a task for each sequence, a frame for each turn of the loop.

Runs in the engine process, in an asyncio loop in the main thread; another thread reads the socket (`inbox`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Coroutine
from typing import Final

from ..core import logs
from ..core.errors import GenerationError, ServingError
from ..core.sequence_request import SequenceRequest
from ..core.types import TokenEvent
from ..ipc.framing import encode_frame
from ..ipc.protocol import (
    AdapterChange,
    AnyMessage,
    Beat,
    Cancel,
    Done,
    EngineMetrics,
    Expand,
    SetVocabulary,
    StepReport,
    Stop,
)
from .inbox import Inbox
from .interface import AsyncEngine, error_event

log = logging.getLogger(__name__)

#: Seconds between two reports of an engine's own metrics while it works. They are hundreds of numbers.
METRICS_EVERY_S: Final = 5.0


class AsyncLoop:
    """Gives an `AsyncEngine` a rolling batch's face: messages in, steps out.

    Events that arrive in one turn of the loop leave as one step. Every message is answered by a step, though it may be
    an empty one. While nothing leaves, a `Beat` does every `beat_s` seconds: the worker knows that this loop runs.
    """

    def __init__(self, sock: socket.socket, inbox: Inbox, engine: AsyncEngine, beat_s: float = 1.0) -> None:
        self._sock = sock
        self._inbox = inbox
        self._engine = engine
        self._beat_s = beat_s
        self._sent = True  # a frame, since the last beat was due
        self._loop = asyncio.get_running_loop()
        self._sequences: dict[int, asyncio.Task[None]] = {}
        self._asked: set[asyncio.Task[None]] = set()
        self._events: list[TokenEvent] = []
        self._sending = False
        self._metrics_due = False
        self._ended: asyncio.Future[None] = self._loop.create_future()

    async def run(self) -> None:
        """Run until told to stop.

        Raises:
            Exception: the engine's `isolate` raised it: no sequence can succeed any more.
        """
        self._beat()
        self._measure_soon()  # not at once: the worker is not ready yet, and the front end would not listen
        self._inbox.when_arrived(lambda: self._loop.call_soon_threadsafe(self._take))
        try:
            await self._ended
        finally:
            for task in (*self._sequences.values(), *self._asked):
                task.cancel()
            await self._engine.close()

    def _take(self) -> None:
        for message in self._inbox.take():
            self._apply(message)
        self._send_soon()

    def _apply(self, message: AnyMessage) -> None:
        if isinstance(message, SequenceRequest):
            self._sequences[message.id] = self._loop.create_task(self._generate(message))
        elif isinstance(message, Cancel):
            if (sequence := self._sequences.pop(message.id, None)) is not None:
                sequence.cancel()
        elif isinstance(message, Expand):
            self._answer(message.id, self._engine.expand(message.pictures))
        elif isinstance(message, AdapterChange):
            self._answer(message.id, self._change(message))
        elif isinstance(message, SetVocabulary):
            self._engine.set_vocabulary(message.vocabulary)
        elif isinstance(message, Stop) and not self._ended.done():
            self._ended.set_result(None)

    async def _generate(self, request: SequenceRequest) -> None:
        logs.work_on(request.http_request_id)
        ended = False
        try:
            async with contextlib.aclosing(self._engine.generate(request)) as events:
                async for event in events:
                    self._events.append(event)
                    self._send_soon()
                    ended = event.ends
            if not ended:  # nobody else would tell the worker that no more comes
                raise GenerationError("the engine ended the sequence without saying why")
        except Exception as exc:  # the loop's boundary: a sequence that fails costs no other one anything
            self._events.append(error_event(request.id, exc))
            self._send_soon()
            if not isinstance(exc, ServingError):
                log.exception("a sequence failed")
                self._isolate(exc)
        finally:
            self._sequences.pop(request.id, None)

    async def _change(self, change: AdapterChange) -> list[int]:
        if change.operation == "unregister":
            await self._engine.remove_adapter(change.name, change.version)
        else:
            await self._engine.add_adapter(change.name, change.version, change.source, change.options)
        return []

    def _answer(self, message_id: int, work: Coroutine[None, None, list[int]]) -> None:
        """Do a request of the worker concurrently with everything else."""

        async def answer() -> None:
            try:
                done = Done(message_id, await work)
            except Exception as exc:  # the loop's boundary: a failed request affects no sequence
                event = error_event(message_id, exc)
                done = Done(message_id, error=event.error or "", error_kind=event.error_kind)
                if not isinstance(exc, ServingError):
                    log.exception("what the worker asked for failed")
                    self._isolate(exc)
            if not self._ended.done():
                self._sock.sendall(encode_frame([done]))

        task = self._loop.create_task(answer())
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)

    def _isolate(self, cause: Exception) -> None:
        try:
            self._engine.isolate(cause)
        except Exception as exc:  # passed on: `run` raises it, and the process ends
            if not self._ended.done():
                self._ended.set_exception(exc)

    def _beat(self) -> None:
        if self._ended.done():
            return
        if not self._sent:
            self._sock.sendall(encode_frame([Beat()]))
        self._sent = False
        self._loop.call_later(self._beat_s, self._beat)

    def _send_soon(self) -> None:
        if not self._sending:
            self._sending = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._sending, self._sent = False, True
        events, self._events = self._events, []
        self._sock.sendall(encode_frame([StepReport(events, self._engine.stats)]))
        self._measure_soon()

    def _measure_soon(self) -> None:
        if not self._metrics_due:
            self._metrics_due = True
            self._loop.call_later(METRICS_EVERY_S, self._send_metrics)

    def _send_metrics(self) -> None:
        self._metrics_due = False
        if not self._ended.done() and (families := self._engine.metrics()):
            self._sock.sendall(encode_frame([EngineMetrics(families)]))
