"""Records calls of functions that transformers' modules call by name. Runs in the engine process, at load."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from torch import Tensor, nn

DELTA_RULE: Final = "torch_chunk_gated_delta_rule"
CONVOLUTION: Final = "causal_conv1d_fn"
SCAN: Final = "mamba2_chunk_scan"
SELECTIVE_SCAN: Final = "mamba_selective_scan"

# Names of their first arguments.
_ARGUMENTS: Final = {
    DELTA_RULE: ("query", "key", "value", "g", "beta"),
    CONVOLUTION: ("hidden_states", "weight", "bias", "activation"),
    SCAN: ("hidden_states", "dt", "A", "B", "C"),
    SELECTIVE_SCAN: ("hidden_states", "dt", "A", "B", "C"),
}


@dataclass(frozen=True)
class FunctionCall:
    """One call of a function: its arguments, by name, and its result."""

    name: str
    arguments: dict[str, Any]
    result: Any


def files_of(model: nn.Module) -> list[ModuleType]:
    """The Python modules that define the classes of a model's modules."""
    files = {id(file): file for module in model.modules() if (file := sys.modules.get(type(module).__module__))}
    return list(files.values())


@contextmanager
def watch_functions(model: nn.Module, calls: list[FunctionCall]) -> Iterator[None]:
    """Context in which the model runs; its calls of these functions are added to `calls`."""
    with ExitStack() as stack:
        for file in files_of(model):
            for name in _ARGUMENTS:
                if (own := getattr(file, name, None)) is not None:
                    stack.callback(setattr, file, name, own)
                    setattr(file, name, _recording(name, own, calls))
        yield


def _recording(name: str, own: Callable[..., Any], calls: list[FunctionCall]) -> Callable[..., Any]:
    def recorded(*args: Any, **kwargs: Any) -> Any:
        arguments = dict(zip(_ARGUMENTS[name], args, strict=False)) | kwargs
        # Cloned, because later operations may change them in place.
        kept = {key: value.clone() if isinstance(value, Tensor) else value for key, value in arguments.items()}
        result = own(*args, **kwargs)
        calls.append(FunctionCall(name, kept, result.clone() if isinstance(result, Tensor) else result))
        return result

    return recorded
