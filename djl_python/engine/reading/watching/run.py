"""Watches a random copy of a model run on a few tokens: modules that compute something, layers, attention calls.

Records their inputs and results. Runs in the engine process, once, before anything of the model is replaced.
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
from .attention import Call, watch_attention
from .copies import Copy
from .functions import Called, watch_functions

TOKENS: Final = 7
_FIRST_POSITION: Final = 3  # a rotation by position 0 would not show


@dataclass
class Event:
    """A call of a module.

    Attributes:
        module: the model's own, which has the weights that count.
        copied: the copy's, which was called.
    """

    module: Any
    copied: Any
    given: tuple[Any, ...]
    keywords: dict[str, Any]
    result: Any

    @property
    def x(self) -> Any:
        return self.given[0] if self.given else next(iter(self.keywords.values()), None)


@dataclass
class Span:
    """A layer's run: its input and result, and which slices of `Watched`'s lists belong to it.

    Attributes:
        layer, copied: as `Event` has them.
    """

    layer: nn.Module
    copied: nn.Module
    events: slice
    calls: slice
    called: slice
    given: Tensor
    result: Tensor


@dataclass
class Watched:
    events: list[Event] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    called: list[Called] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    logits: Tensor = field(default_factory=lambda: torch.empty(0))
    first_position: int = _FIRST_POSITION

    @property
    def positions(self) -> slice:
        return slice(self.first_position, self.first_position + TOKENS)


def watch(copy: Copy) -> Watched:
    seen, model = Watched(), copy.model
    layers = layer_list(model)
    with ExitStack() as stack:
        for module in model.modules():
            own = copy.original(module)
            rotary = "Rotary" in type(module).__name__
            weighted = any(True for _ in own.parameters(recurse=False)) or stacks_of(own)
            if rotary or weighted or not any(True for _ in module.children()):
                stack.callback(module.register_forward_hook(_recorder(seen, own), with_kwargs=True).remove)
        for layer in layers:
            stack.enter_context(_span(layer, copy.original(layer), seen))
        stack.enter_context(watch_functions(model, seen.called))
        stack.enter_context(watch_attention(model, seen.calls))
        if not _takes_positions(model):
            seen.first_position = 0
        seen.logits = _run(copy, seen.first_position).logits[0].float()
    if seen.calls and not any(seen.calls[span.calls] for span in seen.spans):  # found after the run
        if len(seen.calls) != len(seen.spans):
            raise NotUnderstoodError("attention does not run once in each layer")
        for i, span in enumerate(seen.spans):
            span.calls = slice(i, i + 1)
    return seen


def calls_at(copy: Copy, first_position: int, spans: Sequence[Span]) -> list[Call] | None:
    """The attention calls for the same tokens from another position on; None if the model takes no positions.

    Each layer is given what it was given in its span: what other positions change in one layer, such as a choice of
    experts, does not reach the next.
    """
    if not _takes_positions(copy.model):
        return None
    calls: list[Call] = []
    with _given_again(spans), watch_attention(copy.model, calls):
        _run(copy, first_position)
    return calls


@contextmanager
def _given_again(spans: Sequence[Span]) -> Iterator[None]:
    left = iter(spans)

    def before(module: nn.Module, given: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        hidden = next(left).given
        return ((hidden, *given[1:]), keywords) if given else (given, {**keywords, "hidden_states": hidden})

    with ExitStack() as stack:
        for layer in {span.copied for span in spans}:
            stack.callback(layer.register_forward_pre_hook(before, with_kwargs=True).remove)
        yield


def _takes_positions(model: Any) -> bool:
    return "position_ids" in inspect.signature(model.forward).parameters


def _run(copy: Copy, first_position: int) -> Any:
    ids = torch.tensor([[(11 * i + 5) % len(copy.tokens) for i in range(TOKENS)]])
    places = {"position_ids": torch.arange(first_position, first_position + TOKENS)[None]}
    return copy.model(input_ids=ids, **(places if _takes_positions(copy.model) else {}), use_cache=False)


def _recorder(seen: Watched, own: nn.Module) -> Callable[..., None]:
    def record(module: nn.Module, given: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> None:
        # Cloned, because later operations may change it in place.
        made = result.clone() if isinstance(result, Tensor) else result
        seen.events.append(Event(own, module, given, keywords, made))

    return record


@contextmanager
def _span(layer: nn.Module, own: nn.Module, seen: Watched) -> Iterator[None]:
    begun: list[tuple[tuple[int, ...], Tensor]] = []

    def ends() -> tuple[int, ...]:
        return tuple(len(each) for each in (seen.events, seen.calls, seen.called))

    def before(module: nn.Module, given: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        hidden = given[0] if given else keywords["hidden_states"]
        begun.append((ends(), hidden.clone()))

    def after(module: nn.Module, given: tuple[Any, ...], result: Any) -> None:
        first, hidden = begun.pop()
        out = result[0] if isinstance(result, (tuple, list)) else result
        events, calls, called = (slice(*each) for each in zip(first, ends(), strict=True))
        seen.spans.append(Span(own, layer, events, calls, called, hidden, out.clone()))

    hooks = (layer.register_forward_pre_hook(before, with_kwargs=True), layer.register_forward_hook(after))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def layer_list(model: Any) -> list[nn.Module]:
    """The decoder's layers: the longest list of modules of one class, or else the longest of any."""
    lists = [list(module) for module in model.modules() if isinstance(module, nn.ModuleList)]
    alike = [modules for modules in lists if len({type(one) for one in modules}) == 1]
    if not lists:
        raise NotUnderstoodError("no list of layers")
    return max(alike or lists, key=len)
