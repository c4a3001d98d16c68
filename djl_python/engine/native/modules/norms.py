"""A norm on the native kernels, for models whose other parts torch runs. Runs in the engine process."""

from __future__ import annotations

import inspect
from typing import Any, Final

import torch
from torch import Tensor, nn

from ...checkpoints.misfits import MISFITS
from ...reading.copies import RandomNumbers, copy_model
from ...reading.identity import same
from ...reading.read_norms import gated_and_normed, likely_gated_norms
from ...reading.recipe_mixers import GatedNorm
from ..abi.decoder import GroupNormOp
from ..abi.enums import NormKind
from ..abi.operations import OperationArray
from ..abi.step_inputs import StepInputs
from ..thread_pool import ThreadPool

# Below this many elements the calling thread is done before another one is awake.
_SHARED_FROM: Final = 100_000


class NativeNorm(nn.Module):
    """A norm, with a gate if `forward` is given one.

    Args:
        own: the model's norm, which computes what the kernels don't support.
        pools: one of all threads, one of the calling thread alone.
    """

    def __init__(
        self, own: nn.Module, gated: GatedNorm, dtype: torch.dtype, pools: tuple[ThreadPool, ThreadPool]
    ) -> None:
        super().__init__()
        self.own = own
        self._dtype = dtype
        self._pools = pools
        norm = gated.norm
        self._columns = len(norm.weight)
        self._norm = norm
        operation = GroupNormOp(
            n=self._columns, group=gated.width, norm=NormKind.named(norm.kind), eps=norm.eps,
            weight=norm.weight.data_ptr(), bias=None if norm.bias is None else norm.bias.data_ptr(),
            gate_stride=self._columns, gate_first=gated.gate_first,
        )  # fmt: skip
        self._operations = OperationArray([operation])
        self._operation = self._operations.view(0, GroupNormOp)

    @classmethod
    def of(cls, own: nn.Module, dtype: torch.dtype, pools: tuple[ThreadPool, ThreadPool]) -> NativeNorm | None:
        """The native norm that computes the same as a module; None if the module is no norm, or does more."""
        weight = getattr(own, "weight", None)
        known = {"weight", "bias"}.issuperset(name for name, _ in own.named_parameters())
        if not known or not isinstance(weight, Tensor) or weight.dim() != 1 or any(True for _ in own.children()):
            return None
        random = torch.Generator().manual_seed(1)
        x, gate = (torch.randn(1, 3, len(weight), generator=random) + 0.5 for _ in range(2))
        copied = copy_model(own, RandomNumbers()).model
        try:
            _, *further = inspect.signature(own.forward).parameters.values()
            calls: list[tuple[Tensor, ...]] = (
                [] if further and further[0].default is inspect.Parameter.empty else [(x,)]
            )
            calls += [(x, gate)] if further else []
            made = [own(*(each.to(dtype) for each in given)) for given in calls]
            expected = [copied(*given) for given in calls]
        except MISFITS:
            return None
        if not all(isinstance(each, Tensor) and each.dtype == dtype and each.shape == x.shape for each in made):
            return None
        for likely, copy in zip(*map(likely_gated_norms, (own, copied)), strict=True):
            found = (gated_and_normed(given[0], given[1] if len(given) > 1 else None, copy) for given in calls)
            if all(same(*pair) for pair in zip(found, expected, strict=True)):
                return cls(own, likely, dtype, pools)
        return None

    def forward(self, hidden_states: Tensor, gate: Tensor | None = None, **more: Any) -> Tensor:
        """(..., columns) to (..., columns) in the model's dtype."""
        if more or hidden_states.dtype != self._dtype or (gate is not None and gate.dtype != self._dtype):
            made: Tensor = self.own(hidden_states, *(() if gate is None else (gate,)), **more)
            return made
        given = hidden_states.contiguous()
        made = torch.empty_like(given)
        gate = None if gate is None else gate.contiguous()
        opening = None if gate is None else gate.data_ptr()
        operation = self._operation  # making it anew takes ten times as long
        operation.in_, operation.out, operation.gate = given.data_ptr(), made.data_ptr(), opening
        pool = self._pools[given.numel() < _SHARED_FROM]
        step = StepInputs(tokens=given.numel() // self._columns)
        pool.run(self._operations, step, bf16=self._dtype == torch.bfloat16)
        return made

    @property
    def weight(self) -> Any:
        return self.own.weight
