"""The table of engines, and the part of a row that configuration reads.

Runs in every process. A row is imported when it is named; it imports no engine.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import msgspec

from ..core.registry import load_object, path_of
from .environment import PROCESS_NEEDS, engines_directory
from .model import Runtime

#: `option.rolling_batch` -> the row, an `engine.row.Engine`. The name may also be module:Class, an engine of the
#: user's, which is imported in the engine's process alone and has no row.
ENGINES: Final[Mapping[str, str]] = {
    "auto": "djl_python.engine.builtin.row:ENGINE",
    "vllm": "djl_python.engine.vllm.row:ENGINE",
    "deepspeed": "djl_python.engine.deepspeed.row:ENGINE",
    "trtllm": "djl_python.engine.trtllm.row:ENGINE",
    "echo": "djl_python.engine.echo:ENGINE",
}
#: Engines that a task has, and no option names -> the row. They don't generate text.
ENGINES_OF_TASKS: Final[Mapping[str, str]] = {"encoder": "djl_python.engine.encoding.row:ENGINE"}
#: The engine that replaces one that is not installed.
BUILT_IN: Final = "auto"
#: The engine for a model on a GPU that names no engine, if it is installed.
BEST_ON_GPU: Final = "vllm"
#: Names of `option.rolling_batch` in LMI and DJL, of engines that this server does not have.
ABSENT: Final = frozenset("neuron neuronx tnx".split())
#: LMI's handlers that stand for an engine, where `option.rolling_batch` names none.
ENGINE_OF_HANDLER: Final[Mapping[str, str]] = {
    "djl_python.deepspeed": "deepspeed",
    "djl_python.lmi_vllm.vllm_async_service": "vllm",
    "djl_python.lmi_trtllm.trtllm_async_service": "trtllm",
    "djl_python.tensorrt_llm": "trtllm",
}
#: `engine` in serving.properties, lower-cased, that stands for an engine, where nothing else names one.
ENGINE_OF_DJL: Final[Mapping[str, str]] = {"deepspeed": "deepspeed"}
#: `engine` in serving.properties: names that stand for Python, as LMI's models of several ranks had MPI.
PYTHON_ENGINES: Final = frozenset({"python", "mpi"})
#: DJL's other engines: of Python's, and of Java's.
ABSENT_ENGINES: Final = frozenset(
    "rolling fastertransformer onnxruntime pytorch rust tensorflow tensorrt mxnet xgboost lightgbm".split()
)


class NoOptions(msgspec.Struct, frozen=True):
    """The options of an engine that has none of its own."""


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """The packages of an engine that is installed into an environment of its own.

    Attributes:
        cpu, cuda: what pip installs for machines without and with GPUs, in versions that were tried; (): nothing is
            made for such machines.
        unwanted_on_cpu: what `cpu` brings along and is removed again.
        from_source: packages that are installed last, because building them imports the others.
        compiles: a program that the environment's Python runs at the end, to compile extensions ahead of the engine's
            start; "": there is none.
        extensions: the folder of the environment that it compiles to (TORCH_EXTENSIONS_DIR).
        indexes: where pip looks beside its own index.
        pythons: the versions of Python that the packages are made for; (): any that runs this server.
        also: in words, what else is needed and pip can't install.
    """

    cpu: tuple[str, ...] = ()
    cuda: tuple[str, ...] = ()
    unwanted_on_cpu: tuple[str, ...] = ()
    from_source: tuple[str, ...] = ()
    compiles: str = ""
    extensions: str = ""
    indexes: tuple[str, ...] = ()
    pythons: tuple[tuple[int, int], ...] = ()
    also: str = ""

    def packages(self, device: str) -> tuple[str, ...]:
        """The packages that pip installs first for `device`, "cpu" or "cuda", including those that our code in an
        engine's process imports.
        """
        return (*(self.cuda if device == "cuda" else self.cpu), *PROCESS_NEEDS)

    def requirements(self, device: str) -> tuple[str, ...]:
        """All that is installed for `device`."""
        return (*self.from_source, *self.packages(device))

    def directory(self, engine: str, device: str, cache_dir: str) -> Path:
        """The directory of the environment, which depends on the versions of all packages.

        Raises:
            ConfigError: there is no place for it.
        """
        content = "\0".join((sys.version, *self.requirements(device))).encode()
        return engines_directory(cache_dir) / f"{engine}-{device}-{hashlib.sha256(content).hexdigest()[:12]}"


class EngineRow(Protocol):
    """The part of an engine's row that configuration reads."""

    @property
    def name(self) -> str:
        """The row's key in the table."""
        ...

    @property
    def summary(self) -> str:
        """What it is for, in a sentence."""
        ...

    @property
    def parameters(self) -> frozenset[str]:
        """Fields of `SamplingParams` that it honours."""
        ...

    @property
    def requires(self) -> tuple[str, ...]:
        """Modules that its Python must have."""
        ...

    @property
    def distribution(self) -> Distribution | None:
        """What `djl-serving engines install` installs; None: nothing."""
        ...

    @property
    def options(self) -> type[msgspec.Struct]:
        """Declares the engine's own `option.*` keys; `settings.Options` declares the common ones."""
        ...

    @property
    def takes_any_option(self) -> bool:
        """Whether it takes undeclared `option.*` keys."""
        ...

    @property
    def takes_adapters(self) -> bool:
        """Whether sequences may name LoRA adapters."""
        ...

    @property
    def options_without_effect(self) -> Mapping[str, str]:
        """Keys of `option.*`, without the prefix, that it knows and ignores -> why."""
        ...

    @property
    def remedy(self) -> str:
        """How to install it, in words."""
        ...

    def runtime(self, cache_dir: str) -> Runtime | None:
        """The runtime of its process; None: it is not installed."""
        ...


def engine_path(name: str) -> str:
    """The "module:attribute" of an engine's row, or of the user's own engine, which is not imported.

    Raises:
        ConfigError: the name is neither in the table nor such a path itself.
    """
    return path_of(ENGINES, name, "option.rolling_batch")


def engine_name(rolling_batch: str) -> str:
    """The engine's name that `option.rolling_batch` stands for; `disable` is the built-in one with another schema."""
    return BUILT_IN if rolling_batch == "disable" else rolling_batch


def own_options(rolling_batch: str) -> type[msgspec.Struct]:
    """The class that declares an engine's own options; one without fields for a name that is not in the table."""
    row = row_of(rolling_batch)
    return NoOptions if row is None else row.options


def row_of(rolling_batch: str) -> EngineRow | None:
    """An engine's row as configuration reads it; None for a name that is not in the table."""
    name = engine_name(rolling_batch)
    row: EngineRow | None = load_object(ENGINES[name]) if name in ENGINES else None
    return row


def all_options() -> Mapping[str, type[msgspec.Struct]]:
    """By engine: the class that declares its own options."""
    return {name: own_options(name) for name in ENGINES}
