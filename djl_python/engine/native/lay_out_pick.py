"""Lays out the search for each row's likeliest token, without all logits. Runs in the engine process, once.

A request that takes the likeliest token needs one logit of 150,000. The lm_head is a quarter of a small model's
weights, and a product with its weights rounded to 8 bits takes half the time. pick.h says how far from the exact logits
the result can be, and computes exactly those that may be the greatest: a few panels of thousands.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final

from . import operations
from .layout import Layout, Rows
from .operations import Into
from .packing import TWELVE, Packed
from .pool import Mode, Op
from .recipe_parts import Linear

# A smaller head is multiplied in less time than this saves.
_LEAST_WEIGHTS: Final = 1 << 22


@dataclass(frozen=True)
class Picking:
    """What follows the layers in place of the lm_head's product.

    Attributes:
        operations: the last finds the tokens; the last two need an address for maxima.
        exact: finds the tokens once the head's product has left its maxima.
    """

    operations: list[Op]
    exact: Op


def lay_out_pick(layout: Layout, head: Linear, packed: Packed, given: Rows, scale: float) -> Picking | None:
    """The operations that find the likeliest tokens; None if they wouldn't save time, or would take too much memory.

    Only a head in 12 bits is rounded too: what those save pays for half of the memory.

    Args:
        packed, given, scale: of the head's product.
    """
    if packed.weight_format != TWELVE or scale <= 0 or packed.n * packed.k < _LEAST_WEIGHTS:
        return None
    rounded = layout.pack_rounded(head, packed.bias)
    first = len(layout.ops)
    codes = layout.as_wanted(rounded.packed, given)
    layout.add_product(rounded.packed, codes, Into(None, Mode.MAXIMA_ONLY, scale=scale))
    find = functools.partial(
        operations.pick, n=packed.n, k=packed.k, weights=packed.addresses, in_=given.at, stride=given.stride,
        bias=None if packed.bias is None else layout.keep(packed.bias), scale=scale,
    )  # fmt: skip
    layout.add(
        find(
            codes=codes.at,
            weight_squares=layout.keep(rounded.weight_squares),
            error_squares=layout.keep(rounded.error_squares),
        )
    )
    layout.add(find())
    *approximate, exact = layout.take_back(first)
    return Picking(approximate, exact)
