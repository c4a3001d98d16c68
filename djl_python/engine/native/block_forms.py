"""How weights in blocks are packed: those of GGUF's types, without loss, and those that are rounded at load.

Engine process; no torch. A dozen types are seven kinds of codes, and six of scales. kernels/linear/block_codes.h has
the layout of panels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .abi.enums import PANEL, BlockScaling, WeightFormat

_BLOCK: Final = 32  # numbers of a block
_SUPER: Final = 8  # blocks that share fp16 numbers
_LINE: Final = 64
#: Lines of 64 bytes that hold the codes of sixteen columns of a block.
_LINES: Final = {
    WeightFormat.BLOCKS_2: 2,
    WeightFormat.BLOCKS_3: 3,
    WeightFormat.BLOCKS_4: 4,
    WeightFormat.BLOCKS_5: 5,
    WeightFormat.BLOCKS_6: 6,
    WeightFormat.BLOCKS_8: 8,
    WeightFormat.BLOCKS_TABLE: 4,
}
#: Formats that have a scale for each half of a block.
_IN_HALVES: Final = (WeightFormat.BLOCKS_2, WeightFormat.BLOCKS_3, WeightFormat.BLOCKS_6)
#: The numbers of IQ4's codes, which are denser around zero, and twice those of MXFP4's.
_NON_LINEAR: Final = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_FP4: Final = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


@dataclass(frozen=True)
class BlockForm:
    """How a type is packed.

    Attributes:
        zero: the code that stands for 0; 0 where codes are signed, or a block has a least number.
        table: the numbers of codes of 4 bits; (): they are numbers themselves.
    """

    format: WeightFormat
    scaling: BlockScaling
    zero: int = 0
    table: tuple[int, ...] = ()

    def panel_bytes(self, k: int) -> int:
        """Bytes of a panel with so many rows, without the numbers that `super_halves` counts."""
        return -(-k // _BLOCK) * (self._scale_bytes + PANEL // 16 * _LINES[self.format] * _LINE)

    def super_halves(self, k: int) -> int:
        """fp16 numbers of a panel that the scales of every eight blocks are multiplied with."""
        each = {BlockScaling.STEPS: 1, BlockScaling.STEPS_AND_LEAST: 2, BlockScaling.NIBBLES: 2}.get(self.scaling, 0)
        return -(-k // (_BLOCK * _SUPER)) * each * PANEL

    @property
    def _scale_bytes(self) -> int:
        parts = 2 if self.format in _IN_HALVES else 1
        return (
            PANEL
            * {
                BlockScaling.HALVES: 2,
                BlockScaling.HALVES_AND_LEAST: 4,
                BlockScaling.STEPS: parts,
                BlockScaling.STEPS_AND_LEAST: 2,
                BlockScaling.NIBBLES: 2,
                BlockScaling.EXPONENTS: 1,
            }[self.scaling]
        )


#: By the names of `BlockType`.
FORMS: Final = {
    "Q4_0": BlockForm(WeightFormat.BLOCKS_4, BlockScaling.HALVES, zero=8),
    "Q4_1": BlockForm(WeightFormat.BLOCKS_4, BlockScaling.HALVES_AND_LEAST),
    "Q5_0": BlockForm(WeightFormat.BLOCKS_5, BlockScaling.HALVES, zero=16),
    "Q5_1": BlockForm(WeightFormat.BLOCKS_5, BlockScaling.HALVES_AND_LEAST),
    "Q8_0": BlockForm(WeightFormat.BLOCKS_8, BlockScaling.HALVES),
    "Q2_K": BlockForm(WeightFormat.BLOCKS_2, BlockScaling.NIBBLES),
    "Q3_K": BlockForm(WeightFormat.BLOCKS_3, BlockScaling.STEPS, zero=4),
    "Q4_K": BlockForm(WeightFormat.BLOCKS_4, BlockScaling.STEPS_AND_LEAST),
    "Q5_K": BlockForm(WeightFormat.BLOCKS_5, BlockScaling.STEPS_AND_LEAST),
    "Q6_K": BlockForm(WeightFormat.BLOCKS_6, BlockScaling.STEPS, zero=32),
    "IQ4_NL": BlockForm(WeightFormat.BLOCKS_TABLE, BlockScaling.HALVES, table=_NON_LINEAR),
    "IQ4_XS": BlockForm(WeightFormat.BLOCKS_TABLE, BlockScaling.STEPS, table=_NON_LINEAR),
    "MXFP4": BlockForm(WeightFormat.BLOCKS_TABLE, BlockScaling.EXPONENTS, table=_FP4),
}
#: The forms of weights that are rounded at load.
ROUNDED: Final = {
    "int4": BlockForm(WeightFormat.BLOCKS_4, BlockScaling.STEPS_AND_LEAST),
    "int5": BlockForm(WeightFormat.BLOCKS_5, BlockScaling.STEPS_AND_LEAST),
    "int6": BlockForm(WeightFormat.BLOCKS_6, BlockScaling.STEPS_AND_LEAST),
}
