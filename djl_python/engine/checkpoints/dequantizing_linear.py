"""Linears whose weights stay the quantized codes of their checkpoint. Runs in the engine process.

Kernels ask for the codes in their own format; a model that is being watched multiplies with the dequantized numbers.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from ..transformers_private import NotInitialized
from .blocks import BlockRows
from .quantization import Codes, concatenable
from .weights import Weight, dense


class LinearSource(Protocol):
    """Where the codes of a linear's weight (n, k) are."""

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that the checkpoint holds."""
        ...

    def dense(self, dtype: torch.dtype, rows: Tensor | None = None) -> Tensor:
        """The dequantized weight, or some of its rows."""
        ...

    def codes(self) -> Codes | None:
        """Codes in groups for kernels; None: kernels do not support this form."""
        ...

    def blocks(self) -> BlockRows | None:
        """Codes in GGUF's blocks; None: they are no such."""
        ...


class DequantizingLinear(nn.Module):
    """x @ weight.T + bias, dequantizing the weight each time: to run a model often, such linears are replaced.

    Args:
        shape: (out, in).
    """

    def __init__(
        self, shape: tuple[int, int], source: LinearSource, bias: nn.Parameter | None, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = shape
        self.source, self.dtype = source, dtype
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
        return self.source.tensors

    def dense(self) -> Tensor:
        """(out, in)"""
        return self.source.dense(self.dtype)


class DequantizingEmbedding(nn.Module):
    """A table of tokens whose codes stay in the checkpoint: rows are dequantized each time that they are looked up.

    Args:
        module: the embedding that it stands for, whose own weight is not used.
    """

    def __init__(self, module: nn.Embedding, source: LinearSource, dtype: torch.dtype) -> None:
        super().__init__()
        shape = module.num_embeddings, module.embedding_dim
        # In a tuple, torch does not find them: they are no modules of the model.
        self._parts = module, DequantizingLinear(shape, source, None, dtype)

    def forward(self, ids: Tensor) -> Tensor:
        """(...) token ids to (..., columns)"""
        which, places = ids.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        made: Tensor = self.with_table(self.weight[which].dense())(places)
        return made

    @property
    def weight(self) -> QuantizedWeight:
        """(tokens, columns)"""
        return QuantizedWeight((self._parts[1],))

    @property
    def checkpoint_tensors(self) -> list[Tensor]:
        """The tensors that the checkpoint holds."""
        return self._parts[1].checkpoint_tensors

    @property
    def embed_scale(self) -> float:
        """What rows are multiplied by: Gemma's embeddings have the number beside its tensor, which is not loaded."""
        return float(getattr(self._parts[0], "scalar_embed_scale", 1.0))

    def with_table(self, table: Tensor) -> nn.Embedding:
        """The embedding that it stands for, with this table."""
        made = copy.copy(self._parts[0])
        made._parameters = {"weight": nn.Parameter(table, requires_grad=False)}
        made._buffers = {name: torch.tensor(self.embed_scale) for name in made._buffers}
        made.padding_idx = None
        return made.eval()


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
        if len(self.linears) == 1:
            return self.linears[0].source.dense(self.dtype, self.rows)
        return self._chosen(torch.cat([each.dense() for each in self.linears]))

    def codes(self) -> Codes | None:
        parts = concatenable([each.source.codes() for each in self.linears])
        if not parts:
            return None
        codes, scales, zeros = (
            self._chosen(torch.cat([getattr(part, name) for part in parts])) for name in ("codes", "scales", "zeros")
        )
        return Codes(parts[0].bits, codes, scales, zeros, parts[0].order)

    def blocks(self) -> BlockRows | None:
        joined = BlockRows.joined([each.source.blocks() for each in self.linears])
        return joined if joined is None or self.rows is None else joined.take(self.rows)

    def is_of(self, other: Weight) -> bool:
        """Whether both are all rows of the same weights in the checkpoint."""
        if not isinstance(other, QuantizedWeight) or self.rows is not None or other.rows is not None:
            return False
        return [id(each.source) for each in self.linears] == [id(each.source) for each in other.linears]

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
