"""Finds projected columns in what a mixer reads, by equality of the numbers. Runs in the engine process, at load."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..recipe.activations import FUNCTIONS
from ..recipe.limits import MAX_TAPS
from ..recipe.mixers import Convolution
from ..recipe.primitives import NotUnderstoodError
from ..watching.functions import FunctionCall
from .layer_record import LayerRecord


def columns_of(wanted: Tensor, among: Tensor) -> Tensor:
    """(columns,) index in `among` of each column of `wanted`, (tokens, columns) both.

    Raises:
        NotUnderstoodError: some columns are not in `among`.
    """
    indices = columns_if_any(wanted, among)
    if (indices < 0).any():
        raise NotUnderstoodError("what mixes tokens is not what was projected")
    return indices


def columns_if_any(wanted: Tensor, among: Tensor) -> Tensor:
    """(columns,) index in `among` of each column of `wanted`, (tokens, columns) both; -1 for those not in `among`."""
    indices = {column: i for i, column in enumerate(_column_bytes(among))}
    return torch.tensor([indices.get(column, -1) for column in _column_bytes(wanted)])


def other_columns(columns: Tensor, count: int) -> Tensor:
    """The indices below `count` that are not among `columns`."""
    left = torch.ones(count, dtype=torch.bool)
    left[columns] = False
    return left.nonzero().flatten()


def _column_bytes(x: Tensor) -> list[bytes]:
    """Each column's numbers as bytes."""
    bits = x.T.contiguous().view(torch.int16 if x.dtype == torch.bfloat16 else torch.int32).numpy()
    columns: Any = bits.view(np.dtype((np.void, bits.itemsize * bits.shape[1]))).ravel()
    return list(columns.tolist())


def read_convolution(record: LayerRecord, conv_call: FunctionCall, channels: Tensor) -> Convolution:
    """The convolution of these channels, in this order; `NotUnderstoodError` if the kernels don't support it."""
    weight, bias = conv_call.arguments["weight"], conv_call.arguments.get("bias")
    activation = conv_call.arguments.get("activation")
    activation = "silu" if activation == "swish" else activation
    if activation not in (None, *FUNCTIONS) or weight.shape[1] > MAX_TAPS:
        raise NotUnderstoodError(f"a convolution of {weight.shape[1]} tokens with {activation}")
    return Convolution(
        taps=record.own_numbers(weight)[channels].T.contiguous(),
        bias=None if bias is None else record.own_numbers(bias)[channels].contiguous(),
        activation=activation,
    )
