"""The operations that most decoders have: embedding, norms, products, gates. No torch."""

from __future__ import annotations

from .enums import Kind, Mode, NormKind
from .low_rank import LowRankRows
from .parts import Epilogue, HeadRows, Output, PackedWeight, PanelStatistics, Rotation, Routing
from .structures import Flag, Float, In, InFloats, InInts, Int32, Operation, Out, OutFloats, structure


@structure
class EmbedOp(Operation):
    """Begins the residual stream: out = scale * table[id] + positions[position + position_offset] (rowwise.h).

    Also prepares the cache, as a ClearValuesOp does.

    Attributes:
        n: numbers of an embedding.
        out: (tokens, n) fp32
        table: (vocabulary, n) T; None: the table is the lm_head's packed weight, or there is none.
        head: that weight, if it has panels.
        scale: of the table's rows.
        positions: the table of learned positions, rows of (n,) T.
        position_offset: of the first position in that table.
    """

    KIND = Kind.EMBED
    n: Int32
    out: Out
    table: In | None = None
    head: PackedWeight = PackedWeight()
    scale: Float = 0.0
    positions: In | None = None
    position_offset: Int32 = 0


@structure
class NormOp(Operation):
    """Norms rows, or changes their format only (rowwise.h).

    Attributes:
        n: numbers of a row.
        in_: (R, n) fp32
        out: (R, n): T with STORE, with rows `pitch` apart, else fp32.
        scale: multiplies what is added.
        norm, eps: eps is added to the variance.
        weight, bias: (n,)
    """

    KIND = Kind.NORM
    n: Int32
    in_: In
    out: Out
    pitch: Int32 = 0
    mode: Mode = Mode.STORE
    scale: Float = 1.0
    norm: NormKind
    eps: Float = 0.0
    weight: InFloats | None = None
    bias: InFloats | None = None
    rows_per_token: Int32 = 1


@structure
class GroupNormOp(Operation):
    """Norms each group of a row's numbers by itself, with a gate (rowwise.h).

    Attributes:
        n, group: numbers of a row, and of a group.
        in_: (tokens, n) T
        out: rows of (n,) T
        norm, eps: eps is added to the variance.
        weight, bias: (n,)
        gate, gate_stride: rows of (n,) T, whose silu multiplies.
        gate_first: it multiplies what is normed, else the norm's result.
    """

    KIND = Kind.GROUP_NORM
    n: Int32
    group: Int32
    in_: In | None = None
    out: Out | None = None
    pitch: Int32 = 0
    norm: NormKind
    eps: Float = 0.0
    weight: InFloats
    bias: InFloats | None = None
    gate: In | None = None
    gate_stride: Int32 = 0
    gate_first: Flag = False


@structure
class LinearOp(Operation):
    """out = in times a packed weight, plus a bias; then an activation, or a soft cap (linear.h).

    Attributes:
        n, k: columns and rows of the weight: of a gated pair's half, of one expert, of one product.
        in_, stride: rows of (k,) T; with integer formats, what a QuantizeOp wrote.
        bias: padded to whole panels.
        epilogue: only with STORE.
        side_by_side: how many products there are, whose panels follow each other, each of its own k numbers of a row;
            0: one.
        apart: numbers from where a product side by side puts its results to where the next one does.
        routing: each expert's rows have their own weight; there are `chosen` rows for each token.
        low_rank: what tokens' adapters add to the product, before anything else is done to it.
    """

    KIND = Kind.LINEAR
    n: Int32
    k: Int32
    in_: In | None = None
    stride: Int32 = 0
    side_by_side: Int32 = 0
    apart: Int32 = 0
    weight: PackedWeight
    bias: InFloats | None = None
    output: Output = Output()
    epilogue: Epilogue = Epilogue()
    routing: Routing = Routing()
    statistics: PanelStatistics = PanelStatistics()
    low_rank: LowRankRows = LowRankRows()


@structure
class QuantizeOp(Operation):
    """Rounds activations to integers, in groups with a scale each (integer_linear.h).

    Attributes:
        k: numbers of a row.
        in_, stride: rows of (k,) T.
        out: rows of codes, scales and sums, `ThreadPool.codes_bytes(k, for_blocks)` bytes each.
        order: (k,) the order in which numbers of a row are taken; None: their own.
        for_blocks: for weights in blocks (block_rows.h), whose order is always their own.
    """

    KIND = Kind.QUANTIZE
    k: Int32
    in_: In | None = None
    stride: Int32 = 0
    out: Out | None = None
    order: InInts | None = None
    rows_per_token: Int32 = 1
    for_blocks: Flag = False


@structure
class GatherOp(Operation):
    """Copies the rows whose logits are wanted (rowwise.h).

    Attributes:
        n: numbers of 32 bits in a row.
        in_, out: (tokens, n) and (wanted, n)
    """

    KIND = Kind.GATHER
    n: Int32
    in_: In
    out: Out


@structure
class GateOp(Operation):
    """Multiplies rows by the sigmoid of others, or by these as they are (rowwise.h).

    Attributes:
        n: numbers of a row.
        in_, stride: rows of (n,) fp32, the factors.
        out: rows of (n,) T, which change.
        plain: there is no sigmoid.
    """

    KIND = Kind.GATE
    n: Int32
    in_: In
    stride: Int32
    out: Out
    pitch: Int32
    plain: Flag = False


@structure
class ClearValuesOp(Operation):
    """Prepares the KV cache for the step's tokens, in programs without an EmbedOp, which does it too (rowwise.h)."""

    KIND = Kind.CLEAR_VALUES


@structure
class RopeKvCacheOp(Operation):
    """Norms and rotates queries, in place, and keys; norms values; stores keys and values (rope_kv_cache.h).

    Attributes:
        in_: first of the rows.
        query_norm, key_norm, eps: (dim,) weights of the norms of each head, or of all heads at once if `norms_across`.
        value_norm, value_eps: (value_dim,) weight of the norm of each head's values.
    """

    KIND = Kind.ROPE_KV_CACHE
    rows: HeadRows
    in_: Out | None = None
    query_norm: InFloats | None = None
    key_norm: InFloats | None = None
    norms_across: Flag = False
    eps: Float = 0.0
    value_norm: InFloats | None = None
    value_eps: Float = 0.0
    rotation: Rotation = Rotation()


@structure
class AttentionOp(Operation):
    """Attention of each token to its sequence's keys up to its own, and some further ones (attention.h).

    Attributes:
        rows, in_: what begins with (heads, dim) queries.
        out: rows of (heads, value_dim) T
        scale, softcap: scores are multiplied by scale, then capped to +-softcap if that is not 0.
        window: how many keys up to its own a token sees at most; 0: all.
        ahead: how many keys after its own a token sees at most; the sequence has `lengths` of them.
        sinks: (heads,) scores of a key that has no value.
        slopes: (heads,) what a key's score gains with each position (ALiBi).
    """

    KIND = Kind.ATTENTION
    rows: HeadRows
    in_: InFloats | None = None
    out: Out | None = None
    pitch: Int32 = 0
    scale: Float
    softcap: Float = 0.0
    window: Int32 = 0
    ahead: Int32 = 0
    sinks: InFloats | None = None
    slopes: InFloats | None = None


@structure
class LatentsOp(Operation):
    """Makes rows for a RopeKvCacheOp, with one key and one value, from latents, arXiv:2405.04434 (rope_kv_cache.h).

    Attributes:
        in_: (tokens, rank + rotary) T: a latent, and the key's rotated numbers.
        out: rows of (heads, dim) queries, which have what is multiplied with latents; a key; a value.
        rank, rotary: numbers of a latent, and those of a key or a query that are rotated.
        norm, eps: (rank,) weight of the latent's norm.
        query_rotary, stride: rows of (heads, rotary) T: what is rotated of the queries.
    """

    KIND = Kind.LATENTS
    in_: In
    out: OutFloats
    rank: Int32
    rotary: Int32
    norm: InFloats
    eps: Float
    query_rotary: In
    stride: Int32
    heads: Int32
    dim: Int32
