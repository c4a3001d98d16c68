"""A row of the table of engines (`config.engines.ENGINES`): an engine's options and requirements, before it is opened.

Read in every process; making a row imports nothing heavy.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec

from ..config import ENVIRONMENT_STAMP, ModelConfig, Runtime, has_gpu
from ..config.engines import ENGINES, ENGINES_OF_TASKS, Distribution, NoOptions, engine_name, engine_path
from ..core.errors import ModelLoadError
from ..core.registry import load_object
from ..core.types import SamplingParams
from .interface import EngineSettings

OptionsT = TypeVar("OptionsT", bound=msgspec.Struct)

#: Every parameter of a sequence.
ALL_PARAMETERS: Final = frozenset(SamplingParams.__struct_fields__)


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
        takes_probe_ids: whether that function has a third argument, a `ProbeIds`: a text to try the model on.
        options: declares the `option.*` keys that only this engine takes.
        settings_type: the type of the settings that it is opened with.
        settings: (common settings, its own options, its further checkpoints) -> the settings that it is opened with.
        checkpoints: its own options -> the checkpoints that it needs besides the model: by option, an id or a path,
            like model_id.
        parameters: fields of `SamplingParams` that it honours. The answer lists other fields that a request sets.
        requires: modules that its Python must have, beside this package's own requirements.
        distribution: what `djl-serving engines install` installs where the server's own environment lacks them; None:
            there is nothing that can be installed with pip.
        needs_gpu: whether it runs on GPUs alone.
        takes_adapters: whether sequences may name LoRA adapters. Its options say which there are: `enable_lora`,
            `adapters` and `lora_modules`.
        prepares_images: whether it prepares images itself: it gets `Pictures`, and else `Images`.
        runs_encoder_decoders: whether it runs encoder-decoder models (`Limits.decoder`).
        takes_any_option: whether it takes undeclared `option.*` keys, which otherwise only handlers read.
        options_without_effect: keys of `option.*`, without the prefix, that it knows and ignores -> why.
        check: refuses a configuration that it can't serve, before anything is loaded, with a ModelLoadError or a
            ConfigError.
        check_checkpoint: (configuration, its own options, the option that names a checkpoint, the checkpoint's
            directory); refuses files that it can't load, with the same errors.
        without_effect: sentences about settings that have no effect with it, as the model is configured.
        without_effect_on: (configuration, its own options, the directory of the model's checkpoint) -> sentences about
            settings that have no effect on these files.
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
    takes_probe_ids: bool = False
    takes_adapters: bool = False
    prepares_images: bool = False
    runs_encoder_decoders: bool = False
    takes_any_option: bool = False
    options_without_effect: Mapping[str, str] = dataclasses.field(default_factory=dict)
    check: Callable[[ModelConfig, OptionsT], None] = lambda config, options: None
    check_checkpoint: Callable[[ModelConfig, OptionsT, str, Path], None] = lambda config, options, key, path: None
    without_effect: Callable[[ModelConfig, OptionsT], list[str]] = lambda config, options: []
    without_effect_on: Callable[[ModelConfig, OptionsT, Path], list[str]] = lambda config, options, path: []
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
            ConfigError: `check` refuses a setting.
        """
        if self.runtime(config.cache_dir) is None:
            lacking = [name for name in self.requires if importlib.util.find_spec(name) is None]
            if self.needs_gpu and not has_gpu():
                lacking.append("a GPU")
            raise ModelLoadError(f"option.rolling_batch={self.name} needs {' and '.join(lacking)}; {self.remedy}")
        self.check(config, self.options_of(config))

    @property
    def remedy(self) -> str:
        """How to install an engine that is missing."""
        if self.distribution is None:
            return "it can't be installed with pip alone"
        if self.needs_gpu:
            return f"on a machine with a GPU, install it with: djl-serving engines install {self.name}"
        return f"install it with: djl-serving engines install {self.name}"

    def runtime(self, cache_dir: str) -> Runtime | None:
        """The runtime of the engine's process: this process's own interpreter, if it has the required packages, or the
        environment that `djl-serving engines install` has made below `cache_dir`. None: the engine is not installed.
        """
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

    Args:
        rolling_batch: the option's value, or the name of a task's engine.

    Raises:
        ConfigError: the name is neither in a table nor such a path.
    """
    name = engine_name(rolling_batch)
    path = ENGINES_OF_TASKS.get(name) or ENGINES.get(name)
    if path is None:
        return Engine(name=name, summary="The engine of a model's own.", opens=engine_path(name), options=NoOptions)
    row: Engine[Any] = load_object(path)
    return row
