"""Runs a random copy of a model on a few tokens, and records calls of its modules, layers, attention and functions.

Runs in the engine process, at load, before anything of the model is replaced.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn

from ...checkpoints.expert_stacks import stacks_of
from ..recipe.primitives import NotUnderstoodError
from .attention import AttentionCall, watch_attention
from .copies import Copy
from .functions import FunctionCall, watch_functions

TOKENS: Final = 7
_FIRST_POSITION: Final = 3  # a rotation by position 0 would not show


@dataclass
class ModuleCall:
    """A call of a module.

    Attributes:
        module: the model's own, which has the weights that count.
        copied: the copy's, which was called.
    """

    module: Any
    copied: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any

    @property
    def x(self) -> Any:
        """The first argument."""
        return self.args[0] if self.args else next(iter(self.kwargs.values()), None)


@dataclass
class LayerRun:
    """A layer's run: its input and result, and which slices of `WatchedRun`'s lists belong to it.

    Attributes:
        layer: the model's own, which has the weights that count.
        copied: the copy's, which ran.
    """

    layer: nn.Module
    copied: nn.Module
    module_calls: slice
    attention_calls: slice
    function_calls: slice
    input: Tensor
    result: Tensor


@dataclass
class WatchedRun:
    """The records of a run, each list in the order of its calls.

    Attributes:
        logits: (tokens, vocabulary) fp32.
        first_position: of the tokens; 0 if the model takes no positions.
    """

    module_calls: list[ModuleCall] = field(default_factory=list)
    attention_calls: list[AttentionCall] = field(default_factory=list)
    function_calls: list[FunctionCall] = field(default_factory=list)
    layers: list[LayerRun] = field(default_factory=list)
    logits: Tensor = field(default_factory=lambda: torch.empty(0))
    first_position: int = _FIRST_POSITION

    @property
    def positions(self) -> slice:
        return slice(self.first_position, self.first_position + TOKENS)


def watch(copy: Copy) -> WatchedRun:
    """Run the copy on `TOKENS` tokens.

    Raises:
        NotUnderstoodError: it has no list of layers, or attention does not run once in each.
    """
    seen, model = WatchedRun(), copy.model
    with recorded(copy, seen), watch_attention(model, seen.attention_calls):
        if not _takes_positions(model):
            seen.first_position = 0
        seen.logits = _run(copy, seen.first_position).logits[0].float()
    calls = seen.attention_calls
    if calls and not any(calls[layer.attention_calls] for layer in seen.layers):  # found after the run
        if len(calls) != len(seen.layers):
            raise NotUnderstoodError("attention does not run once in each layer")
        for i, run in enumerate(seen.layers):
            run.attention_calls = slice(i, i + 1)
    return seen


@contextmanager
def recorded(copy: Copy, seen: WatchedRun) -> Iterator[None]:
    """Context in which the copy runs, and its calls of modules, layers and functions are recorded; not of attention.

    Raises:
        NotUnderstoodError: it has no list of layers.
    """
    model = copy.model
    layers = layer_list(model)
    with ExitStack() as stack:
        for module in model.modules():
            own = copy.original(module)
            rotary = "Rotary" in type(module).__name__
            weighted = any(True for _ in own.parameters(recurse=False)) or stacks_of(own)
            if rotary or weighted or not any(True for _ in module.children()):
                stack.callback(module.register_forward_hook(_recorder(seen, own), with_kwargs=True).remove)
        for layer in layers:
            stack.enter_context(_recorded_layer(layer, copy.original(layer), seen))
        stack.enter_context(watch_functions(model, seen.function_calls))
        yield


def attention_calls_at(copy: Copy, first_position: int, layers: Sequence[LayerRun]) -> list[AttentionCall] | None:
    """The attention calls for the same tokens from another position on; None if the model takes no positions.

    Each layer reads its recorded input again: changes that other positions cause in one layer, such as a choice of
        experts, do not reach the next.
    """
    if not _takes_positions(copy.model):
        return None
    calls: list[AttentionCall] = []
    with _recorded_inputs(layers), watch_attention(copy.model, calls):
        _run(copy, first_position)
    return calls


@contextmanager
def _recorded_inputs(layers: Sequence[LayerRun]) -> Iterator[None]:
    """Context in which each layer reads its recorded input, whatever it is given."""
    left = iter(layers)

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        hidden = next(left).input
        return ((hidden, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": hidden})

    with ExitStack() as stack:
        for layer in {run.copied for run in layers}:
            stack.callback(layer.register_forward_pre_hook(before, with_kwargs=True).remove)
        yield


def _takes_positions(model: Any) -> bool:
    return "position_ids" in inspect.signature(model.forward).parameters


def _run(copy: Copy, first_position: int) -> Any:
    ids = torch.tensor([[(11 * i + 5) % len(copy.tokens) for i in range(TOKENS)]])
    positions = {"position_ids": torch.arange(first_position, first_position + TOKENS)[None]}
    return copy.model(input_ids=ids, **(positions if _takes_positions(copy.model) else {}), use_cache=False)


def _recorder(seen: WatchedRun, own: nn.Module) -> Callable[..., None]:
    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        # Cloned, because later operations may change it in place.
        kept = result.clone() if isinstance(result, Tensor) else result
        seen.module_calls.append(ModuleCall(own, module, args, kwargs, kept))

    return record


@contextmanager
def _recorded_layer(layer: nn.Module, own: nn.Module, seen: WatchedRun) -> Iterator[None]:
    """Context in which each run of a layer is added to `seen.layers`."""
    begun: list[tuple[tuple[int, ...], Tensor]] = []

    def counts() -> tuple[int, ...]:
        return tuple(len(each) for each in (seen.module_calls, seen.attention_calls, seen.function_calls))

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = args[0] if args else kwargs["hidden_states"]
        begun.append((counts(), hidden.clone()))

    def after(module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        first, hidden = begun.pop()
        out = result[0] if isinstance(result, (tuple, list)) else result
        modules, attentions, functions = (slice(*each) for each in zip(first, counts(), strict=True))
        seen.layers.append(LayerRun(own, layer, modules, attentions, functions, hidden, out.clone()))

    hooks = (layer.register_forward_pre_hook(before, with_kwargs=True), layer.register_forward_hook(after))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def layer_list(model: Any) -> list[nn.Module]:
    """The decoder's layers: the longest list of modules of one class, or else the longest of any.

    Raises:
        NotUnderstoodError: the model has no list of modules.
    """
    lists = [list(module) for module in model.modules() if isinstance(module, nn.ModuleList)]
    alike = [modules for modules in lists if len({type(module) for module in modules}) == 1]
    if not lists:
        raise NotUnderstoodError("no list of layers")
    return max(alike or lists, key=len)
