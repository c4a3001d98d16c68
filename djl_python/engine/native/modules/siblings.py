"""Computes linears that are given the same tensor in one call of the kernels. Runs in the engine process.

A model that torch runs asks for queries, keys and values one by one. Each call of the kernels pays for cold caches, so
the first of these linears has all of them computed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ...reading.parts import places_in
from ..abi.parts import Epilogue
from .linears import NativeLinear, Products, rows_of


class Siblings:
    """Linears of one parent, in the order in which they are called with the same tensor."""

    def __init__(self, linears: list[NativeLinear]) -> None:
        self._linears = linears
        self._products = Products(*((each.packed, Epilogue()) for each in linears))
        self._given: Tensor | None = None
        self._made: dict[NativeLinear, Tensor] = {}

    def of(self, linear: NativeLinear, x: Tensor) -> Tensor:
        """A linear's result for x."""
        if x is not self._given or linear not in self._made:
            self._compute(x)
        made = self._made.pop(linear)
        if not self._made:
            self._given = None
        return made

    def _compute(self, x: Tensor) -> None:
        first = self._linears[0]
        rows = rows_of(x, first.in_features, first.dtype)
        made = [torch.empty(len(rows), each.out_features, dtype=first.dtype) for each in self._linears]
        self._products.run(first.pool, *((rows, each) for each in made))
        self._given = x
        self._made = {
            each: out.view(*x.shape[:-1], each.out_features) for each, out in zip(self._linears, made, strict=True)
        }


@contextmanager
def joined(model: nn.Module) -> Iterator[None]:
    """Context in which the model runs once; after it, siblings are computed together."""
    calls: list[tuple[nn.Module, NativeLinear, Any]] = []
    with ExitStack() as hooks:
        for parent, _, child in places_in(model):
            if not isinstance(child, NativeLinear):
                continue

            def note(
                _: nn.Module, given: tuple[Any, ...], parent: nn.Module = parent, child: NativeLinear = child
            ) -> None:
                calls.append((parent, child, given[0] if given else object()))

            hooks.callback(child.register_forward_pre_hook(note).remove)
        yield
    for _, group in itertools.groupby(calls, key=lambda call: (id(call[0]), id(call[2]))):
        linears = list(dict.fromkeys(linear for _, linear, _ in group))
        if len(linears) > 1 and all(each.siblings is None for each in linears):
            siblings = Siblings(linears)
            for each in linears:
                each.siblings = siblings
