"""The experts that a model chooses in a check, and how a runner is given the same. Runs in the engine process, at load.

A router's choice is a step: of two experts that are as good as each other, rounding takes one. Everything after that
has other numbers, though nothing is wrong. So a runner can be given the model's choices: then its numbers are the
model's but for rounding, and its own choices are compared with the model's one by one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor, nn

from .native.read_experts import Choose, choice_among, holds_experts

#: Makes a context in which a runner has a `Choose` for its choices.
Routing = Callable[[Choose], AbstractContextManager[None]]


@contextmanager
def routing(model: nn.Module, choose: Choose) -> Iterator[None]:
    """Context in which a transformers model reads one sequence, in pieces or not, with the experts that are chosen."""
    holders = [module for module in model.modules() if holds_experts(module)]
    read = Counter[int]()

    def before(module: nn.Module, given: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        found, layer = choice_among([*given, *keywords.values()]), holders.index(module)
        if found is None:
            return None
        rows = found.x.shape[:-1].numel()
        experts, weights = (each.reshape(rows, -1).clone() for each in (found.experts, found.weights))
        choose(layer, torch.arange(read[layer], read[layer] + rows), experts, weights)
        read[layer] += rows
        changed = {id(found.experts): experts.view_as(found.experts), id(found.weights): weights.view_as(found.weights)}
        return (
            tuple(changed.get(id(each), each) for each in given),
            {name: changed.get(id(each), each) for name, each in keywords.items()},
        )

    with ExitStack() as stack:
        for holder in holders:
            stack.callback(holder.register_forward_pre_hook(before, with_kwargs=True).remove)
        yield


class Routes:
    """The model's choices for the tokens of a check, by layer, and how far a runner's own are from them.

    Attributes:
        off: by layer, for each token: the distance of the weights by expert from the model's own, relative to these.
    """

    def __init__(self) -> None:
        self._chosen: dict[int, tuple[Tensor, Tensor]] = {}
        self.off: dict[int, list[float]] = {}

    def __bool__(self) -> bool:
        return bool(self._chosen)

    def note(self, layer: int, places: Tensor, experts: Tensor, weights: Tensor) -> None:
        """Take what is chosen as the model's own: a `Choose` that changes nothing."""
        self._chosen[layer] = experts.clone(), weights.clone()

    def give(self, layer: int, places: Tensor, experts: Tensor, weights: Tensor) -> None:
        """Put the model's own in the place of what is chosen."""
        own_experts, own_weights = (each[places] for each in self._chosen[layer])
        count = 1 + int(max(experts.max(), own_experts.max()))
        own, theirs = _by_expert(own_experts, own_weights, count), _by_expert(experts, weights, count)
        self.off.setdefault(layer, []).extend(((theirs - own).norm(dim=1) / own.norm(dim=1)).tolist())
        experts.copy_(own_experts)
        weights.copy_(own_weights)

    def furthest(self) -> tuple[float, float]:
        """(on average, of half of the tokens) how far choices were from the model's own, in the worst layer.

        Other experts are off by 1.4, other weights of the same experts by their difference, for every token. Infinite
        if not every layer was given the model's own choices.
        """
        if self.off.keys() != self._chosen.keys():
            return math.inf, math.inf
        return max(map(fmean, self.off.values())), max(map(median, self.off.values()))


def _by_expert(experts: Tensor, weights: Tensor, count: int) -> Tensor:
    """(tokens, count) fp32 weights."""
    return torch.zeros(len(experts), count).scatter_add_(1, experts.cpu().long(), weights.cpu().float())
