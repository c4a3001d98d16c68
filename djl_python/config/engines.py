"""The table of engines, and what configuration reads of a row: the `option.*` keys that only this engine takes.

Runs in every process. A row is imported when it is named; it imports no engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

import msgspec

from ..core.registry import load_object, path_of

#: `option.rolling_batch` -> the row, an `engine.interface.Engine`. The name may also be module:Class, an engine of the
#: user's, which is imported in the engine's process alone and has no row.
ENGINES: Final[Mapping[str, str]] = {
    "auto": "djl_python.engine.builtin.row:ENGINE",
    "echo": "djl_python.engine.echo:ENGINE",
}
#: The engine that serves a model where the one that was asked for is not there.
BUILT_IN: Final = "auto"
#: Names of `option.rolling_batch` in LMI and DJL, of engines that this server does not have.
ABSENT: Final = frozenset("deepspeed lmi-dist neuronx tnx trtllm vllm".split())
#: `engine` in serving.properties: names that stand for Python, as LMI's models of several ranks had MPI.
PYTHON_ENGINES: Final = frozenset({"python", "mpi"})
#: DJL's other engines: of Python's, and of Java's.
ABSENT_ENGINES: Final = frozenset(
    "deepspeed rolling fastertransformer onnxruntime pytorch rust tensorflow tensorrt mxnet xgboost lightgbm".split()
)


class NoOptions(msgspec.Struct, frozen=True):
    """The options of an engine that has none of its own."""


class EngineOptions(Protocol):
    """What configuration reads of a row."""

    @property
    def name(self) -> str:
        """The row's key in the table."""
        ...

    @property
    def options(self) -> type[msgspec.Struct]:
        """Declares the engine's own `option.*` keys, as `settings.Options` declares everybody's."""
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
    name = engine_name(rolling_batch)
    if name not in ENGINES:
        return NoOptions
    row: EngineOptions = load_object(ENGINES[name])
    return row.options


def all_options() -> Mapping[str, type[msgspec.Struct]]:
    """By engine: the class that declares its own options."""
    return {name: own_options(name) for name in ENGINES}
