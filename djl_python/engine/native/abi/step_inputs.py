"""The inputs of operations in each step: its tokens, and how each row's token is sampled. No torch."""

from __future__ import annotations

from .enums import SamplingMode
from .structures import Flag, Float, InFloats, InInts, InLongs, Int32, Int64, Struct, TwoUints, structure


@structure
class StepInputs(Struct):
    """What changes from step to step. Late operations have inputs of their own, whose tokens are the wanted ones.

    Attributes:
        tokens: how many.
        wanted: rows that a GatherOp takes, or whose scores are read; sequences of a CausalConvOp.
        ids, positions: (tokens,)
        rotary_rows: (tokens,) rows of the rotary tables.
        lengths: (tokens,) tokens of each one's sequence, where attention looks ahead.
        places, type_ids: (tokens,) rows of an EmbedTextOp's tables of positions and of types.
        slots: (tokens,) places in the KV cache: block * block_size + offset.
        rows: (wanted,)
        tiles: attention: runs of tokens of one sequence.
        tile_start, tile_size: (tiles,)
        tile_table: (tiles,) where the sequence's blocks begin in `blocks`.
        blocks: (block_count,)
        block_size, block_count: tokens of a block; all blocks of the sequences.
        block_bytes: of a block, which has all layers' keys and values.
        spans: recurrent layers: runs of tokens of one sequence.
        span_start, span_size: (spans,)
        span_source: (spans,) slot of the state that a span begins with; -1: none.
        span_slot: (spans,) slot for the state at its end.
        span_saves: (spans + 1,) where a span's entries begin in the next two.
        save_after: after how many of a span's tokens, ascending, ...
        save_slot: ... its state is saved to this slot, too.
        slot_bytes: of a slot, which has all layers' states.
        adapter_slots: (tokens,) slot of each token's adapter; 0: it has none.
        adapter_rows: the tokens with an adapter, those of the same one next to each other.
        adapter_tiles: runs of at most `ADAPTER_ROWS` of these, all with the same adapter.
        adapter_tile_start, adapter_tile_size: (adapter_tiles,) in `adapter_rows`.
    """

    tokens: Int32 = 0
    wanted: Int32 = 0
    ids: InLongs | None = None
    positions: InLongs | None = None
    rotary_rows: InLongs | None = None
    lengths: InLongs | None = None
    places: InLongs | None = None
    type_ids: InLongs | None = None
    slots: InLongs | None = None
    rows: InLongs | None = None
    tiles: Int32 = 0
    tile_start: InInts | None = None
    tile_size: InInts | None = None
    tile_table: InLongs | None = None
    blocks: InLongs | None = None
    block_size: Int32 = 0
    block_count: Int32 = 0
    block_bytes: Int64 = 0
    spans: Int32 = 0
    span_start: InInts | None = None
    span_size: InInts | None = None
    span_source: InInts | None = None
    span_slot: InInts | None = None
    span_saves: InInts | None = None
    save_after: InInts | None = None
    save_slot: InInts | None = None
    slot_bytes: Int64 = 0
    adapter_slots: InInts | None = None
    adapter_rows: InInts | None = None
    adapter_tiles: Int32 = 0
    adapter_tile_start: InInts | None = None
    adapter_tile_size: InInts | None = None


@structure
class RowSampling(Struct):
    """How one row's token is sampled, and what has been found; the i-th is for row i of the logits.

    Attributes:
        changed: row of the changed scores to sample from; -1: sample from the logits.
        token: receives the token; tells it, if it is given.
        occurred, counts: (occurrences,) tokens to penalize, and how often each was generated.
        keys: of the row's noise.
        alternatives: best tokens to report beside the sampled one; only with `wants_logprob`.
        top_k: 0: no bound.
        logprob: receives the token's, if that is wanted.
    """

    changed: Int64 = -1
    token: Int64 = 0
    occurred: InLongs | None = None
    counts: InFloats | None = None
    keys: TwoUints = (0, 0)
    mode: SamplingMode = SamplingMode.BEST
    wants_logprob: Flag = False
    alternatives: Int32 = 0
    top_k: Int32 = 0
    occurrences: Int32 = 0
    top_p: Float = 1.0
    min_p: Float = 0.0
    inverse_temperature: Float = 1.0
    repetition: Float = 1.0
    presence: Float = 0.0
    frequency: Float = 0.0
    logprob: Float = 0.0
