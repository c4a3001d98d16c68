"""A model's linears: which modules compute one, and a walk over all modules. Runs in the engine process, at load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from ..call_errors import CALL_ERRORS
from .dequantizing_linear import DequantizingLinear
from .weights import Weight, dense

_linear: Final[dict[type[nn.Linear], bool]] = {}  # class -> whether it computes a plain linear, once tried


@dataclass(frozen=True)
class RowOrigins:
    """Which rows of modules' weights the rows of a weight are.

    Attributes:
        modules: each module, and how many rows its own weight has.
        index: (out,) index in `modules` of each row's module; -1: the row is of no known module.
        rows: (out,) its row there.
        factors: (out,) what it was multiplied by; None: nothing.
    """

    modules: tuple[tuple[nn.Module, int], ...]
    index: Tensor
    rows: Tensor
    factors: Tensor | None = None

    @classmethod
    def of_module(cls, module: nn.Module, rows: int) -> RowOrigins:
        """All rows of a module's weight, in their order."""
        return cls(((module, rows),), torch.zeros(rows, dtype=torch.int32), torch.arange(rows, dtype=torch.int32))

    @classmethod
    def joined(cls, parts: Sequence[Linear]) -> RowOrigins:
        """The origins of several linears' rows, one linear after the other, none of them multiplied."""
        modules: list[tuple[nn.Module, int]] = []
        indices, rows = [], []
        for part in parts:
            unknown = torch.full((len(part.weight),), -1, dtype=torch.int32)
            known = part.origins
            indices.append(unknown if known is None else torch.where(known.index < 0, -1, known.index + len(modules)))
            rows.append(unknown if known is None else known.rows)
            modules += () if known is None else known.modules
        return cls(tuple(modules), torch.cat(indices), torch.cat(rows))

    def take(self, rows: Tensor) -> RowOrigins:
        """The origins of some rows of the weight, in this order."""
        factors = None if self.factors is None else self.factors[rows]
        return RowOrigins(self.modules, self.index[rows], self.rows[rows], factors)

    def times(self, factors: Tensor) -> RowOrigins:
        """The origins of the weight's rows times `factors`, (out,) or (1,)."""
        return replace(self, factors=(1.0 if self.factors is None else self.factors) * factors.expand(len(self.rows)))


@dataclass
class Linear:
    """out = in @ weight.T + bias; weight (out, in).

    Attributes:
        origins: where the weight's rows come from, as far as it is known.
    """

    weight: Weight
    bias: Tensor | None
    origins: RowOrigins | None = field(default=None, compare=False)

    @property
    def numbers(self) -> Tensor:
        """The weight as a tensor of numbers; codes are dequantized."""
        return dense(self.weight)

    def times(self, factors: Tensor | float) -> Linear:
        """A linear, in fp32, whose result is multiplied by factors, (out,) or one for all; codes are dequantized."""
        columns = torch.as_tensor(factors, dtype=torch.float32).view(-1, 1)
        bias = None if self.bias is None else self.bias.float() * columns[:, 0]
        origins = None if self.origins is None else self.origins.times(columns[:, 0])
        return Linear(self.numbers.float() * columns, bias, origins)


def as_linear(module: Any) -> Linear | None:
    """The linear that a module computes; None: it computes something else."""
    weight: Weight
    if isinstance(module, DequantizingLinear):
        weight = module.weight
    elif isinstance(module, nn.Linear) and (type(module).forward is nn.Linear.forward or _is_linear(module)):
        weight = module.weight.data
    elif type(module).__name__ == "Conv1D":  # GPT-2's linear, transposed
        weight = module.weight.data.T
    else:
        return None
    bias = None if module.bias is None else module.bias.data
    return Linear(weight, bias, RowOrigins.of_module(module, len(weight)))


def _is_linear(module: nn.Linear) -> bool:
    """Whether a subclass of `nn.Linear` computes the same, judged by its first instance; routers don't."""
    if type(module) not in _linear:
        x = torch.eye(2, module.in_features, dtype=module.weight.dtype, device=module.weight.device)
        try:
            made = nn.Module.__call__(module, x)
            _linear[type(module)] = isinstance(made, Tensor) and torch.equal(made, nn.Linear.forward(module, x))
        except CALL_ERRORS:  # it takes other inputs
            _linear[type(module)] = False
    return _linear[type(module)]


def child_modules(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """(parent, name, module) of every module in the model, also if modules are replaced during the iteration."""
    for parent in list(model.modules()):
        for name, module in list(parent.named_children()):
            yield parent, name, module
