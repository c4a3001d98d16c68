"""Linears that tensor parallelism divides: a rank's part of matrices beside them, and of what these make.

Runs in the engine processes of the ranks. A rank has some rows of a linear's weight, and makes some of its results, or
some columns, and makes a share of each result; transformers has torch.distributed join or add up what all ranks make.
What belongs to a rank's part has to be added before that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

#: Makes what is added of the rows that a linear reads and of its results, both this rank's part: returns the sums.
Addition = Callable[[Tensor, Tensor], Tensor]


class PartForward:
    """A linear's forward within what tensor parallelism puts around it.

    Attributes:
        addition: changes the results before ranks join theirs; None: nothing does.
    """

    def __init__(self, linear: nn.Linear) -> None:
        self._forward = linear.forward
        self.addition: Addition | None = None

    def __call__(self, x: Tensor) -> Tensor:
        made = self._forward(x)
        return made if self.addition is None else self.addition(x, made)


def take_additions_(model: Any) -> None:
    """Have a model's linears take additions, before the model is divided and its weights are loaded."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.part = module.forward = PartForward(module)  # type: ignore[method-assign,assignment]


def part_forward(module: nn.Module) -> PartForward | None:
    """Where additions to a linear's results go; None: the module is no linear, or its model is not divided."""
    forward: PartForward | None = module.__dict__.get("part")
    return forward


def part_of(matrix: Tensor, module: nn.Module, dimension: int) -> Tensor:
    """A rank's part of a matrix beside a linear's weight, which is whole where the weight is.

    Args:
        matrix: (out, any) or (any, in).
        dimension: the one that it shares with the weight (out, in).
    """
    weight = module._parameters.get("weight")
    placements = getattr(weight, "placements", None)  # a DTensor has them
    if weight is None or placements is None or all(getattr(each, "dim", None) != dimension for each in placements):
        return matrix
    from torch.distributed.tensor import distribute_tensor

    mesh = weight.device_mesh  # type: ignore[attr-defined]
    return distribute_tensor(matrix, mesh, placements, src_data_rank=None).to_local()
