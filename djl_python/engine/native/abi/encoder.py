"""The operation that encoders alone have: their embedding. No torch."""

from __future__ import annotations

from .enums import Kind
from .structures import Float, In, Int32, Operation, Out, structure


@structure
class EmbedTextOp(Operation):
    """Begins an encoder's stream: scale * table[id] + position_table[place] + type_table[type].

    Also clears the values that a sequence's last group of keys has behind its end (embed_text.h).

    Attributes:
        n: numbers of an embedding.
        out: (tokens, n) fp32
        table: (vocabulary, n) T
        scale: of the table's rows.
        position_table: learned positions, rows of (n,) T; None: there are none.
        type_table: rows of (n,) T; None: tokens have no types.
    """

    KIND = Kind.EMBED_TEXT
    n: Int32
    out: Out
    table: In
    scale: Float = 1.0
    position_table: In | None = None
    type_table: In | None = None
