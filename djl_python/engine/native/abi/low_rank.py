"""What LoRA adapters add: to products beside their weights, and to embeddings. No torch."""

from __future__ import annotations

import ctypes
from typing import Annotated

from .enums import Kind
from .structures import CType, Float, In, InFloats, InInts, Int32, Operation, Out, OutFloats, Struct, structure

#: (slots,) LowRankPart
InParts = Annotated[int, CType(ctypes.c_void_p, "const LowRankPart*")]


@structure
class LowRankPart(Struct):
    """What the adapter of a slot adds to one operation: b times (a times the input); see low_rank.h.

    Attributes:
        vectors: of sixteen inner numbers each; 0: the adapter adds nothing.
        steps: 32-bit lanes of inner numbers that a half panel of `b` has.
        a: (vectors, k in 32-bit lanes, 16) lanes of T; for an EmbedOp: (vocabulary, 16 * vectors) fp32.
        b: (half panels, steps, 32) lanes of T; None: as with no vectors.
        first: (half panels,) the first inner number that each multiplies; -1: none.
    """

    vectors: Int32 = 0
    steps: Int32 = 0
    a: In | None = None
    b: In | None = None
    first: InInts | None = None


@structure
class LowRankRows(Struct):
    """The inner numbers that a LowRankOp has made of a product's input, and what they are multiplied with.

    Attributes:
        parts: by slot; None: the product has no adapters.
        in_, stride: rows of inner numbers.
    """

    parts: InParts | None = None
    in_: InFloats | None = None
    stride: Int32 = 0


@structure
class LowRankOp(Operation):
    """Makes the inner numbers of tokens with adapters, a times the input (low_rank.h).

    Attributes:
        k: numbers of a row.
        in_, stride: rows of (k,) T.
        out, pitch: rows of inner numbers.
        vectors: the most that a part has.
        parts: by slot.
    """

    KIND = Kind.LOW_RANK
    k: Int32
    in_: In
    stride: Int32
    out: OutFloats
    pitch: Int32
    vectors: Int32
    parts: InParts


@structure
class LowRankEmbedOp(Operation):
    """Adds to embeddings what tokens' adapters add: scale * b times (a's column of the token) (low_rank.h).

    Attributes:
        n: numbers of an embedding.
        out: (tokens, n) fp32
        parts: by slot.
    """

    KIND = Kind.LOW_RANK_EMBED
    n: Int32
    out: Out
    scale: Float
    parts: InParts
