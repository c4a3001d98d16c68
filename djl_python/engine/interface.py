"""The interface of continuous batching, between an engine and the process around it. Runs in the engine process.

Built-in engines are opened in the same way as a third party's `option.rolling_batch=module:Class`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from ..core.errors import ConfigError, GenerationError, ServingError
from ..core.registry import load_object, path_of
from ..core.types import EngineInfo, EngineStats, ImagePrompt, Images, SamplingParams, TokenEvent, Vocabulary

Progress = Callable[[str, int, int], None]

ROLLING_BATCHES: Final = {
    "auto": "djl_python.engine.builtin.opening:open_batch",
    "echo": "djl_python.engine.echo:EchoRollingBatch",
}
#: LMI's names of engines that this server does not have.
_OTHERS: Final = frozenset({"lmi-dist", "neuronx", "tnx", "trtllm", "vllm"})


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that an engine is opened with; `option.*` documents each.

    `kv_blocks` fixes the number of the cache's blocks, as for a draft model.
    `tensor_parallel_degree` is how many devices, from `device` on, share the model; 0 for as many as can.
    `workers` is how many of the model's workers share the device, and `gpu_memory_utilization` of its memory.
    `trial_ids` are a text to try the model on, where it isn't sent later (`trial_text`).
    `image_example` is a prompt with an image, for a checkpoint that takes them: to learn and check with, at load.
    `properties` are all of the model's settings as strings, for engines with settings of their own.
    """

    model_path: str
    trust_remote_code: bool = False
    dtype: str = "auto"
    device: str = "auto"
    tensor_parallel_degree: int = 1
    kernels: str = "auto"
    quantize: Literal["none", "int8", "int4", "gptq", "awq"] = "none"
    speculative: Literal["none", "ngram", "draft"] = "none"
    draft_model_path: str = ""
    spec_length: int | None = None
    threads: int | None = None
    max_batch_size: int = 32
    max_prefill_tokens: int = 512
    max_model_len: int | None = None
    block_size: int = 16
    kv_cache_memory_mb: int | None = None
    kv_blocks: int | None = None
    gpu_memory_utilization: float = 0.9
    workers: int = 1
    trial_ids: list[int] = []
    image_example: ImagePrompt | None = None
    properties: dict[str, str] = {}


class RollingBatch(abc.ABC):
    """A batch that requests join and leave at any step. Called from one thread.

    Attributes, valid once constructed:
        max_model_len: prompt and generated tokens of one sequence, at most.
        max_batch_size: sequences that generate at the same time.
        kv_blocks, block_size: size of the cache; 0 where the engine has none of its own.
        description: one line for the log.
        takes_images: whether prompts may have images.
        info: what runs the model; without a `runner`, the engine's name is shown.
        vocabulary: how many token ids the model takes; None: all that its tokenizer has.
    """

    max_model_len: int
    max_batch_size: int
    kv_blocks: int = 0
    block_size: int = 0
    description: str = ""
    takes_images: bool = False
    info: EngineInfo = EngineInfo()
    vocabulary: int | None = None

    @abc.abstractmethod
    def __init__(self, settings: EngineSettings, progress: Progress) -> None:
        """Load the model. Raise ModelLoadError (or anything) if that can't be done."""

    @abc.abstractmethod
    def add(
        self, request_id: int, prompt_ids: list[int], sampling: SamplingParams, images: Images | None = None
    ) -> None:
        """Queue a sequence. `images` come only where the engine takes them.

        Raises:
            ParameterError: it can never be generated (empty, or longer than the context).
        """

    @abc.abstractmethod
    def cancel(self, request_id: int) -> None:
        """Drop a sequence, wherever it is; unknown ids are ignored (it may just have finished)."""

    @abc.abstractmethod
    def step(self) -> list[TokenEvent]:
        """Advance every sequence that can be; returns at most one event per token. Called while not `idle`."""

    @abc.abstractmethod
    def isolate(self, cause: Exception) -> list[TokenEvent]:
        """`step` raised `cause`: end (with error events) no more sequences than must be, and be ready to step again.

        Raises:
            Exception: no step can succeed any more. The process ends, and a new one is started.
        """

    @property
    @abc.abstractmethod
    def idle(self) -> bool:
        """Whether there is nothing to step."""

    @property
    @abc.abstractmethod
    def stats(self) -> EngineStats:
        """The gauges' current values, and what the last call of `step` did."""

    def know(self, vocabulary: Vocabulary) -> None:
        """The model's tokens, before the first sequence with a grammar; an engine that knows them itself needs none."""
        return

    def close(self) -> None:
        """Release the model and end the threads made for it. The batch is not used after that."""
        return


def error_event(request_id: int, error: BaseException) -> TokenEvent:
    """The event that ends a sequence with an error."""
    if not isinstance(error, ServingError):
        error = GenerationError(f"generation failed: {type(error).__name__}: {error}")
    return TokenEvent(request_id=request_id, token_id=-1, error=error.message, error_kind=error.kind)


def rolling_batch_class(name: str) -> Callable[[EngineSettings, Progress], RollingBatch]:
    """The engine class that `option.rolling_batch` names, or a function that opens one."""
    found: Any = load_object(rolling_batch_path(name))
    return found  # type: ignore[no-any-return]


def rolling_batch_path(name: str) -> str:
    """The engine's path "module:attribute", which is not imported.

    Raises:
        ConfigError: the name is neither a known one nor such a path itself.
    """
    if name in _OTHERS:
        raise ConfigError(
            f"option.rolling_batch={name}: there is no such engine here; expected auto, this server's own"
        )
    return path_of(ROLLING_BATCHES, name, "option.rolling_batch")
