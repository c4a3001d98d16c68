"""Linears whose weights stay the quantized codes of their checkpoint. Runs in the engine process.

Kernels ask for the codes in their own layout; a model that is being watched multiplies with the dequantized numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from .quantization import Codes, alike
from .quantized_checkpoint import CodedCheckpoint
from .unpacking import StoredCodes


class CodedLinear(nn.Module):
    """x @ weight.T + bias, dequantizing the weight each time: to run a model often, such linears are replaced.

    Args:
        shape: (out, in).
        stored: the linear's name in the checkpoint.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        checkpoint: CodedCheckpoint,
        stored: str,
        bias: nn.Parameter | None,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = shape
        self._checkpoint, self._stored, self.dtype = checkpoint, stored, dtype
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out)"""
        return nn.functional.linear(x, self.dense(), self.bias)

    @property
    def weight(self) -> CodedWeight:
        """(out, in). The code of many models looks at its dtype."""
        return CodedWeight((self,))

    @property
    def stored(self) -> list[Tensor]:
        """The tensors that the checkpoint holds."""
        return list(self._checkpoint.tensors(self._stored).values())

    def codes(self) -> StoredCodes:
        return self._checkpoint.codes(self._stored, self.in_features)

    def dense(self) -> Tensor:
        """(out, in)"""
        return self.codes().values(self.dtype)


@dataclass(frozen=True)
class CodedWeight:
    """Weights of coded linears, concatenated by rows, or some of these rows: a `StoredWeight`."""

    linears: tuple[CodedLinear, ...]
    rows: Tensor | None = None
    _is_hf_initialized: ClassVar[bool] = True  # so that transformers leaves it as it is

    def __len__(self) -> int:
        return sum(each.out_features for each in self.linears) if self.rows is None else len(self.rows)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.linears[0].in_features

    @property
    def dtype(self) -> torch.dtype:
        return self.linears[0].dtype

    @property
    def stored(self) -> list[Tensor]:
        return [tensor for each in self.linears for tensor in each.stored]

    def __getitem__(self, rows: Tensor | slice) -> CodedWeight:
        if isinstance(rows, slice):
            if self.rows is None and (whole := self._whole(range(len(self))[rows])):
                return CodedWeight(whole)
            rows = torch.arange(len(self))[rows]
        return CodedWeight(self.linears, rows if self.rows is None else self.rows[rows])

    def _whole(self, rows: range) -> tuple[CodedLinear, ...]:
        """The linears that have exactly these rows; empty if they begin or end within a linear."""
        starts = list(itertools.accumulate((each.out_features for each in self.linears), initial=0))
        if rows.step != 1 or rows.start not in starts or rows.stop not in starts:
            return ()
        return self.linears[starts.index(rows.start) : starts.index(rows.stop)]

    def dense(self) -> Tensor:
        return self._chosen(torch.cat([each.dense() for each in self.linears]))

    def codes(self) -> Codes | None:
        parts = alike([each.codes().for_kernels() for each in self.linears])
        if not parts:
            return None
        codes, scales, zeros = (
            self._chosen(torch.cat([getattr(part, name) for part in parts])) for name in ("codes", "scales", "zeros")
        )
        return Codes(parts[0].bits, codes, scales, zeros, parts[0].order)

    def _chosen(self, rows: Tensor) -> Tensor:
        return rows if self.rows is None else rows[self.rows]


class Stored(Protocol):
    """Something whose tensors a checkpoint holds."""

    @property
    def stored(self) -> list[Tensor]:
        """The tensors that the checkpoint holds."""
        ...


class StoredWeight(Stored, Protocol):
    """A weight (n, k) that stays in its checkpoint: codes, or numbers that are not in memory yet."""

    def __len__(self) -> int: ...

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def dense(self) -> Tensor:
        """(n, k)"""
        ...

    def codes(self) -> Codes | None:
        """The codes for kernels; None if there are none that kernels can take."""
        ...


Weight = Tensor | StoredWeight


def dense(weight: Weight) -> Tensor:
    """The weight's numbers (n, k), dequantized where it has codes."""
    return weight if isinstance(weight, Tensor) else weight.dense()


def concat_rows(weights: Sequence[Weight]) -> Tensor | CodedWeight:
    """Concatenate weights (n, k) by rows. The result has numbers, unless all are whole weights of coded linears."""
    coded = [weight for weight in weights if isinstance(weight, CodedWeight) and weight.rows is None]
    if len(coded) == len(weights):
        return CodedWeight(tuple(linear for weight in coded for linear in weight.linears))
    return torch.cat([dense(weight) for weight in weights])


def halves(weight: Weight) -> tuple[Weight, Weight]:
    """The first and the second half of a weight's rows."""
    if isinstance(weight, CodedWeight):
        half = -(-len(weight) // 2)
        return weight[:half], weight[half:]
    first, second = dense(weight).chunk(2)
    return first, second


def tensors_of(weight: Tensor | Stored) -> list[Tensor]:
    """The tensors that a checkpoint holds of a weight."""
    return [weight] if isinstance(weight, Tensor) else weight.stored
