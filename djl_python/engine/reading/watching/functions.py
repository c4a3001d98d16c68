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

# Names of their first arguments. A library may have the first of them by another name.
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
    """Context in which the model runs; its calls of these functions are added to `calls`.

    transformers before 5.15 has other forms of two of them. A module keeps the delta rule as an attribute of its own,
    and convolves by a module of torch, whose calls are recorded as those of the function.
    """
    with ExitStack() as stack:
        for file in files_of(model):
            for name in _ARGUMENTS:
                if (own := getattr(file, name, None)) is not None:
                    _replace(stack, file, name, _recording(name, own, calls))
                    for module, attribute in _kept_by_modules(model, own):
                        _replace(stack, module, attribute, _recording(name, own, calls))
        for module in model.modules():
            if _takes_convolution(module):
                _replace(stack, module, CONVOLUTION, _recording(CONVOLUTION, _convolution, calls))
            if type(module) is nn.Conv1d and module.groups == module.in_channels:
                stack.callback(module.register_forward_hook(_recorder(calls)).remove)
        yield


def _replace(stack: ExitStack, owner: Any, name: str, function: Callable[..., Any]) -> None:
    """Have `owner` call another function of this name until the stack is closed."""
    stack.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, function)


def _kept_by_modules(model: nn.Module, function: Any) -> list[tuple[nn.Module, str]]:
    """(module, attribute) of the modules that have the function as an attribute of their own."""
    return [(each, name) for each in model.modules() for name, value in vars(each).items() if value is function]


def _takes_convolution(module: nn.Module) -> bool:
    """Whether it calls a function for its convolution, with its activation, where the library with it is installed."""
    return CONVOLUTION in vars(module) and vars(module)[CONVOLUTION] is None


def _convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **_: Any
) -> Tensor:
    """The library's function on torch: x (1, channels, tokens), weight (channels, taps); as x.

    Raises:
        ValueError: the library does not know its activation.
    """
    channels, tokens = x.shape[1:]
    made = nn.functional.conv1d(x, weight[:, None], bias, padding=weight.shape[1] - 1, groups=channels)[..., :tokens]
    if activation not in (None, "silu", "swish"):
        raise ValueError(f"a convolution with {activation}")
    return made if activation is None else nn.functional.silu(made)


def _recorder(calls: list[FunctionCall]) -> Callable[..., None]:
    """Records a causal convolution's module as a call of the function, without an activation."""

    def record(module: nn.Conv1d, args: tuple[Any, ...], result: Tensor) -> None:
        (x,) = args
        arguments = {"hidden_states": x.clone(), "weight": module.weight[:, 0], "bias": module.bias}
        calls.append(FunctionCall(CONVOLUTION, arguments, result[..., : x.shape[-1]].clone()))

    return record


def _recording(name: str, own: Callable[..., Any], calls: list[FunctionCall]) -> Callable[..., Any]:
    def recorded(*args: Any, **kwargs: Any) -> Any:
        arguments = dict(zip(_ARGUMENTS[name], args, strict=False)) | kwargs
        if "x" in arguments:
            arguments[_ARGUMENTS[name][0]] = arguments.pop("x")
        # Cloned, because later operations may change them in place.
        kept = {key: value.clone() if isinstance(value, Tensor) else value for key, value in arguments.items()}
        result = own(*args, **kwargs)
        calls.append(FunctionCall(name, kept, result.clone() if isinstance(result, Tensor) else result))
        return result

    return recorded
