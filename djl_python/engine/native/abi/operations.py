"""All kinds of operations, and arrays of them as the kernels run them. Engine process; no torch."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Final, TypeVar

from .decoder import (
    AttentionOp,
    ClearValuesOp,
    EmbedOp,
    GateOp,
    GatherOp,
    GroupNormOp,
    LatentsOp,
    LinearOp,
    NormOp,
    QuantizeOp,
    RopeKvCacheOp,
)
from .encoder import EmbedTextOp
from .enums import Kind
from .experts import CombineOp, DispatchOp, RouteOp, SortOp
from .low_rank import LowRankEmbedOp, LowRankOp
from .recurrent import (
    CausalConvOp,
    CausalConvSpansOp,
    DeltaRatesOp,
    DeltaRuleOp,
    Mamba1ScanOp,
    Mamba2ScanOp,
    StepSizesOp,
)
from .sampling import PackBlocksOp, PackOp, RescoreOp, RoundBlocksOp, RoundWeightsOp, SampleOp, UnpackBlocksOp
from .structures import Operation

#: In the order of `Kind`.
OPERATIONS: Final[tuple[type[Operation], ...]] = (
    EmbedOp, NormOp, LinearOp, RopeKvCacheOp, AttentionOp, GatherOp, QuantizeOp, SampleOp, PackOp, RouteOp, SortOp,
    DispatchOp, CombineOp, DeltaRuleOp, ClearValuesOp, CausalConvOp, Mamba2ScanOp, GroupNormOp, CausalConvSpansOp,
    DeltaRatesOp, GateOp, StepSizesOp, Mamba1ScanOp, LatentsOp, RescoreOp, RoundWeightsOp,
    EmbedTextOp, LowRankOp, LowRankEmbedOp, PackBlocksOp, UnpackBlocksOp, RoundBlocksOp,
)  # fmt: skip

O = TypeVar("O", bound=Operation)  # noqa: E741


class Op(ctypes.Union):
    """Any operation, as C++ has it in an array: `kind` says of which member it is."""

    _fields_ = [(kind.name.lower(), operation) for kind, operation in zip(Kind, OPERATIONS, strict=True)]


class OperationArray:
    """Copies of operations, one after the other in memory, which the kernels run.

    Attributes:
        address: of the first.
    """

    def __init__(self, operations: Iterable[Operation]) -> None:
        given = list(operations)
        self._array = (Op * len(given))()
        self._kinds = [type(each) for each in given]
        self.address = ctypes.addressof(self._array)
        for index, each in enumerate(given):
            ctypes.memmove(self._at(index), ctypes.addressof(each), ctypes.sizeof(each))

    def __len__(self) -> int:
        return len(self._kinds)

    def view(self, index: int, kind: type[O]) -> O:
        """One of the operations, which must be of this kind, in place: to change it is to change what is run."""
        index = range(len(self))[index]
        assert self._kinds[index] is kind, f"{self._kinds[index].__name__} {index} is no {kind.__name__}"
        return kind.from_buffer(self._array, index * ctypes.sizeof(Op))

    def _at(self, index: int) -> int:
        return self.address + index * ctypes.sizeof(Op)
