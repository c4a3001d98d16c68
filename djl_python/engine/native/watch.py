"""Watches a model run on a few tokens: every module that computes itself, every layer, every attention call.

What each is given and what it makes. Runs in the engine process, once, before anything of the model is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn

from ..attention import watching
from .mapped import in_passing
from .recipe import NotUnderstoodError

TOKENS: Final = 7
FIRST_POSITION: Final = 3  # rotations by position 0 would show nothing


@dataclass
class Event:
    module: Any
    given: tuple[Any, ...]
    keywords: dict[str, Any]
    result: Any

    @property
    def x(self) -> Any:
        return self.given[0] if self.given else next(iter(self.keywords.values()), None)


@dataclass
class Call:
    """One call of the attention function; tensors are (1, heads, tokens, dim), the result (1, tokens, heads, dim)."""

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    result: Tensor
    scale: float
    window: int
    softcap: float
    sinks: Tensor | None


@dataclass
class Watched:
    events: list[Event] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    spans: list[tuple[int, int, Tensor, Tensor]] = field(default_factory=list)  # of a layer: events, input, output
    logits: Tensor = field(default_factory=lambda: torch.empty(0))


def watch(model: Any) -> Watched:
    seen = Watched()
    layers = _layer_list(model)
    with ExitStack() as stack:
        for module in model.modules():
            rotary = "Rotary" in type(module).__name__
            weighted = any(True for _ in module.parameters(recurse=False))
            if rotary or weighted or not any(True for _ in module.children()):
                stack.callback(module.register_forward_hook(_recorder(seen), with_kwargs=True).remove)
        for layer in layers:
            stack.enter_context(_span(layer, seen))
        stack.enter_context(in_passing(model))
        stack.enter_context(watching(lambda *call: seen.calls.append(Call(*call))))
        vocabulary = model.get_input_embeddings().weight.shape[0]
        ids = torch.tensor([[(11 * i + 5) % vocabulary for i in range(TOKENS)]])
        positions = torch.arange(FIRST_POSITION, FIRST_POSITION + TOKENS)[None]
        seen.logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits[0].float()
    return seen


def _recorder(seen: Watched) -> Callable[..., None]:
    def record(module: nn.Module, given: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> None:
        seen.events.append(Event(module, given, keywords, result))

    return record


@contextmanager
def _span(layer: nn.Module, seen: Watched) -> Iterator[None]:
    begun: list[tuple[int, Tensor]] = []

    def before(module: nn.Module, given: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        hidden = given[0] if given else keywords["hidden_states"]
        begun.append((len(seen.events), hidden.clone()))

    def after(module: nn.Module, given: tuple[Any, ...], result: Any) -> None:
        first, hidden = begun.pop()
        out = result[0] if isinstance(result, tuple) else result
        seen.spans.append((first, len(seen.events), hidden, out.clone()))

    hooks = (layer.register_forward_pre_hook(before, with_kwargs=True), layer.register_forward_hook(after))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _layer_list(model: Any) -> list[nn.Module]:
    """The longest list of alike modules: the decoder's layers."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len({type(one) for one in m}) == 1]
    if not lists:
        raise NotUnderstoodError("no list of layers")
    return max((list(modules) for modules in lists), key=len)
