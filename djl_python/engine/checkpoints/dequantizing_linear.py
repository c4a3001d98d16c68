"""Linears whose weights stay the quantized codes of their checkpoint. Runs in the engine process.

Kernels ask for the codes in their own format; a model that is being watched multiplies with the dequantized numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..transformers_private import NotInitialized
from .quantization import Codes, concatenable
from .quantized_checkpoint import QuantizedCheckpoint
from .unpacking import UnpackedWeight
from .weights import Weight, dense


class DequantizingLinear(nn.Module):
    """x @ weight.T + bias, dequantizing the weight each time: to run a model often, such linears are replaced.

    Args:
        shape: (out, in).
        name: the linear's name in the checkpoint.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        checkpoint: QuantizedCheckpoint,
        name: str,
        bias: nn.Parameter | None,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = shape
        self._checkpoint, self._name, self.dtype = checkpoint, name, dtype
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out)"""
        return nn.functional.linear(x, self.dense(), self.bias)

    @property
    def weight(self) -> QuantizedWeight:
        """(out, in). The code of many models looks at its dtype."""
        return QuantizedWeight((self,))

    @property
    def checkpoint_tensors(self) -> list[Tensor]:
        """The tensors that the checkpoint holds."""
        return list(self._checkpoint.tensors(self._name).values())

    def codes(self) -> UnpackedWeight:
        return self._checkpoint.codes(self._name, self.in_features)

    def dense(self) -> Tensor:
        """(out, in)"""
        return self.codes().values(self.dtype)


@dataclass(frozen=True)
class QuantizedWeight(NotInitialized):
    """Weights of dequantizing linears, concatenated by rows, or some of these rows: a `CheckpointWeight`."""

    linears: tuple[DequantizingLinear, ...]
    rows: Tensor | None = None

    def __len__(self) -> int:
        return sum(each.out_features for each in self.linears) if self.rows is None else len(self.rows)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.linears[0].in_features

    @property
    def dtype(self) -> torch.dtype:
        return self.linears[0].dtype

    @property
    def checkpoint_tensors(self) -> list[Tensor]:
        return [tensor for each in self.linears for tensor in each.checkpoint_tensors]

    def __getitem__(self, rows: Tensor | slice) -> QuantizedWeight:
        if isinstance(rows, slice):
            if self.rows is None and (whole := self._whole(range(len(self))[rows])):
                return QuantizedWeight(whole)
            rows = torch.arange(len(self))[rows]
        return QuantizedWeight(self.linears, rows if self.rows is None else self.rows[rows])

    def _whole(self, rows: range) -> tuple[DequantizingLinear, ...]:
        """The linears that have exactly these rows; empty if they begin or end within a linear."""
        starts = list(itertools.accumulate((each.out_features for each in self.linears), initial=0))
        if rows.step != 1 or rows.start not in starts or rows.stop not in starts:
            return ()
        return self.linears[starts.index(rows.start) : starts.index(rows.stop)]

    def dense(self) -> Tensor:
        return self._chosen(torch.cat([each.dense() for each in self.linears]))

    def codes(self) -> Codes | None:
        parts = concatenable([each.codes().for_kernels() for each in self.linears])
        if not parts:
            return None
        codes, scales, zeros = (
            self._chosen(torch.cat([getattr(part, name) for part in parts])) for name in ("codes", "scales", "zeros")
        )
        return Codes(parts[0].bits, codes, scales, zeros, parts[0].order)

    def _chosen(self, rows: Tensor) -> Tensor:
        return rows if self.rows is None else rows[self.rows]


def concat_rows(weights: Sequence[Weight]) -> Tensor | QuantizedWeight:
    """Concatenate weights (n, k) by rows; to a tensor, unless all are whole weights of dequantizing linears."""
    quantized = [weight for weight in weights if isinstance(weight, QuantizedWeight) and weight.rows is None]
    if len(quantized) == len(weights):
        return QuantizedWeight(tuple(linear for weight in quantized for linear in weight.linears))
    return torch.cat([dense(weight) for weight in weights])


def halves(weight: Weight) -> tuple[Weight, Weight]:
    """The first and the second half of a weight's rows."""
    if isinstance(weight, QuantizedWeight):
        half = -(-len(weight) // 2)
        return weight[:half], weight[half:]
    first, second = dense(weight).chunk(2)
    return first, second
