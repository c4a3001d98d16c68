"""The worker's side of the protocol with the front end, and the error boundary around handlers.

Runs in the worker's event loop. Whatever a handler raises ends here: a ServingError is answered in the dialect of its
call; anything else is logged with the user's frames, and answered as a HandlerError with a one-line cause. No other
call is affected.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import operator
import os
import socket
import uuid
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Final

import msgspec

from ..config import ModelConfig, device_id, has_gpu
from ..config.model import NOT_OF_CALLS
from ..core import logs
from ..core.budgets import LARGE_BODY_BYTES
from ..core.call_trace import CallTrace, trace_id
from ..core.call_usage import CallUsage
from ..core.errors import HandlerError, ServingError, UnavailableError, lacks_machine, lacks_memory, printable
from ..dialects import dialect
from ..formats.forms import is_form
from ..handler import Context, Handler
from ..inputs import Input
from ..ipc import event_loop
from ..ipc.channel import Channel
from ..ipc.heartbeat import Heart
from ..ipc.protocol import (
    AdapterChange,
    AnyMessage,
    BodyChunk,
    Call,
    Cancel,
    Done,
    Load,
    LogLevel,
    Status,
    Stop,
    Taken,
    Trace,
    UsageReport,
    WorkerInfo,
)
from ..usercode.errors import contained, is_cancellation, one_line
from . import EXIT_HANDLER_FAILED, EXIT_LOAD_FAILED, EXIT_ORPHANED, EXIT_STOPPED, EXIT_TIMEOUT
from .entry_point import find_handler
from .freed_memory import FreedMemory
from .reply import REQUEST_ID, ChannelMetrics, ChannelReply
from .thread import HandlerThread
from .tracebacks import account, user_traceback

log = logging.getLogger(__name__)

#: How long a handler, or a clean-up before it, may take to return after its call has timed out, until the worker ends.
TIMEOUT_GRACE_S: Final = 1.0
#: Time for Handler.close, and for the kernel to take the last frames.
CLOSE_TIMEOUT_S: Final = 3.0
FLUSH_TIMEOUT_S: Final = 1.0


def _is_large_form(call: Call) -> bool:
    """Whether reading a call takes more than looking at its headers."""
    return len(call.body) > LARGE_BODY_BYTES and is_form(call.headers.get("content-type", ""))


class _Flight:
    """One call that is being answered."""

    def __init__(self, call: Call, reply: ChannelReply, request_id: str) -> None:
        self.call = call
        self.reply = reply
        self.request_id = request_id
        self.inputs = Input()  # empty until the call has been parsed
        self.cancelled = False
        self.task: asyncio.Task[None]


class Service:
    """One model, from its Load to the end of the process."""

    def __init__(self) -> None:
        self.thread = HandlerThread()
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[int] = self._loop.create_future()
        self._flights: dict[int, _Flight] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._handler: Handler | None = None
        self._loading: asyncio.Task[None] | None = None
        self._config = ModelConfig(name="")
        self._properties: dict[str, str] = {}
        self._stopping = False
        self._freed_memory = FreedMemory()
        self._channel: Channel
        self._heart: Heart
        self._metrics: ChannelMetrics

    async def run(self, sock: socket.socket) -> int:
        """Serve the front end at the other end of `sock`; returns the process's exit status (see the package)."""
        self._channel = Channel(self._on_messages, self._on_closed)
        self._metrics = ChannelMetrics(self._channel)
        await self._channel.attach(sock)
        status = await self._exit
        self._metrics.flush()
        try:
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                await self._channel.drain()
        except TimeoutError:
            log.warning("the front end did not take the last answers")
        return status

    # ------------------------------------------------------------------------------------ from the front end

    def _on_messages(self, messages: list[AnyMessage]) -> None:
        for message in messages:
            match message:
                case Call():
                    self._accept(message)
                case Cancel():
                    self._cancel(message)
                case Taken():
                    if (flight := self._flights.get(message.id)) is not None:
                        flight.reply.taken(message.size)
                case AdapterChange():
                    self._spawn(self._change_adapter(message))
                case Load():
                    self._loading = asyncio.create_task(self._load(message))
                case LogLevel():
                    logs.set_level(message.level)
                case Stop():
                    self._spawn(self._stop())
                case _:
                    log.error("a %s is not for a worker", type(message).__name__)

    def _on_closed(self) -> None:
        if not self._stopping:
            os._exit(EXIT_ORPHANED)  # at once: a user's thread may be blocked for ever
        self._end(EXIT_STOPPED)

    def _accept(self, call: Call) -> None:
        request_id = call.headers.get(REQUEST_ID) or uuid.uuid4().hex
        trace, usage = self._trace_of(call), self._usage_of(call)
        reply = ChannelReply(self._channel, call.id, request_id, self._metrics.call_ends, trace, usage)
        flight = _Flight(call, reply, request_id)
        self._flights[call.id] = flight
        flight.task = asyncio.create_task(self._serve(flight))
        flight.task.add_done_callback(lambda _: self._land(flight))

    def _trace_of(self, call: Call) -> CallTrace | None:
        if not call.traced:
            return None
        return CallTrace(lambda events, attributes: self._channel.send(Trace(call.id, events, attributes)))

    def _usage_of(self, call: Call) -> CallUsage | None:
        if not call.counted:
            return None
        return CallUsage(lambda prompt, generated: self._channel.send(UsageReport(call.id, prompt, generated)))

    def _cancel(self, message: Cancel) -> None:
        flight = self._flights.get(message.id)
        if flight is None:
            return  # the answer ended before the cancellation arrived
        if not flight.cancelled:
            flight.cancelled = True
            flight.reply.abandon()
            flight.task.cancel()
        if message.reason == "timeout":
            self._spawn(self._check_released(flight.inputs))

    async def _stop(self) -> None:
        self._stopping = True
        if self._loading is not None:
            self._loading.cancel()
        for flight in self._flights.values():
            flight.cancelled = True
            flight.task.cancel()
        try:
            if self._handler is not None:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._handler.close()
        except TimeoutError:
            log.warning("the handler did not close within %g s", CLOSE_TIMEOUT_S)
        except BaseException as exc:  # the user's code may raise anything; the worker ends all the same
            log.error("the handler's close failed: %s", user_traceback(exc))
        self._end(EXIT_STOPPED)

    # ------------------------------------------------------------------------------------ loading

    async def _load(self, message: Load) -> None:
        try:
            config = self._config = msgspec.msgpack.decode(message.model, type=ModelConfig)
            self._heart = Heart(self._channel, config.serving.heartbeat_timeout_s)
            placed = device_id(config.option.device, gpu=has_gpu())
            properties = {"model_dir": config.path} | config.properties | {"device_id": placed}
            self._properties = {key: value for key, value in properties.items() if key not in NOT_OF_CALLS}
            self._channel.send(Status("loading", "loading its handler"))
            handler = await self.thread.run((), find_handler, config, self.thread)
            await handler.load(self._context(config, properties))
            info = _info_of(handler)
        except BaseException as exc:  # the user's code may raise anything while it loads
            if is_cancellation(exc):
                raise
            why = account(contained(exc))
            failed = Status("failed", why, no_memory=lacks_memory(exc), lacking=lacks_machine(exc))
            self._channel.send(failed)  # the front end shows it
            self._end(EXIT_LOAD_FAILED)
        else:
            event_loop.freeze_heap()
            self._handler = handler
            self._channel.send(Status("ready", info=info))

    def _context(self, config: ModelConfig, properties: Mapping[str, str]) -> Context:
        return Context(
            name=config.name,
            version=config.version,
            model_dir=Path(config.path),
            config=config,
            metrics=self._metrics,
            progress=self._progress,
            fail=lambda reason: self._call_soon(self._fail, printable(str(reason))),
            answers=lambda yes: self._call_soon(self._heart.set_answering, bool(yes)),
            run=self.thread.run,
            properties=properties,
        )

    def _progress(self, what: str, done: int, total: int) -> None:
        """Report loading progress for `Context`. The arguments are checked here, where an error reaches the user's
        code.
        """
        if not isinstance(what, str):
            raise TypeError(f"what is being loaded is {what!r}, expected str")
        status = Status("loading", printable(what), int(operator.index(done)), int(operator.index(total)))
        self._call_soon(self._channel.send, status)

    # ------------------------------------------------------------------------------------ serving

    async def _serve(self, flight: _Flight) -> None:
        """The error boundary."""
        logs.work_on(flight.request_id, trace_id(flight.call.headers.get("traceparent", "")))
        try:
            if self._handler is None:
                raise UnavailableError(f"model {self._config.name!r} is loading")
            read = functools.partial(
                Input.from_call,
                flight.call,
                self._properties,
                model_name=self._config.name,
                model_version=self._config.version,
                function_name=self._config.option.handler,
                request_id=flight.request_id,
            )
            flight.inputs = await asyncio.to_thread(read) if _is_large_form(flight.call) else read()
            flight.inputs.trace, flight.inputs.usage = flight.reply.trace, flight.reply.usage
            await self._handler.serve(flight.inputs, flight.reply)
            if not flight.reply.finished:
                raise HandlerError("the handler returned without finishing its answer")
        except BaseException as exc:  # the user's code may raise anything; it costs this request only
            if is_cancellation(exc):
                raise
            self._answer_failure(flight, contained(exc))

    async def _change_adapter(self, change: AdapterChange) -> None:
        """The other error boundary: the front end gets whatever a change raises, and the model goes on."""
        done = Done(change.id)
        try:
            assert self._handler is not None  # it is asked of a worker that is ready
            await self._handler.change_adapter(change)
        except BaseException as exc:  # the user's code may raise anything
            if is_cancellation(exc):
                raise
            failure = contained(exc)
            if not isinstance(failure, ServingError):
                log.error("model %s: adapter %s: %s", self._config.name, change.name, account(failure))
                failure = HandlerError(one_line(failure))
            done = Done(change.id, error=failure.message, error_kind=failure.kind)
        self._channel.send(done)

    def _answer_failure(self, flight: _Flight, failure: Exception) -> None:
        """Answer with an error; log faults that the model's owner has to fix, with their place in the user's code."""
        error = failure if isinstance(failure, ServingError) else HandlerError(one_line(failure))
        if isinstance(error, HandlerError):
            log.error("model %s: %s", self._config.name, account(failure), extra={"request_id": flight.request_id})
        self._answer_error(flight, error)

    def _answer_error(self, flight: _Flight, error: ServingError) -> None:
        reply = flight.reply
        if reply.finished:
            return
        if reply.trace is not None:
            reply.trace.note({"error.type": error.kind})
        answering_dialect = dialect(flight.call.dialect)
        if reply.started:
            failed_stream_end = answering_dialect.failed_stream_end(error, reply.headers, self._config)
            if failed_stream_end is None:
                reply.break_off()
            else:
                reply.finish(failed_stream_end)
        else:
            answer = answering_dialect.error(error, self._config, operation=flight.call.operation, inputs=flight.inputs)
            reply.start(answer.status, answer.headers)
            reply.finish(answer.body)

    def _land(self, flight: _Flight) -> None:
        """Finish a call whose task has ended for any reason; make sure that it has been answered."""
        if flight.cancelled:
            self._spawn(self._let_go(flight))
        else:
            self._flights.pop(flight.call.id, None)
        self._freed_memory.call_ended(len(flight.call.body) + len(flight.call.context))
        if flight.task.cancelled():
            if not flight.cancelled:
                self._answer_failure(flight, contained(asyncio.CancelledError()))
        elif (bug := flight.task.exception()) is not None:
            log.critical("answering an error failed", exc_info=bug, extra={"request_id": flight.request_id})
            if flight.reply.started:
                flight.reply.break_off()
            else:
                flight.reply.start(500, {"content-type": "text/plain"})
                flight.reply.finish(b"internal error")
        self._metrics.flush()

    async def _let_go(self, flight: _Flight) -> None:
        """Tell the front end when a cancelled call no longer occupies this worker, so that its slot is free."""
        await self.thread.released(flight.inputs, None)
        self._flights.pop(flight.call.id, None)
        if flight.reply.usage is not None:
            flight.reply.usage.send()
        self._channel.send(BodyChunk(flight.call.id, b"", True))

    async def _check_released(self, inputs: Input) -> None:
        if not await self.thread.released(inputs, TIMEOUT_GRACE_S):
            what = "the handler" if self.thread.busy else "a clean-up (Output.finalize, or a generator's end) before it"
            with logs.about(inputs.request_id):
                self._give_up(EXIT_TIMEOUT, f"{what} did not return in time (request {inputs.request_id})")

    def _fail(self, reason: str) -> None:
        self._give_up(EXIT_HANDLER_FAILED, f"the handler cannot go on: {reason}")

    def _give_up(self, status: int, reason: str) -> None:
        log.error("model %s: %s; this worker ends", self._config.name, reason)
        self._metrics.flush()  # the front end ignores what comes after this Status
        self._channel.send(Status("failed", reason))
        self._end(status)

    def _end(self, status: int) -> None:
        if not self._exit.done():
            self._exit.set_result(status)

    # ------------------------------------------------------------------------------------ loop

    def _call_soon(self, function: Callable[..., None], *args: object) -> None:
        """Call a function in the loop, from any thread."""
        self._loop.call_soon_threadsafe(function, *args)

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _info_of(handler: Handler) -> WorkerInfo:
    capacity = max(1, handler.capacity)
    return WorkerInfo(
        capacity=capacity,
        at_once=handler.at_once or capacity,
        queries=handler.queries,
        task=handler.task,
        engine=handler.engine_info,
        example="" if handler.example is None else json.dumps(handler.example),
        defaults=handler.defaults or {},
    )
