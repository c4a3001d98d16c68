"""The weights of a GGUF file. Runs in the engine process, at load.

Weights of linears and tables whose type kernels multiply with stay in the mapped file, as codes. The others are in a
state dict. Transformers asks each entry for `[...]` as it gets to it, as it asks safetensors' slices: blocks of codes
become numbers of the model's dtype then. Kernels do it, where there are kernels; else numpy, which takes twenty times
as long.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from ....config import read_json_object
from ....gguf import described_by
from ....gguf.shards import read_model
from ....gguf.weights import MULTIPLIED, Weight, weights_of
from ..blocks import BlockRows, UnpackBlocks
from ..quantization import Codes

log = logging.getLogger(__name__)

_DTYPES: Final = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class GgufSlice:
    """A weight that is read when it is indexed; the rest is what transformers asks of a safetensors slice."""

    def __init__(self, weight: Weight, dtype: torch.dtype, unpack: UnpackBlocks | None = None) -> None:
        self._weight, self._unpack = weight, unpack
        self.shape = torch.Size(weight.shape)
        self.dtype = dtype
        self.ndim = len(weight.shape)

    def get_shape(self) -> list[int]:
        return list(self.shape)

    def get_dtype(self) -> str:
        return {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}[self.dtype]

    def __getitem__(self, index: Any) -> Tensor:
        return _numbers(self._weight, self.dtype, self._unpack)[index]


@dataclass(frozen=True)
class GgufSource:
    """A weight (n, k) of blocks, in its file: a `LinearSource`."""

    weight: Weight
    unpack: UnpackBlocks | None = None

    @property
    def tensors(self) -> list[Tensor]:
        return [_stored(self.weight)]

    def dense(self, dtype: torch.dtype, rows: Tensor | None = None) -> Tensor:
        return _numbers(self.weight, dtype, self.unpack, rows)

    def codes(self) -> Codes | None:
        return None

    def blocks(self) -> BlockRows | None:
        return _rows(self.weight)


def _stored(weight: Weight) -> Tensor:
    with warnings.catch_warnings():  # it is read-only, and nothing writes to it
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(weight.stored)


def _rows(weight: Weight) -> BlockRows:
    stored, order = _stored(weight), weight.order
    rows = torch.arange(weight.rows) if order is None else torch.from_numpy(order)
    return BlockRows(weight.tensor.type.name, stored.data_ptr() + rows * weight.row_bytes, (stored,))


def _numbers(weight: Weight, dtype: torch.dtype, unpack: UnpackBlocks | None, rows: Tensor | None = None) -> Tensor:
    """A weight's numbers, or those of some rows of a matrix."""
    is_rows = len(weight.shape) == 2 or weight.order is None  # the order of a bias is that of its numbers
    if unpack is not None and weight.tensor.type.name in MULTIPLIED and not weight.subtracted and is_rows:
        blocks = _rows(weight)
        made = unpack(blocks if rows is None else blocks.take(rows), weight.row, dtype)
        if made is not None:
            return made if rows is not None else made.reshape(weight.shape)
    if rows is not None:
        return torch.from_numpy(weight.some(rows.numpy())).to(dtype)
    made = torch.empty(weight.rows, weight.row, dtype=dtype)
    for start, numbers in weight.chunks():
        made[start : start + len(numbers)] = torch.from_numpy(numbers)
    made = made.reshape(weight.shape)
    return made if weight.order is None else made[torch.from_numpy(weight.order)]


class GgufCheckpoint:
    """The GGUF file that a described directory names.

    Args:
        as_codes: leave weights in the file whose types kernels multiply with.
        unpack: makes numbers of blocks; None, or where it makes none: numpy does.

    Attributes:
        linears: names of the linears, and of the table of tokens, whose weights stay in the file.

    Raises:
        GgufError: the file is gone, or has changed.
    """

    method = "gguf"

    def __init__(self, path: Path, file: Path, *, as_codes: bool, unpack: UnpackBlocks | None = None) -> None:
        self._unpack = unpack
        model = read_model(file)
        self._file = model.path
        bare = {each.path: replace(each, metadata={}) for each in model.files}  # a vocabulary is tens of megabytes
        self._weights = {
            name: replace(weight, file=bare[weight.file.path]) for name, weight in weights_of(model).items()
        }
        self._dtype = _DTYPES[str(read_json_object(path / "config.json")["dtype"])]
        coded = [name for name, weight in self._weights.items() if as_codes and weight.is_multiplied_as_stored(name)]
        self.linears = [name.removesuffix(".weight") for name in coded]
        self._coded = set(coded)

    @classmethod
    def of(cls, path: Path, *, as_codes: bool, unpack: UnpackBlocks | None = None) -> GgufCheckpoint | None:
        """The checkpoint; None if `path` does not describe a GGUF file."""
        return None if (file := described_by(path)) is None else cls(path, file, as_codes=as_codes, unpack=unpack)

    def __deepcopy__(self, _: dict[int, Any]) -> GgufCheckpoint:
        return self  # it never changes, and transformers copies configurations

    def source(self, linear: str) -> GgufSource:
        """The weight of one of `linears`."""
        return GgufSource(self._weights[f"{linear}.weight"], self._unpack)

    def state(self, dtype: torch.dtype | str) -> dict[str, GgufSlice]:
        """The weights that don't stay in the file by transformers' names, in `dtype`; the log says what they cost.

        Weights with one dimension, which are norms and biases, come in fp32, as GGUF has them.

        Args:
            dtype: "auto" is the one in config.json.
        """
        made = dtype if isinstance(dtype, torch.dtype) else self._dtype
        left = {name: weight for name, weight in self._weights.items() if name not in self._coded}
        self._log(left, made)
        return {
            name: GgufSlice(weight, made if len(weight.shape) > 1 else torch.float32, self._unpack)
            for name, weight in left.items()
        }

    def _log(self, left: dict[str, Weight], dtype: torch.dtype) -> None:
        kept, unpacked = Counter[str](), Counter[str]()
        become = 0
        for name, weight in self._weights.items():
            if name in self._coded:
                kept[weight.tensor.type.name] += weight.bytes
            elif len(weight.shape) > 1:
                unpacked[weight.tensor.type.name] += weight.bytes
                become += weight.rows * weight.row * dtype.itemsize
        if kept:
            log.info("%s: kernels multiply with its codes: %s", self._file, _listed(kept))
        if unpacked:
            name = str(dtype).removeprefix("torch.")
            log.info("%s: %s become %.0f MiB of %s in memory", self._file, _listed(unpacked), become / 2**20, name)


def _listed(sizes: Counter[str]) -> str:
    return ", ".join(f"{size / 2**20:.0f} MiB of {name}" for name, size in sizes.most_common())
