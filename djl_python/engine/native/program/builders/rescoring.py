"""Lays out the choice of each row's next token, without all logits. Runs in the engine process, once.

A request that takes the likeliest token needs one logit of 150,000; one that draws needs few, if noise is added to the
logits (gumbel.h). The lm_head is a quarter of a small model's weights, and a product with its weights rounded to 8 bits
takes half the time. rescore.h says how far from the exact logits the result can be, and computes exactly those that matter
to the choice: a few panels of thousands.
"""

from __future__ import annotations

from typing import Final

from ....reading.recipe_parts import Linear
from ...packing import TWELVE, Packed
from ...thread_pool import Mode, Op
from .. import operations
from ..operations import Into
from .builder import Layout, Rows

# A smaller head is multiplied in less time than this saves.
_LEAST_WEIGHTS: Final = 1 << 22


def lay_out_pick(layout: Layout, head: Linear, packed: Packed, given: Rows, into: Into) -> list[Op]:
    """The operations that take the place of the head's product; none if that is better.

    Only a head in 12 bits is rounded too: what those save pays for half of the memory.

    Args:
        packed, given, into: of the head's product.
    """
    if packed.weight_format != TWELVE or into.scale <= 0 or packed.n * packed.k < _LEAST_WEIGHTS:
        return []
    rounded = layout.pack_rounded(head, packed.bias)
    first = len(layout.ops)
    codes = layout.as_wanted(rounded.packed, given)
    layout.add_product(rounded.packed, codes, into._replace(mode=Mode.MAXIMA_ONLY))
    layout.add(
        operations.pick(
            n=packed.n, k=packed.k, weights=packed.addresses, in_=given.at, stride=given.stride,
            bias=None if packed.bias is None else layout.keep(packed.bias), scale=into.scale, softcap=into.softcap,
            codes=codes.at, weight_squares=layout.keep(rounded.weight_squares),
            error_squares=layout.keep(rounded.error_squares),
        )
    )  # fmt: skip
    return layout.take_back(first)
