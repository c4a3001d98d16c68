"""What an engine is, to the processes around it: its row in the table, its settings, and its two forms.

The row is read in every process; an engine runs in the engine's. An engine is a `RollingBatch`, which the engine's loop
steps, or an `AsyncEngine`, which has a loop of its own. Built-in ones are opened in the same way as a third party's
`option.rolling_batch=module:Class`.
"""

from __future__ import annotations

import abc
import dataclasses
import importlib.util
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec

from ..config import ENVIRONMENT_STAMP, ModelConfig, Runtime, has_gpu
from ..config.engines import ENGINES, Distribution, NoOptions, engine_name, engine_path
from ..core.engine_info import EngineInfo, EngineStats
from ..core.errors import GenerationError, ModelLoadError, ParameterError, ServingError
from ..core.metrics import MetricFamily
from ..core.pictures import AnyImages, Pictures
from ..core.registry import load_object
from ..core.types import ImagePrompt, Images, SamplingParams, TokenEvent, Vocabulary

Progress = Callable[[str, int, int], None]
OptionsT = TypeVar("OptionsT", bound=msgspec.Struct)

#: Every parameter of a sequence.
ALL_PARAMETERS: Final = frozenset(SamplingParams.__struct_fields__)


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that any engine is opened with; `option.*` documents each. An engine with options of its own adds them.

    `tensor_parallel_degree` is how many devices, from `device` on, share each layer of the model; 0 for as many as can.
    `pipeline_parallel_degree` is how many groups of such devices have a part of the layers each.
    `workers` is how many of the model's workers share the device, and `gpu_memory_utilization` of its memory.
    `image_example` is a prompt with an image, for a checkpoint that takes them: to learn and check with, at load.
    `max_images` is how many images a prompt may have, for an engine that prepares them itself.
    `adapters` are the directories of LoRA adapters, by name, for an engine that takes them.
    `properties` are all of the model's settings as strings, for a third party's engine.
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


def _as_they_are(settings: EngineSettings, options: msgspec.Struct, checkpoints: Mapping[str, Path]) -> EngineSettings:
    return settings


@dataclass(frozen=True, kw_only=True)
class Engine(Generic[OptionsT]):
    """A row of the table of engines (`config.engines.ENGINES`). Making one imports nothing heavy.

    Attributes:
        name: its key in the table, or the module:Class of a user's engine.
        summary: what it is for, in a sentence.
        opens: "module:attribute", imported in the engine's process alone: a class of a `RollingBatch` or an
            `AsyncEngine`, or a function of the same arguments that returns a `RollingBatch`.
        options: declares the `option.*` keys that only this engine takes.
        settings_type: what it is opened with.
        settings: (what any engine is told, its own options, its further checkpoints) -> what it is opened with.
        checkpoints: its own options -> the checkpoints that it needs beside the model: by option, what model_id says
            of the model.
        parameters: fields of `SamplingParams` that it honours. Of a request that sets another one, the answer says so.
        requires: modules that its Python must have, beside this package's own requirements.
        distribution: what `djl-serving engines install` installs where the server's own environment lacks them; None:
            there is nothing that can be installed with pip.
        needs_gpu: whether it runs on GPUs alone.
        takes_adapters: whether sequences may name LoRA adapters. Its options say which there are: `enable_lora`,
            `adapters` and `lora_modules`.
        prepares_images: whether it prepares images itself: it gets `Pictures`, and else `Images`.
        takes_any_option: whether `option.*` keys that nobody declares are its business, and not only a handler's.
        options_without_effect: keys of `option.*`, without the prefix, that it knows and ignores -> why.
        check: refuses a configuration that it can't serve, before anything is loaded, with a ModelLoadError or a
            ConfigError.
        check_checkpoint: likewise, of (configuration, its own options, the option that names a checkpoint, the
            checkpoint's directory), refuses files that it can't load.
        without_effect: sentences about settings that have no effect with it, as the model is configured.
        environment: (configuration, the worker's environment) -> variables of the engine's process that are not set.

    Example, a further row with an option of its own, `option.depth`::

        class DeepOptions(msgspec.Struct, frozen=True, kw_only=True):
            depth: Annotated[int, Meta(ge=1, description="How deep.")] = 3

        class DeepSettings(EngineSettings, frozen=True, kw_only=True):
            depth: int = 3

        def settings(common, options, checkpoints):
            return DeepSettings(**msgspec.structs.asdict(common), depth=options.depth)

        ENGINE = Engine(
            name="deep",
            summary="Goes deep.",
            opens="deep.engine:DeepRollingBatch",
            options=DeepOptions,
            settings_type=DeepSettings,
            settings=settings,
        )
    """

    name: str
    summary: str
    opens: str
    options: type[OptionsT]
    settings_type: type[EngineSettings] = EngineSettings
    settings: Callable[[EngineSettings, OptionsT, Mapping[str, Path]], EngineSettings] = _as_they_are
    checkpoints: Callable[[OptionsT], Mapping[str, str]] = lambda options: {}
    parameters: frozenset[str] = ALL_PARAMETERS
    requires: tuple[str, ...] = ()
    distribution: Distribution | None = None
    needs_gpu: bool = False
    takes_adapters: bool = False
    prepares_images: bool = False
    takes_any_option: bool = False
    options_without_effect: Mapping[str, str] = dataclasses.field(default_factory=dict)
    check: Callable[[ModelConfig, OptionsT], None] = lambda config, options: None
    check_checkpoint: Callable[[ModelConfig, OptionsT, str, Path], None] = lambda config, options, key, path: None
    without_effect: Callable[[ModelConfig, OptionsT], list[str]] = lambda config, options: []
    environment: Callable[[ModelConfig, OptionsT, Mapping[str, str]], Mapping[str, str]] = (
        lambda config, options, environ: {}
    )

    def options_of(self, config: ModelConfig) -> OptionsT:
        """The model's values of the options that only this engine takes."""
        return msgspec.convert(config.engine_options, self.options)

    def check_model(self, config: ModelConfig) -> None:
        """Refuse a model that this engine can't serve here, before anything is loaded.

        Raises:
            ModelLoadError: a module is missing (says how to install it), or `check` refuses the configuration.
            ConfigError: likewise.
        """
        if self.runtime(config.cache_dir) is None:
            lacking = [name for name in self.requires if importlib.util.find_spec(name) is None]
            if self.needs_gpu and not has_gpu():
                lacking.append("a GPU")
            raise ModelLoadError(f"option.rolling_batch={self.name} needs {' and '.join(lacking)}; {self.remedy}")
        self.check(config, self.options_of(config))

    @property
    def remedy(self) -> str:
        """What brings an engine that is not there."""
        if self.distribution is None:
            return "it can't be installed with pip alone"
        if self.needs_gpu:
            return f"where there is a GPU, djl-serving engines install {self.name} installs it"
        return f"djl-serving engines install {self.name} installs it"

    def runtime(self, cache_dir: str) -> Runtime | None:
        """What the engine's process runs with: this process's own interpreter, if it has what the engine requires, or
        the environment that `djl-serving engines install` has made below `cache_dir`. None: the engine is not there."""
        if self.needs_gpu and not has_gpu():
            return None
        if all(importlib.util.find_spec(name) is not None for name in self.requires):
            return Runtime(executable=sys.executable)
        for device in ("cuda", "cpu") if has_gpu() else ("cpu",):
            if self.distribution is not None:
                venv = self.distribution.directory(self.name, device, cache_dir)
                if (venv / ENVIRONMENT_STAMP).is_file():
                    return Runtime(executable=str(venv / "bin" / "python"), venv=str(venv))
        return None


def engine_of(rolling_batch: str) -> Engine[Any]:
    """The row that `option.rolling_batch` names; one with nothing but its path for a user's module:Class.

    Raises:
        ConfigError: the name is neither in the table nor such a path.
    """
    name = engine_name(rolling_batch)
    path = engine_path(name)
    if name not in ENGINES:
        return Engine(name=name, summary="The engine of a model's own.", opens=path, options=NoOptions)
    row: Engine[Any] = load_object(path)
    return row


class Limits:
    """What an open engine says of the model and of itself.

    Attributes:
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

    def check_prompt(self, prompt_ids: list[int]) -> None:
        """Check that there is a prompt, and room for a token after it.

        Raises:
            ParameterError: there is not.
        """
        if not 0 < len(prompt_ids) < self.max_model_len:
            raise ParameterError(
                f"the prompt has {len(prompt_ids)} tokens; expected 1 to {self.max_model_len - 1}", "inputs"
            )


class RollingBatch(Limits, abc.ABC):
    """A batch that requests join and leave at any step. Called from one thread; has its `Limits` once constructed."""

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


class AsyncEngine(Limits, abc.ABC):
    """An engine that schedules its sequences itself. Called in one asyncio loop; has its `Limits` once opened."""

    @classmethod
    @abc.abstractmethod
    async def open(cls, settings: EngineSettings, progress: Progress) -> AsyncEngine:
        """Load the model. Raise ModelLoadError (or anything) if that can't be done."""

    @abc.abstractmethod
    def generate(
        self,
        request_id: int,
        prompt_ids: list[int],
        sampling: SamplingParams,
        images: AnyImages | None = None,
        adapter: str = "",
    ) -> AsyncGenerator[TokenEvent, None]:
        """The events of one sequence, at most one per token, up to the one that finishes it.

        `prompt_ids` begin with what `expand` says where `images` are Pictures; what follows has been generated.
        `adapter` is passed where a sequence names one, which it only can if the engine's row takes them.

        Closing the iterator, or cancelling the task that waits for it, takes the sequence out of the batch.

        Raises:
            ParameterError: it can never be generated (empty, or longer than the context).
            Exception: it failed; `isolate` is asked what that means for the others.
        """

    async def expand(self, pictures: Pictures) -> list[int]:
        """The ids that the model gets for a prompt with pictures; only asked of an engine that prepares images.

        Raises:
            ParameterError: the model can't have this prompt or these images.
        """
        raise NotImplementedError

    async def add_adapter(self, name: str, directory: str, options: Mapping[str, str]) -> None:
        """Load a LoRA adapter, or another one in the place of that which has the name; its sequences keep theirs.

        Only asked of an engine whose row takes adapters.

        Args:
            options: what a client said beside name and directory: `pin` and others.

        Raises:
            ParameterError, MemoryLoadError: it can't be loaded, or there is no room for it; all is as it was.
        """
        raise ParameterError("this engine takes adapters only when it starts", "src")

    async def remove_adapter(self, name: str) -> None:
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

    def know(self, vocabulary: Vocabulary) -> None:
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
