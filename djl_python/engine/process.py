"""The worker's end of an engine process: spawns it, waits until its model is loaded, notices when it dies or halts.

Runs in the worker's event loop; imports no torch. `client` sends it sequences to generate from, `encoder_client` those
to encode.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import functools
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ..config import ModelConfig, Runtime, activated, devices_each, engine_environment, stages_each, workers_sharing
from ..config.sources import cache_root
from ..core import logs
from ..core.engine_info import EngineStats
from ..core.errors import WorkerDiedError, load_error
from ..core.metrics import MetricFamily
from ..core.types import ImagePrompt
from ..ipc.channel import Channel
from ..ipc.heartbeat import BEATS, HeartbeatListener
from ..ipc.package_path import package_path
from ..ipc.process_state import HALTED, CpuClock, halted
from ..ipc.processes import spawn
from ..ipc.protocol import (
    AdapterChange,
    AnyMessage,
    Done,
    EngineMetrics,
    Expand,
    Open,
    Opened,
    ProbeText,
    Status,
    Stop,
)
from ..ipc.replies import Replies
from .interface import EngineSettings, Progress
from .row import Engine

log = logging.getLogger(__name__)

#: How long an engine has to end once it has been told to.
CLOSE_TIMEOUT_S = 5.0
#: How long an engine that is not halted may say nothing: a step may take that long. A longer predict_timeout counts.
SILENCE_S = 60.0
DEATH = "the engine process ended unexpectedly"


@dataclass(frozen=True)
class Hooks:
    """Callbacks for an engine process's reports other than results.

    Attributes:
        progress: called with loading progress: (what, done, total).
        on_stats: called after every step.
        on_death: called once, with a reason, when the process ends unexpectedly after it was ready.
        on_metrics: called every few seconds with the metrics that the engine keeps itself.
        on_answers: called with False when an opened engine neither sends nor computes anything, and with True when it
            resumes. An engine that does not resume is killed.
    """

    progress: Progress
    on_stats: Callable[[EngineStats], None]
    on_death: Callable[[str], None]
    on_metrics: Callable[[list[MetricFamily]], None] = lambda families: None
    on_answers: Callable[[bool], None] = lambda yes: None


def common_settings(config: ModelConfig, model_path: Path, image_example: ImagePrompt | None = None) -> EngineSettings:
    """The part of a model's configuration that every engine gets."""
    option = config.option
    in_turn = option.rolling_batch == "disable"
    return EngineSettings(
        model_path=str(model_path),
        trust_remote_code=option.trust_remote_code,
        dtype=option.dtype,
        device=option.device,
        tensor_parallel_degree=devices_each(config),
        pipeline_parallel_degree=stages_each(config),
        max_batch_size=config.serving.batch_size if in_turn else option.max_rolling_batch_size,
        max_prefill_tokens=option.max_rolling_batch_prefill_tokens,
        max_model_len=option.max_model_len,
        gpu_memory_utilization=option.gpu_memory_utilization,
        workers=workers_sharing(config),
        image_example=image_example,
        max_images=option.max_images,
        adapters=config.adapters,
        properties=config.properties,
        beat_s=config.serving.heartbeat_timeout_s / BEATS,
    )


class EngineProcess(abc.ABC):
    """One engine process, once `_begin` has returned.

    Attributes:
        limits: what the loaded model allows.
    """

    limits: Opened

    def __init__(self, hooks: Hooks, config: ModelConfig) -> None:
        self._hooks = hooks
        self._replies = Replies()
        self._ids = itertools.count(1)
        self._opened: asyncio.Future[Opened] = asyncio.get_running_loop().create_future()
        self._closing = False
        self._answers = True
        self._silence_s = max(SILENCE_S, config.option.predict_timeout)
        self._beat_timeout_s = config.serving.heartbeat_timeout_s
        self._channel: Channel
        self._listener: HeartbeatListener
        self._cpu: CpuClock
        self._process: asyncio.subprocess.Process

    async def _begin(
        self,
        engine: Engine[Any],
        config: ModelConfig,
        settings: EngineSettings,
        probe_text: asyncio.Future[list[int]] | None = None,
    ) -> None:
        """Spawn the process and wait until its model is loaded.

        Raises:
            ModelLoadError: with the engine's reason.
        """
        options = engine.options_of(config)
        runtime = await asyncio.to_thread(_runtime, engine, config.cache_dir)
        environment = engine_environment(functools.partial(engine.environment, config, options))
        self._process, sock = await spawn(
            "djl_python.engine",
            log_name=f"{logs.name()}/engine",
            executable=runtime.executable,
            cwd=config.path or None,
            env=activated(environment, runtime),
        )
        self._channel = Channel(self._receive, self._lost)
        self._cpu = CpuClock(self.pid)
        self._listener = HeartbeatListener(self._channel, self._beat_timeout_s, self._judge)
        await self._channel.attach(sock)
        sends_text = probe_text is not None and engine.takes_probe_ids
        self._channel.send(Open(engine.name, msgspec.msgpack.encode(settings), sends_text=sends_text))
        if probe_text is not None and sends_text:
            probe_text.add_done_callback(self._send_text)
        try:
            self.limits = await self._opened
        except BaseException as reason:
            if isinstance(reason, asyncio.CancelledError):
                self._kill()  # it hears nothing while it loads, and has nothing to lose
            await self.close()
            raise
        log.info("engine ready: %s", self.limits.description)

    @property
    def pid(self) -> int:
        """The engine's process id."""
        return self._process.pid

    async def _ask(self, message: Expand | AdapterChange) -> list[int]:
        if self._channel.closed:
            raise WorkerDiedError(DEATH)
        return await self._replies.to(message, lambda: self._channel.send(message))

    def _judge(self, silent_s: float) -> None:
        """Report whether the engine runs, and kill one that does not. A step may take longer than a beat."""
        silent = silent_s >= self._beat_timeout_s
        if silent and halted(self.pid):
            log.error("the engine %s: killed", HALTED)
            self._kill()
        elif not self._opened.done():
            return  # it loads, and its worker's time for that counts
        elif silent_s >= self._silence_s:
            log.error("the engine has said nothing for %.0f s: killed", silent_s)
            self._kill()
        elif (answers := not silent or self._cpu.advanced()) != self._answers:
            self._answers = answers
            self._hooks.on_answers(answers)

    async def close(self) -> None:
        """End the process."""
        self._closing = True
        self._listener.close()
        self._channel.send(Stop())
        self._channel.flush()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            self._kill()
            await self._process.wait()
        self._channel.close()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
            self._process.kill()

    def _send_text(self, text: asyncio.Future[list[int]]) -> None:
        if not text.cancelled() and text.exception() is None and not self._channel.closed:
            self._channel.send(ProbeText(text.result()))

    def _receive(self, messages: list[AnyMessage]) -> None:
        for message in messages:
            if isinstance(message, Done):
                self._replies.answered(message)
            elif isinstance(message, EngineMetrics):
                self._hooks.on_metrics(message.families)
            elif isinstance(message, Status) and message.state == "failed":
                self._fail_open(message.detail, no_memory=message.no_memory, lacking=message.lacking)
            elif isinstance(message, Status):
                self._hooks.progress(message.detail, message.done, message.total)
            elif isinstance(message, Opened) and not self._opened.done():
                self._opened.set_result(message)
            else:
                self._take(message)

    @abc.abstractmethod
    def _take(self, message: AnyMessage) -> None:
        """Take a message of results."""

    @abc.abstractmethod
    def _fail_all(self) -> None:
        """End everything in flight with an error: the process has ended."""

    def _fail_open(self, reason: str, *, no_memory: bool = False, lacking: bool = False) -> None:
        if not self._opened.done():
            self._opened.set_exception(load_error(reason, no_memory=no_memory, lacking=lacking))

    def _lost(self) -> None:
        """The socket closed."""
        self._listener.close()
        if not self._opened.done():
            self._fail_open("the engine process ended while it was loading the model")
            return
        self._replies.fail(lambda: WorkerDiedError(DEATH))
        self._fail_all()
        if not self._closing:
            self._hooks.on_death(DEATH)


def _runtime(engine: Engine[Any], cache_dir: str) -> Runtime:
    """The runtime of the engine's process; an engine's own interpreter gets the path of this package."""
    runtime = engine.runtime(cache_dir)
    assert runtime is not None  # it has been checked
    if not runtime.venv:
        return runtime
    package = package_path(cache_root(Path(cache_dir) if cache_dir else None))
    return msgspec.structs.replace(runtime, package_path=str(package))
