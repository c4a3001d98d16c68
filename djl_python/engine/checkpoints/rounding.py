"""What `option.quantize` rounds each of a model's weights to. No torch: for the engine process, and for `check`."""

from __future__ import annotations

from typing import Final, Literal

Quantize = Literal["int8", "int4"]
#: What one weight is rounded to.
Rounding = Literal["int8", "int6", "int5", "int4"]
#: A weight's part: gate and up projections of MLPs and experts; projections back to the stream (down, and attention's
#: output); others, as of queries, keys and values; the lm_head.
Role = Literal["up", "out", "other", "head"]

# With option.quantize=int4. Decision 168 has what each costs; narrow models lose more, and have less to save.
_BITS: Final[dict[Role, Rounding]] = {"up": "int4", "out": "int5", "other": "int6", "head": "int8"}
_NARROW: Final = 2048


def rounding_of(role: Role, quantize: Quantize | None, width: int) -> Rounding | None:
    """What a model's weight is rounded to: more bits where rounding costs more; None: it stays what it is.

    Args:
        width: numbers of a token between the model's layers.
    """
    if quantize is None or quantize == "int8":
        return quantize
    return "int5" if role == "up" and width < _NARROW else _BITS[role]
