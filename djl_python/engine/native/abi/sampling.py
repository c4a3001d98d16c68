"""The operations that sample tokens, and those that pack and round weights before. No torch."""

from __future__ import annotations

from .decoder import LinearOp
from .enums import BlockScaling, BlockType, Kind, WeightFormat
from .parts import Alternatives, OutSamplings, PackedWeight, PanelStatistics
from .structures import In, InFloats, InLongs, Int32, Operation, Out, OutBytes, OutFloats, OutInts, OutUints, structure


@structure
class SampleOp(Operation):
    """Samples a token for each row of logits (sample.h).

    Attributes:
        n: tokens of the vocabulary.
        in_: (wanted, n) logits; written to meanwhile, and restored.
        maxima: (wanted, panels) each panel's greatest logit, if they are known.
        changed: (.., n) scores to sample from instead, where a row says so; written to meanwhile, and restored.
        samplings: (wanted,): how to sample; receive the tokens.
    """

    KIND = Kind.SAMPLE
    n: Int32
    in_: OutFloats
    maxima: InFloats | None = None
    changed: OutFloats | None = None
    samplings: OutSamplings
    alternatives: Alternatives


@structure
class RescoreOp(Operation):
    """Samples a token for each row as a SampleOp does, but computes few of its logits (rescore.h).

    Attributes:
        head: the lm_head's product, whose weight is TWELVE_BIT; `output.out` has (wanted, n) room for logits.
        codes: the rows as a QuantizeOp wrote them.
        weight_squares, error_squares: (groups, panels), from a RoundWeightsOp.
        statistics: of the product of rounded weights and rows, a LinearOp with STATISTICS; `samplings`, (wanted,), none
            of changed scores, receive the tokens, or UNDECIDED.
    """

    KIND = Kind.RESCORE
    head: LinearOp
    codes: In
    weight_squares: InFloats
    error_squares: InFloats
    statistics: PanelStatistics = PanelStatistics()
    alternatives: Alternatives = Alternatives()


@structure
class PackOp(Operation):
    """Packs a bf16 weight, or a gated pair, in 12 bits (bf16_12bit.h).

    Attributes:
        n, k: rows and columns as checkpoints have them.
        in_, second: (n, k) bf16: the weight; and the other of a gated pair.
        out: the packed panels.
        tables: (panels, HIGH_BYTES): receives each panel's table.
        lists, room: (panels, room): receives each panel's list of weights that its table can't encode.
        counts: (panels, parts): receives how many weights each part lists, -1 where the room was not enough.
    """

    KIND = Kind.PACK
    n: Int32
    k: Int32
    in_: In
    second: In | None
    out: Out
    tables: OutBytes
    lists: OutUints
    room: Int32
    counts: OutInts


@structure
class PackBlocksOp(Operation):
    """Packs rows of a GGUF file's blocks, or of a gated pair's, as a LinearOp with BLOCKS reads them (pack_blocks.h).

    Attributes:
        n, k: rows and columns as checkpoints have them.
        in_, second: (n,) addresses of rows, and of the other weight's of a gated pair; 0: a row of zeros.
        type: of the blocks.
        out: the packed panels.
        scales: receives the fp16 numbers of every eight blocks, if the scaling has such.
        format, scaling: of the packed weight.
    """

    KIND = Kind.PACK_BLOCKS
    n: Int32
    k: Int32
    in_: InLongs
    second: InLongs | None
    type: BlockType
    out: Out
    scales: Out | None
    format: WeightFormat
    scaling: BlockScaling


@structure
class UnpackBlocksOp(Operation):
    """Makes the numbers of rows of a GGUF file's blocks (unpack_blocks.h).

    Attributes:
        n, k: rows and columns.
        in_: (n,) addresses of rows; 0: a row of zeros.
        type: of the blocks.
        form: `format`, `scaling`, `zero` and `tables` that a packed weight of this type has.
        out: (n, k) T
    """

    KIND = Kind.UNPACK_BLOCKS
    n: Int32
    k: Int32
    in_: InLongs
    type: BlockType
    form: PackedWeight
    out: Out


@structure
class RoundBlocksOp(Operation):
    """Rounds a weight, or a gated pair, to blocks with STEPS_AND_LEAST, as a LinearOp reads them (round_blocks.h).

    Attributes:
        n, k: rows and columns as checkpoints have them.
        in_, second: (n, k): the weight; and the other of a gated pair.
        out: the packed panels.
        scales: receives the fp16 numbers of every eight blocks.
        format: BLOCKS_4, BLOCKS_5 or BLOCKS_6.
    """

    KIND = Kind.ROUND_BLOCKS
    n: Int32
    k: Int32
    in_: In
    second: In | None
    out: Out
    scales: Out
    format: WeightFormat


@structure
class RoundWeightsOp(Operation):
    """Rounds a bf16 weight to 8 bits, as a LinearOp with INT8 reads them (round_weights.h).

    Attributes:
        n, k: rows and columns as checkpoints have them.
        in_: (n, k) bf16
        out: the packed panels.
        scales: (n,) padded to whole panels: receives each row's scale.
        weight_squares, error_squares: (groups, panels): receive the greatest squared norm of a panel's rows in each
            group of columns, and of what rounding changed them by.
    """

    KIND = Kind.ROUND_WEIGHTS
    n: Int32
    k: Int32
    in_: In
    out: Out
    scales: OutFloats
    weight_squares: OutFloats
    error_squares: OutFloats
