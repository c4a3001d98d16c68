"""The worker's end of the engine: spawns the engine process, sends sequences, hands out their events.

Runs in the worker's event loop; imports no torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..config import ModelConfig, Runtime, activated, devices_each, engine_environment, stages_each, workers_sharing
from ..config.sources import cache_root
from ..core import logs
from ..core.engine_info import EngineStats
from ..core.errors import WorkerDiedError, load_error
from ..core.metrics import MetricFamily
from ..core.pictures import AnyImages, Pictures
from ..core.types import ImagePrompt, SamplingParams, TokenEvent, Vocabulary
from ..ipc.channel import Channel
from ..ipc.package_path import package_path
from ..ipc.processes import spawn
from ..ipc.protocol import (
    AdapterChange,
    Add,
    AnyMessage,
    Cancel,
    Done,
    EngineMetrics,
    Expand,
    Know,
    Open,
    Opened,
    Status,
    Step,
    Stop,
    TrialText,
)
from ..ipc.replies import Replies
from .interface import Engine, EngineSettings, Progress, engine_of

log = logging.getLogger(__name__)

EventSink = Callable[[TokenEvent], None]
_CLOSE_TIMEOUT_S = 5.0
#: Longest wait for the step that answers every message to the engine. A longer option.predict_timeout counts instead.
_SILENCE_S = 60.0
_DEATH = "the engine process ended unexpectedly"


def common_settings(config: ModelConfig, model_path: Path, image_example: ImagePrompt | None = None) -> EngineSettings:
    """What any engine is told of a model's configuration."""
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
    )


class EngineClient:
    """One engine process, opened with `open`.

    Attributes:
        limits: what the loaded model allows.
    """

    limits: Opened

    def __init__(
        self,
        progress: Progress,
        on_stats: Callable[[EngineStats], None],
        on_death: Callable[[str], None],
        on_metrics: Callable[[list[MetricFamily]], None],
        silence_s: float,
    ) -> None:
        self._progress = progress
        self._on_stats = on_stats
        self._on_death = on_death
        self._on_metrics = on_metrics
        self._sinks: dict[int, EventSink] = {}
        self._replies = Replies()
        self._ids = itertools.count(1)
        self._opened: asyncio.Future[Opened] = asyncio.get_running_loop().create_future()
        self._closing = False
        self._asked_s: float | None = None  # when the oldest unanswered message was sent, by the loop's clock
        self._silence_s = silence_s
        self._watching = False
        self._channel: Channel
        self._process: asyncio.subprocess.Process

    @classmethod
    async def open(
        cls,
        config: ModelConfig,
        model_path: Path,
        *,
        progress: Progress,
        on_stats: Callable[[EngineStats], None],
        on_death: Callable[[str], None],
        on_metrics: Callable[[list[MetricFamily]], None] = lambda families: None,
        checkpoints: Mapping[str, Path] | None = None,
        image_example: ImagePrompt | None = None,
        trial_text: asyncio.Future[list[int]] | None = None,
    ) -> EngineClient:
        """Spawn the engine and wait until its model is loaded.

        Args:
            checkpoints: those that the engine needs beside the model (`Engine.checkpoints`), by option.
            image_example: a prompt with an image, for a checkpoint that takes them.
            trial_text: ids of a text by the model's tokenizer, to try the model on; it may still be loading.
            progress: told what is being loaded: (what, done, total).
            on_stats: told after every step.
            on_death: told once, with a reason, when the process ends unasked after it was ready.
            on_metrics: told every few seconds of the metrics that the engine keeps itself.

        Raises:
            ModelLoadError: with the engine's reason.
            ModelLoadError, ConfigError: a setting that the engine doesn't support, or a name of no engine.
        """
        engine = engine_of(config.option.rolling_batch)
        engine.check_model(config)
        options = engine.options_of(config)
        settings = engine.settings(common_settings(config, model_path, image_example), options, checkpoints or {})
        self = cls(progress, on_stats, on_death, on_metrics, max(_SILENCE_S, config.option.predict_timeout))
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
        await self._channel.attach(sock)
        self._channel.send(Open(engine.name, msgspec.msgpack.encode(settings), sends_text=trial_text is not None))
        if trial_text is not None:
            trial_text.add_done_callback(self._send_text)
        try:
            self.limits = await self._opened
        except BaseException as reason:
            if isinstance(reason, asyncio.CancelledError):
                self._kill()  # it hears nothing while it loads, and has nothing to lose
            await self.close()
            raise
        log.info("engine ready: %s", self.limits.description)
        return self

    @property
    def pid(self) -> int:
        """The engine's process id."""
        return self._process.pid

    def know(self, vocabulary: Vocabulary) -> None:
        """Tell the engine the model's tokens, which it has to know before the first sequence with a grammar."""
        if not self._channel.closed:
            self._channel.send(Know(vocabulary))

    async def expand(self, pictures: Pictures) -> list[int]:
        """The ids that the model gets for a prompt with pictures, from an engine that prepares images itself.

        Raises:
            ParameterError: the model can't have this prompt or these images.
            GenerationError: the engine failed.
        """
        return await self._ask(Expand(next(self._ids), pictures))

    async def change_adapter(self, change: AdapterChange) -> None:
        """Have the engine load an adapter from a directory, or forget one.

        Raises:
            ServingError: the engine can't; its adapters are what they were.
        """
        await self._ask(msgspec.structs.replace(change, id=next(self._ids)))

    async def _ask(self, message: Expand | AdapterChange) -> list[int]:
        if self._channel.closed:
            raise WorkerDiedError(_DEATH)
        return await self._replies.to(message, lambda: self._channel.send(message))

    def submit(
        self,
        prompt_ids: list[int],
        sampling: SamplingParams,
        on_event: EventSink,
        images: AnyImages | None = None,
        adapter: str = "",
        *,
        http_request_id: str = "",
    ) -> int:
        """Queue a sequence. `on_event` is called in the event loop with each of its events, up to the last.

        Args:
            http_request_id: named in the engine's log lines about the sequence.

        Raises:
            OverflowError, TypeError, ValueError: the message can't be sent; other sequences are not affected.
        """
        request_id = next(self._ids)
        if self._channel.closed:
            asyncio.get_running_loop().call_soon(on_event, _death_event(request_id))
            return request_id
        self._channel.send(Add(request_id, prompt_ids, sampling, images, adapter, http_request_id))
        self._sinks[request_id] = on_event
        self._expect()
        return request_id

    def cancel(self, request_id: int) -> None:
        """Stop a sequence; its sink is not called again. Unknown and finished ids are ignored."""
        if self._sinks.pop(request_id, None) is not None:
            self._channel.send(Cancel(request_id))
            self._expect()

    def _expect(self) -> None:
        """Expect a step that answers what was just sent; if none comes, the engine has frozen."""
        if self._asked_s is None:
            self._asked_s = asyncio.get_running_loop().time()
            self._watch()

    def _watch(self) -> None:
        if self._watching or self._asked_s is None:
            return
        self._watching = True
        asyncio.get_running_loop().call_at(self._asked_s + self._silence_s, self._look)

    def _look(self) -> None:
        self._watching = False
        silent_s = 0.0 if self._asked_s is None else asyncio.get_running_loop().time() - self._asked_s
        if self._closing or self._channel.closed:
            return
        if silent_s < self._silence_s:
            self._watch()
            return
        log.error("the engine has said nothing for %.0f s: killed", silent_s)
        self._kill()

    async def close(self) -> None:
        """End the process."""
        self._closing = True
        self._channel.send(Stop())
        self._channel.flush()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
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
            self._channel.send(TrialText(text.result()))

    def _receive(self, messages: list[AnyMessage]) -> None:
        for message in messages:
            if isinstance(message, Step):
                self._dispatch(message)
            elif isinstance(message, Done):
                self._replies.answered(message)
            elif isinstance(message, EngineMetrics):
                self._on_metrics(message.families)
            elif isinstance(message, Status) and message.state == "failed":
                self._fail_open(message.detail, no_memory=message.no_memory)
            elif isinstance(message, Status):
                self._progress(message.detail, message.done, message.total)
            elif isinstance(message, Opened) and not self._opened.done():
                self._opened.set_result(message)

    def _dispatch(self, step: Step) -> None:
        self._asked_s = None
        for event in step.events:
            ends = event.finish is not None or event.error is not None
            sink = self._sinks.pop(event.request_id, None) if ends else self._sinks.get(event.request_id)
            if sink is not None:
                sink(event)
        self._on_stats(step.stats)

    def _fail_open(self, reason: str, *, no_memory: bool = False) -> None:
        if not self._opened.done():
            self._opened.set_exception(load_error(reason, no_memory=no_memory))

    def _lost(self) -> None:
        """The socket closed: end every sequence in flight with an error."""
        if not self._opened.done():
            self._fail_open("the engine process ended while it was loading the model")
            return
        self._replies.fail(lambda: WorkerDiedError(_DEATH))
        sinks, self._sinks = self._sinks, {}
        for request_id, sink in sinks.items():
            sink(_death_event(request_id))
        if not self._closing:
            self._on_death(_DEATH)


def _runtime(engine: Engine[Any], cache_dir: str) -> Runtime:
    """What the engine's process runs with; an interpreter of the engine's own is shown where this package is."""
    runtime = engine.runtime(cache_dir)
    assert runtime is not None  # it has been checked
    if not runtime.venv:
        return runtime
    package = package_path(cache_root(Path(cache_dir) if cache_dir else None))
    return msgspec.structs.replace(runtime, package_path=str(package))


def _death_event(request_id: int) -> TokenEvent:
    return TokenEvent(request_id=request_id, token_id=-1, error=_DEATH, error_kind=WorkerDiedError.kind)
