"""The interface of engines: the settings that they are opened with, and their protocols.

Runs in the engine's process. An engine is a `RollingBatch` or an `Encoder`, which the engine's loop steps, or an
`AsyncEngine`, which has a loop of its own. Built-in ones are opened in the same way as a third party's
`option.rolling_batch=module:Class`. Other processes read an engine's `row.Engine`.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from ..core.engine_info import EngineInfo, EngineStats
from ..core.errors import GenerationError, ParameterError, ServingError
from ..core.metrics import MetricFamily
from ..core.sequence_request import Pictures, SequenceRequest
from ..core.types import DecoderTokens, ImagePrompt, TokenEvent, Vocabulary
from ..ipc.encodings import EncodeRequest, Encoding

Progress = Callable[[str, int, int], None]
#: Waits for the ids of a text by the model's own tokenizer, which the worker reads meanwhile; [] where it sends none.
ProbeIds = Callable[[], list[int]]
EventT = TypeVar("EventT")


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that any engine is opened with; `option.*` documents each. An engine with options of its own adds them.

    `tensor_parallel_degree` is how many devices, from `device` on, share each layer of the model; 0 for as many as can.
    `pipeline_parallel_degree` is how many groups of such devices have a part of the layers each.
    `workers` is how many of the model's workers share the device, and `gpu_memory_utilization` of its memory.
    `image_example` is a prompt with an image, for a checkpoint that takes them: to learn and check with, at load.
    `max_images` is how many images a prompt may have, for an engine that prepares them itself.
    `adapters` are the directories of LoRA adapters, by name, for an engine that takes them.
    `properties` are all of the model's settings as strings, for a third party's engine.
    `beat_s` is how often, in seconds, the loop that steps the engine sends a heartbeat.
    """

    model_path: str
    trust_remote_code: bool = False
    dtype: str = "auto"
    device: str = "auto"
    tensor_parallel_degree: int = 1
    pipeline_parallel_degree: int = 1
    max_batch_size: int = 32
    max_prefill_tokens: int = 512
    max_model_len: int | None = None
    gpu_memory_utilization: float = 0.9
    workers: int = 1
    image_example: ImagePrompt | None = None
    max_images: int = 16
    adapters: dict[str, str] = {}
    properties: dict[str, str] = {}
    beat_s: float = 1.0


class Limits:
    """Facts about an open engine and its model.

    Attributes:
        max_model_len: prompt and generated tokens of one sequence, at most.
        max_batch_size: sequences that generate at the same time.
        kv_blocks, block_size: the size of the KV cache; 0: the engine does not report it.
        description: one line for the log.
        takes_images: whether prompts may have images.
        info: the engine and its runner; without a `runner`, the engine's name is shown.
        vocabulary: how many token ids the model takes; None: all that its tokenizer has.
        max_batch_tokens: tokens that an encoder computes at once.
        pooling: how an encoder makes one vector of a text's tokens; "" where it doesn't.
        decoder: how an encoder-decoder model's decoder begins and ends, whose tokens `max_model_len` counts apart from
            those that the encoder reads; None: the model is not one.
    """

    max_model_len: int
    max_batch_size: int
    kv_blocks: int = 0
    block_size: int = 0
    description: str = ""
    takes_images: bool = False
    info: EngineInfo = EngineInfo()
    vocabulary: int | None = None
    max_batch_tokens: int = 0
    pooling: str = ""
    decoder: DecoderTokens | None = None

    def check_prompt(self, prompt_ids: list[int]) -> None:
        """Check that there is a prompt, and room for a token after it.

        Raises:
            ParameterError: there is not.
        """
        if not 0 < len(prompt_ids) < self.max_model_len:
            raise ParameterError(
                f"the prompt has {len(prompt_ids)} tokens; expected 1 to {self.max_model_len - 1}", "inputs"
            )


class SteppedEngine(Limits, abc.ABC, Generic[EventT]):
    """An engine that its loop steps. Called from one thread; has its `Limits` once constructed."""

    @abc.abstractmethod
    def cancel(self, request_id: int) -> None:
        """Drop a request, wherever it is; unknown ids are ignored (it may just have finished)."""

    @abc.abstractmethod
    def step(self) -> list[EventT]:
        """Advance all requests; returns the available results. Called while not `idle`."""

    @abc.abstractmethod
    def isolate(self, cause: Exception) -> list[EventT]:
        """`step` raised `cause`: end (with error events) no more requests than must be, and be ready to step again.

        Raises:
            Exception: no step can succeed any more. The process ends, and a new one is started.
        """

    @property
    @abc.abstractmethod
    def idle(self) -> bool:
        """Whether there is nothing to step."""

    @property
    def pause_s(self) -> float:
        """How long, in seconds, the loop may wait for messages before the next step."""
        return 0.0

    @property
    @abc.abstractmethod
    def stats(self) -> EngineStats:
        """The gauges' current values, and figures of the last call of `step`."""

    def close(self) -> None:
        """Release the model and end the threads made for it. The engine is not used after that."""
        return


@dataclass(frozen=True)
class PendingAdapter:
    """An adapter whose files are being read.

    Attributes:
        read: done once they have been read, or can't be.
        complete: called by the loop between two steps, once they have been read: has the engine take the adapter.
            Raises ParameterError, MemoryLoadError: it can't; all is as it was.
    """

    read: Future[None]
    complete: Callable[[], None]


class RollingBatch(SteppedEngine[TokenEvent]):
    """A batch that sequences join and leave at any step; a step has at most one event per token of each."""

    @abc.abstractmethod
    def __init__(self, settings: EngineSettings, progress: Progress) -> None:
        """Load the model. Raise ModelLoadError (or anything) if that can't be done."""

    @abc.abstractmethod
    def add(self, request: SequenceRequest) -> None:
        """Queue a sequence. It has images or an adapter only where the engine takes them.

        Raises:
            ParameterError: it can never be generated (empty, or longer than the context).
        """

    def set_vocabulary(self, vocabulary: Vocabulary) -> None:
        """The model's tokens, before the first sequence with a grammar; an engine that knows them itself needs none."""
        return

    def add_adapter(self, name: str, version: int, directory: str, options: Mapping[str, str]) -> PendingAdapter:
        """Begin to load a LoRA adapter; as `AsyncEngine.add_adapter`.

        Raises:
            ParameterError, MemoryLoadError: it can't be loaded, or there is no room for it; all is as it was.
        """
        raise ParameterError("this engine takes adapters only when it starts", "src")

    def remove_adapter(self, name: str, version: int) -> None:
        """Forget an adapter: no further sequence names it; an unknown one is none."""
        raise ParameterError("this engine takes adapters only when it starts", "name")

    def metrics(self) -> list[MetricFamily]:
        """The metrics that the engine keeps itself, as they are now; asked for every few seconds while it works."""
        return []


class Encoder(SteppedEngine[Encoding]):
    """A model that reads whole sequences and generates none: embeddings, scores of labels."""

    @abc.abstractmethod
    def add(self, request: EncodeRequest) -> None:
        """Queue the inputs of a request. An input that can't be computed has its error in a later step."""


class AsyncEngine(Limits, abc.ABC):
    """An engine that schedules its sequences itself. Called in one asyncio loop; has its `Limits` once opened."""

    @classmethod
    @abc.abstractmethod
    async def open(cls, settings: EngineSettings, progress: Progress) -> AsyncEngine:
        """Load the model. Raise ModelLoadError (or anything) if that can't be done."""

    @abc.abstractmethod
    def generate(self, request: SequenceRequest) -> AsyncGenerator[TokenEvent, None]:
        """The events of one sequence, at most one per token, up to the one that finishes it.

        It has images or an adapter only where the engine's row takes them. With `Pictures`, `prompt_ids` begin with the
        ids from `expand`; the rest has been generated.

        Closing the iterator, or cancelling the task that waits for it, takes the sequence out of the batch.

        Raises:
            ParameterError: it can never be generated (empty, or longer than the context).
            Exception: it failed; `isolate` decides whether the others are affected.
        """

    async def expand(self, pictures: Pictures) -> list[int]:
        """The ids that the model gets for a prompt with pictures; only asked of an engine that prepares images.

        Raises:
            ParameterError: the model can't have this prompt or these images.
        """
        raise NotImplementedError

    async def add_adapter(self, name: str, version: int, directory: str, options: Mapping[str, str]) -> None:
        """Load a LoRA adapter. It replaces earlier versions of the same name, each of which further sequences may name
        until it is removed.

        Called only if the engine's row takes adapters.

        Args:
            version: one that no other adapter of this name has had.
            options: the client's further parameters, such as `pin`.

        Raises:
            ParameterError, MemoryLoadError: it can't be loaded, or there is no room for it; all is as it was.
        """
        raise ParameterError("this engine takes adapters only when it starts", "src")

    async def remove_adapter(self, name: str, version: int) -> None:
        """Forget an adapter, which no sequence names any more; an unknown one is none."""
        raise ParameterError("this engine takes adapters only when it starts", "name")

    @property
    @abc.abstractmethod
    def stats(self) -> EngineStats:
        """The gauges' current values."""

    def metrics(self) -> list[MetricFamily]:
        """The metrics that the engine keeps itself, as they are now; asked for every few seconds while it works."""
        return []

    def isolate(self, cause: Exception) -> None:
        """A generation raised `cause`: return if other sequences go on.

        Raises:
            Exception: no sequence can succeed any more. The process ends, and a new one is started.
        """
        return

    def set_vocabulary(self, vocabulary: Vocabulary) -> None:
        """The model's tokens, before the first sequence with a grammar; an engine that knows them itself needs none."""
        return

    async def close(self) -> None:
        """Release the model. The engine is not used after that."""
        return


def error_event(request_id: int, error: BaseException) -> TokenEvent:
    """The event that ends a sequence with an error."""
    if not isinstance(error, ServingError):
        error = GenerationError(f"generation failed: {type(error).__name__}: {error}")
    return TokenEvent(request_id=request_id, token_id=-1, error=error.message, error_kind=error.kind)


def failed_encoding(request_id: int, error: BaseException, index: int = -1, *, ends: bool = True) -> Encoding:
    """The error in the place of an encoding; without an index, of a whole request."""
    if not isinstance(error, ServingError):
        error = GenerationError(f"encoding failed: {type(error).__name__}: {error}")
    return Encoding(request_id, index, error=error.message, error_kind=error.kind, ends=ends)
