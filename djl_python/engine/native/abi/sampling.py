"""The operations that sample tokens, and those that pack and round weights before. No torch."""

from __future__ import annotations

from .decoder import LinearOp
from .enums import Kind
from .parts import Alternatives, OutSamplings, PanelStatistics
from .structures import In, InFloats, Int32, Operation, Out, OutBytes, OutFloats, OutInts, OutUints, structure


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
