"""The worker's end of an engine that generates: sends sequences, hands out their events.

Runs in the worker's event loop; imports no torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from ..config import ModelConfig
from ..core.engine_info import EngineStats
from ..core.errors import WorkerDiedError
from ..core.metrics import MetricFamily
from ..core.sequence_request import Pictures, SequenceRequest
from ..core.types import ImagePrompt, TokenEvent, Vocabulary
from ..ipc.protocol import AdapterChange, AnyMessage, Cancel, Expand, SetVocabulary, StepReport
from .interface import Progress
from .process import DEATH, EngineProcess, Hooks, common_settings
from .row import engine_of

EventSink = Callable[[TokenEvent], None]


class EngineClient(EngineProcess):
    """One engine process that generates, opened with `open`."""

    def __init__(self, hooks: Hooks, config: ModelConfig) -> None:
        super().__init__(hooks, config)
        self._sinks: dict[int, EventSink] = {}

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
        on_answers: Callable[[bool], None] = lambda yes: None,
        checkpoints: Mapping[str, Path] | None = None,
        image_example: ImagePrompt | None = None,
        probe_text: asyncio.Future[list[int]] | None = None,
    ) -> EngineClient:
        """Spawn the engine and wait until its model is loaded.

        Args:
            checkpoints: those that the engine needs beside the model (`Engine.checkpoints`), by option.
            image_example: a prompt with an image, for a checkpoint that takes them.
            probe_text: ids of a text by the model's tokenizer, to try the model on; it may still be loading.
            progress: called with loading progress: (what, done, total).
            on_stats: called after every step.
            on_death: called once, with a reason, when the process ends unexpectedly after it was ready.
            on_metrics: called every few seconds with the metrics that the engine keeps itself.
            on_answers: called with False when an opened engine neither sends nor computes anything, and with True when
                it resumes. An engine that does not resume is killed.

        Raises:
            ModelLoadError: with the engine's reason.
            ModelLoadError, ConfigError: a setting that the engine doesn't support, or a name of no engine.
        """
        engine = engine_of(config.option.rolling_batch)
        engine.check_model(config)
        options = engine.options_of(config)
        settings = engine.settings(common_settings(config, model_path, image_example), options, checkpoints or {})
        self = cls(Hooks(progress, on_stats, on_death, on_metrics, on_answers), config)
        await self._begin(engine, config, settings, probe_text)
        return self

    def set_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Send the engine the model's tokens, which it needs before the first sequence with a grammar."""
        if not self._channel.closed:
            self._channel.send(SetVocabulary(vocabulary))

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

    def submit(self, request: SequenceRequest, on_event: EventSink) -> int:
        """Queue a sequence. `on_event` is called in the event loop with each of its events, up to the last.

        Returns:
            The id that the sequence has been given; the request's own one does not count.

        Raises:
            OverflowError, TypeError, ValueError: the message can't be sent; other sequences are not affected.
        """
        request_id = next(self._ids)
        if self._channel.closed:
            asyncio.get_running_loop().call_soon(on_event, _death_event(request_id))
            return request_id
        self._channel.send(msgspec.structs.replace(request, id=request_id))
        self._sinks[request_id] = on_event
        return request_id

    def cancel(self, request_id: int) -> None:
        """Stop a sequence; its sink is not called again. Unknown and finished ids are ignored."""
        if self._sinks.pop(request_id, None) is not None:
            self._channel.send(Cancel(request_id))

    def _take(self, message: AnyMessage) -> None:
        if not isinstance(message, StepReport):
            return
        for event in message.events:
            sink = (self._sinks.pop if event.ends else self._sinks.get)(event.request_id, None)
            if sink is not None:
                sink(event)
        self._hooks.on_stats(message.stats)

    def _fail_all(self) -> None:
        sinks, self._sinks = self._sinks, {}
        for request_id, sink in sinks.items():
            sink(_death_event(request_id))


def _death_event(request_id: int) -> TokenEvent:
    return TokenEvent(request_id=request_id, token_id=-1, error=DEATH, error_kind=WorkerDiedError.kind)
