"""Builds what samples each row's next token without all logits. Runs in the engine process, once.

A request that takes the likeliest token needs one logit of 150,000; one that draws needs few, if noise is added to the
logits (gumbel.h). The lm_head is a quarter of a small model's weights, and a product with its weights rounded to 8 bits
takes half the time. rescore.h says how far from the exact logits the result can be, and computes exactly those that
matter to the choice: a few panels of thousands.
"""

from __future__ import annotations

from typing import Final

from ....checkpoints.linears import Linear
from ...abi.decoder import LinearOp
from ...abi.enums import Mode, WeightFormat
from ...abi.parts import Output
from ...abi.sampling import RescoreOp
from ...abi.structures import Operation
from ...packing import Packed
from .builder import ProgramBuilder, Rows

#: A smaller head is multiplied in less time than this saves.
LEAST_WEIGHTS: Final = 1 << 22


def build_rescoring(
    builder: ProgramBuilder, head: Linear, packed: Packed, given: Rows, output: Output
) -> list[Operation]:
    """The operations that take the place of the head's product; none if that is better.

    Only a head in 12 bits is rounded too: what those save pays for half of the memory.

    Args:
        packed, given, output: of the head's product.
    """
    if packed.format != WeightFormat.TWELVE_BIT or output.scale <= 0 or packed.n * packed.k < LEAST_WEIGHTS:
        return []
    rounded = builder.pack_rounded(head, packed.bias)
    first = len(builder.operations)
    codes = builder.quantized_for(rounded.packed, given)
    statistics = Output(mode=Mode.STATISTICS, scale=output.scale, softcap=output.softcap)
    builder.add_product(rounded.packed, codes, statistics)
    builder.add(
        RescoreOp(
            head=LinearOp(
                n=packed.n, k=packed.k, weight=packed.addresses, in_=given.at, stride=given.stride,
                bias=None if packed.bias is None else builder.keep(packed.bias), output=output,
            ),
            codes=codes.at, weight_squares=builder.keep(rounded.weight_squares),
            error_squares=builder.keep(rounded.error_squares),
        )
    )  # fmt: skip
    return builder.remove_from(first)
