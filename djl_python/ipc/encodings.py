"""What an encoder is given and what it makes of it: sequences of token ids in, arrays of numbers out.

Runs in the worker and in the engine process; depends on nothing but `core`.
"""

from __future__ import annotations

import msgspec

from ..core.text_tasks import Granularity
from ..core.turns.precedence import ANY, Precedence
from ..core.types import Array


class EncoderInput(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A sequence of tokens, and which of the model's outputs are wanted.

    Attributes:
        ids: token ids, special ones included.
        type_ids: 0 or 1 for each token: which of two texts it belongs to; []: all 0.
        granularity: TEXT: one row, pooled; TOKENS: a row for each token; SPARSE: a weight for each entry of the
            vocabulary.
        positions: of TOKENS, whose rows are wanted; []: those of all tokens.
        unpooled: how many tokens at the beginning are not pooled: those of a prompt that a checkpoint leaves out.
    """

    ids: list[int]
    type_ids: list[int] = []
    granularity: Granularity = Granularity.TEXT
    positions: list[int] = []
    unpooled: int = 0


class EncodeRequest(msgspec.Struct, frozen=True, array_like=True, tag=True, omit_defaults=True):
    """The sequences of one request to an encoder. An `Encoding` answers each, as soon as it is computed.

    A message of `ipc.protocol`, which a handler makes, `EncoderClient.encode` sends, and an engine's `add` gets.

    Attributes:
        id: by this number its encodings, its cancellation and its errors name it. `EncoderClient.encode` assigns it.
        http_request_id: of the HTTP request that it belongs to, for log lines.
        precedence: whose it is and how urgent.
    """

    inputs: list[EncoderInput]
    id: int = 0
    http_request_id: str = ""
    precedence: Precedence = ANY


class Encoding(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What the encoder made of one input of a request: float32 numbers, or an error with a `ServingError`'s kind.

    Attributes:
        index: the input's number in its request; -1: the request could not be taken at all.
        ends: whether it is the last of its request.
    """

    request_id: int
    index: int
    numbers: Array | None = None
    error: str | None = None
    error_kind: str = "generation"
    ends: bool = False
