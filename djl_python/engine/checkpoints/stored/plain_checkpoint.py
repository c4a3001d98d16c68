"""Weights of experts, left in the mapped files of an unquantized checkpoint. Runs in the engine process.

transformers copies a layer's experts into one tensor: that takes twice the memory, and time. Packing weights for the
native kernels reads them one after the other, and needs no copy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from ..blocks import BlockRows
from ..quantization import Codes
from .checkpoint_files import open_tensors

_OF_AN_EXPERT: Final = re.compile(r"\.experts\.\d+\..*weight$")


@dataclass(frozen=True)
class PlainWeight:
    """Weights of one shape, concatenated by rows (n, k), or some rows of them: an `ExpertWeight`.

    Attributes:
        sources: the file of each weight, and its name there.
        rows: which rows; None: all.
    """

    sources: tuple[tuple[Any, str], ...]
    shape: tuple[int, int]
    dtype: torch.dtype
    rows: slice | None = None

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def checkpoint_tensors(self) -> list[Tensor]:
        return [file.get_tensor(name) for file, name in self.sources]

    def __getitem__(self, rows: slice) -> PlainWeight:
        assert self.rows is None, "rows of rows"
        wanted, each = range(len(self))[rows], len(self) // len(self.sources)
        shape = len(wanted), self.shape[1]
        if wanted.step == 1 and wanted.start % each == wanted.stop % each == 0:  # whole weights: no others are read
            return replace(self, sources=self.sources[wanted.start // each : wanted.stop // each], shape=shape)
        return replace(self, rows=rows, shape=shape)

    def dense(self) -> Tensor:
        stored = self.checkpoint_tensors
        made = stored[0] if len(stored) == 1 else torch.cat(stored)
        return (made if self.rows is None else made[self.rows]).to(self.dtype)

    def codes(self) -> Codes | None:
        return None

    def blocks(self) -> BlockRows | None:
        return None


class PlainCheckpoint:
    """An unquantized checkpoint that has each expert's weights as tensors of their own.

    Attributes:
        linears: names of the experts' linears.
    """

    method = None

    def __init__(self, path: Path) -> None:
        self._files = {name: file for name, file in open_tensors(path) if _OF_AN_EXPERT.search(name)}
        self.linears = [key.removesuffix(".weight") for key in self._files]

    def __deepcopy__(self, _: dict[int, Any]) -> PlainCheckpoint:
        return self

    def weight(self, linears: list[str], shape: tuple[int, int], dtype: torch.dtype) -> PlainWeight:
        """The weights of these linears, concatenated by rows."""
        names = [f"{linear}.weight" for linear in linears]
        return PlainWeight(tuple((self._files[name], name) for name in names), shape, dtype)
