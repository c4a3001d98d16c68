"""An MLP on the native kernels, for models whose other parts torch runs. Runs in the engine process."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Final

import torch
from torch import Tensor, nn

from ...checkpoints.misfits import MISFITS
from ...reading.copies import RandomNumbers, copy_model
from ...reading.parts import as_linear
from ...reading.read_mlp import read_mlp
from ...reading.recipe import Mlp
from ...reading.recipe_parts import Linear, NotUnderstoodError
from ...reading.watch import Event
from ...torch_backend.attention import watching
from ..abi.parts import Epilogue
from ..packing import Packed
from ..program.builders.mlp import epilogue_of
from ..thread_pool import ThreadPool
from .linears import Products, rows_of

_MOST_LINEARS: Final = 3


class NativeMlp(nn.Module):
    """down(activation(gate(x)) * up(x)), or down(activation(up(x))), in one call of the kernels.

    Args:
        up: packed together with the gate, if there is one.
    """

    def __init__(self, mlp: Mlp, up: Packed, down: Packed, pool: ThreadPool, dtype: torch.dtype) -> None:
        super().__init__()
        for name, packed in (("up", up), ("down", down)):
            self.register_buffer(name, packed.panels, persistent=False)  # counted among the weights that a step reads
        self._width, self._inner, self._columns = up.k, up.n, down.n
        self._pool = pool
        self._dtype = dtype
        self._products = Products((up, epilogue_of(mlp)), (down, Epilogue()))

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) to (..., width) in the model's dtype."""
        rows = rows_of(x, self._width, self._dtype)
        inner, made = (torch.empty(len(rows), columns, dtype=self._dtype) for columns in (self._inner, self._columns))
        self._products.run(self._pool, (rows, inner), (inner, made))
        return made.view(*x.shape[:-1], self._columns)

    def _apply(self, *arguments: Any, **named: Any) -> nn.Module:
        return self


def as_mlp(module: nn.Module) -> Mlp | None:
    """The MLP that a module of two or three linears computes; None if it is no MLP, or computes more.

    A copy with random weights is tried.
    """
    linears = {each: linear for each in module.modules() if (linear := as_linear(each)) is not None}
    if not 1 < len(linears) <= _MOST_LINEARS or as_linear(module) is not None:
        return None
    of_linears = {id(parameter) for each in linears for parameter in each.parameters()}
    if any(id(parameter) not in of_linears for parameter in module.parameters()):
        return None
    copy = copy_model(module, RandomNumbers())
    x = torch.randn(1, 3, next(iter(linears.values())).weight.shape[1], generator=torch.Generator().manual_seed(1))
    events: list[tuple[Event, Linear]] = []
    with ExitStack() as hooks:
        for each in copy.model.modules():
            if (own := copy.original(each)) not in linears:
                continue

            def note(copied: nn.Module, given: tuple[Tensor, ...], made: Tensor, own: nn.Module = own) -> None:
                events.append((Event(own, copied, given, {}, made.clone()), linears[own]))

            hooks.callback(each.register_forward_hook(note).remove)
        try:
            hooks.enter_context(watching(lambda *_: None))  # the module may be an attention
            made = copy.model(x)
            mlp, given, result = read_mlp(events)
        except (*MISFITS, NotUnderstoodError):
            return None
    return mlp if isinstance(made, Tensor) and torch.equal(given, x) and torch.equal(made, result) else None
