"""Rows of a weight in blocks of codes, as a GGUF file has them: where they are, for the native kernels to pack.

Runs in the engine process, at load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class BlockRows:
    """Rows of one type, each a whole number of blocks.

    Attributes:
        type: GGUF's name of it.
        addresses: (n,) int64, of each row's first byte; 0: a row of zeros.
        held: keeps the bytes in memory, or mapped.
    """

    type: str
    addresses: Tensor
    held: tuple[Any, ...]

    @classmethod
    def joined(cls, parts: Sequence[BlockRows | None]) -> BlockRows | None:
        """The rows of all parts, one after the other; None if a part is None or they differ in type."""
        known = [part for part in parts if part is not None]
        if len(known) < len(parts) or len({part.type for part in known}) != 1:
            return None
        held = tuple(each for part in known for each in part.held)
        return cls(known[0].type, torch.cat([part.addresses for part in known]), held)

    def take(self, rows: Tensor) -> BlockRows:
        """Some rows, in this order."""
        return BlockRows(self.type, self.addresses[rows], self.held)

    def padded(self, missing: int) -> BlockRows:
        """The rows, and so many rows of zeros after them."""
        return BlockRows(self.type, torch.nn.functional.pad(self.addresses, (0, missing)), self.held)


#: Makes the numbers of rows of blocks, (n, k), of a dtype; None where there are no kernels for it.
UnpackBlocks = Callable[[BlockRows, int, torch.dtype], Tensor | None]
