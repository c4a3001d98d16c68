"""Structures that several operations share: packed weights, outputs, routed rows, heads. No torch."""

from __future__ import annotations

import ctypes
from typing import Annotated

from .enums import Activation, BlockScaling, Mode, WeightFormat
from .structures import (
    CType,
    Flag,
    Float,
    In,
    InBytes,
    InFloats,
    Int32,
    InUints,
    Out,
    OutFloats,
    OutLongs,
    Struct,
    structure,
)

#: (rows,) RowSampling
OutSamplings = Annotated[int, CType(ctypes.c_void_p, "RowSampling*")]


@structure
class PackedWeight(Struct):
    """A weight in panels, as `packing` makes it.

    Attributes:
        panels: None: there is no weight.
        scales: integer formats: fp32, of each column, padded to whole panels; by group: (panels, groups, 64) fp16;
            BLOCKS: the fp16 numbers of every eight blocks (block_codes.h).
        zeros: by group: (panels, groups, 64) uint8 zero points.
        tables: TWELVE_BIT: the panels' tables of high bytes; BLOCKS_TABLE: (16,) int8 numbers of the codes.
        outliers: TWELVE_BIT: where each part's list begins, then the lists; see bf16_12bit.h.
        scaling, zero: BLOCKS: what its scales are, and the code that stands for 0 where there is no least number.
    """

    format: WeightFormat = WeightFormat.PLAIN
    panels: In | None = None
    scales: In | None = None
    zeros: InBytes | None = None
    tables: InBytes | None = None
    outliers: InUints | None = None
    scaling: BlockScaling = BlockScaling.HALVES
    zero: Int32 = 0


@structure
class Epilogue(Struct):
    """What is done to a product in T before it is stored.

    Attributes:
        activation: of a gated pair, of its first half.
        gated: a panel is half gate, half other columns; activation(gate) * other is stored.
        xielu_above, xielu_below, xielu_slope: of XIELU: factors of x * x above zero, of exp(x) - 1 - x below, and of x.
        alpha, limit: of CLAMPED_SWIGLU.
    """

    activation: Activation = Activation.NONE
    gated: Flag = False
    xielu_above: Float = 0.0
    xielu_below: Float = 0.0
    xielu_slope: Float = 0.0
    alpha: Float = 0.0
    limit: Float = 0.0


@structure
class Output(Struct):
    """Where results go.

    Attributes:
        out: rows of (n,), T with STORE, else fp32; with STATISTICS nothing is stored.
        scale: multiplies what is added, or stored in fp32.
        softcap: such results are then capped to +-softcap; 0: they are not.
    """

    out: Out | None = None
    pitch: Int32 = 0
    mode: Mode = Mode.STORE
    scale: Float = 1.0
    softcap: Float = 0.0


@structure
class Routing(Struct):
    """A mixture of experts.

    Attributes:
        experts, chosen: how many there are, and how many a token chooses; 0: there are none.
        routed: what a RouteOp and a SortOp write, see `Routed` of expert_routing.h.
    """

    experts: Int32 = 0
    chosen: Int32 = 0
    routed: Out | None = None


@structure
class HeadRows(Struct):
    """Rows of (heads, dim) queries, (kv_heads, dim) keys and (kv_heads, value_dim) values, fp32, and where these go.

    Attributes:
        cache: the layer's part of the KV cache's first block; None: rows have queries only.
    """

    heads: Int32
    kv_heads: Int32
    dim: Int32
    value_dim: Int32
    stride: Int32
    cache: Out | None = None


@structure
class Rotation(Struct):
    """A rotary embedding.

    Attributes:
        dims: how many numbers of a head are rotated, even; 0: none.
        interleaved: two neighbours are rotated together, else one number of each half.
        cosines, sines: (positions, dims / 2)
    """

    dims: Int32 = 0
    interleaved: Flag = False
    cosines: InFloats | None = None
    sines: InFloats | None = None


@structure
class PanelStatistics(Struct):
    """What a product keeps of each panel of logits; see panel_statistics.h.

    Attributes:
        maxima: (rows, panels): receives each panel's greatest result; None: none is kept.
        log_masses: (rows, 2, panels): receives log2 of a panel's sum of exp(x), and of exp(x / temperature).
        samplings: with STATISTICS, (rows,): what results are compared by, and which masses are wanted; None: none.
    """

    maxima: OutFloats | None = None
    log_masses: OutFloats | None = None
    samplings: OutSamplings | None = None


@structure
class Alternatives(Struct):
    """The best tokens beside a row's own.

    Attributes:
        count: at most so many for each row.
        logprobs, token_ids: (rows, count): receive them, best first.
    """

    count: Int32 = 0
    logprobs: OutFloats | None = None
    token_ids: OutLongs | None = None
