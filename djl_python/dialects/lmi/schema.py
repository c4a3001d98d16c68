"""LMI's bodies as /openapi.json shows them: what `dialect` reads and `format` writes.

Runs in the front end. A model.py with a handler of its own may read and answer anything; this is what the built-in
handler does. Under option.tgi_compat objects have TGI's names for some fields, and all of its fields.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ...formats.json_framing import JSON, JSONLINES, SSE
from ..shared.base import Bodies
from ..shared.chat.answer import ChatChunk, ChatCompletion
from ..shared.chat.request import ChatRequest
from ..shared.completion import Completion, CompletionRequest
from ..shared.djl_errors import DjlError
from .parameters import LmiParameters


class LmiRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt and its generation parameters."""

    inputs: Annotated[
        Annotated[str, Meta(min_length=1)] | list[str],
        Meta(description="The prompt; with option.rolling_batch=disable also an array of prompts."),
    ]
    parameters: LmiParameters | None = None
    stream: Annotated[bool, Meta(description="Answer with a line for each token.")] | None = None


class LmiSessionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Opens a session, or closes that of the header X-Amzn-SageMaker-Session-Id."""

    requestType: Literal["NEW_SESSION", "CLOSE"]


class LmiSessionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the session, in words. A header has its id: X-Amzn-SageMaker-Session-Id, with the time when it
    expires, or X-Amzn-SageMaker-Closed-Session-Id."""

    result: str


class LmiToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token. `log_prob` is called `logprob` under option.tgi_compat, and `special_token` `special`."""

    id: int
    text: str
    log_prob: float | UnsetType | None = UNSET
    special_token: bool | UnsetType = UNSET
    logprob: float | UnsetType | None = UNSET
    special: bool | UnsetType = UNSET


class LmiSequence(msgspec.Struct, frozen=True, kw_only=True):
    """One of the other sequences of a request that asked for several."""

    finish_reason: str
    generated_tokens: int
    generated_text: str
    tokens: list[LmiToken]
    top_tokens: list[list[LmiToken]] | UnsetType = UNSET
    prefill: list[LmiToken] | UnsetType = UNSET
    seed: int | UnsetType | None = UNSET


class LmiDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Details of a generation. In a stream they leave out `tokens`, which were sent before."""

    finish_reason: Literal["eos_token", "stop_sequence", "length"]
    generated_tokens: int
    inputs: Annotated[str, Meta(description="The prompt.")]
    tokens: list[LmiToken] | UnsetType = UNSET
    top_tokens: list[list[LmiToken]] | UnsetType = UNSET
    prefill: list[LmiToken] | UnsetType = UNSET
    prefill_top_tokens: list[list[LmiToken]] | UnsetType = UNSET
    best_of_sequences: list[LmiSequence] | UnsetType = UNSET
    seed: int | UnsetType | None = UNSET
    input_length: int | UnsetType = UNSET


class LmiAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The generated text."""

    generated_text: str
    details: LmiDetails | UnsetType = UNSET


class LmiOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a stream with option.rolling_batch=disable: the next token's text for each prompt."""

    outputs: list[str]


class LmiFailedDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The details of a failed generation."""

    finish_reason: Literal["error"]
    generated_tokens: None
    inputs: None
    tokens: UnsetType | None = UNSET


class LmiFailure(msgspec.Struct, frozen=True, kw_only=True):
    """An error, also as the line that ends a stream. Only `error` and `code` if the request body itself was wrong."""

    error: str
    code: int
    index: int | UnsetType = UNSET
    error_type: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    generated_text: Literal[""] | UnsetType = UNSET
    token: LmiToken | UnsetType = UNSET
    details: LmiFailedDetails | UnsetType = UNSET


class LmiLine(msgspec.Struct, frozen=True, kw_only=True):
    """One token of a stream; the last one also has the whole text."""

    token: LmiToken
    top_tokens: list[LmiToken] | UnsetType = UNSET
    generated_text: str | UnsetType | None = UNSET
    details: LmiDetails | UnsetType | None = UNSET
    index: int | UnsetType = UNSET


class TgiRefusal(DjlError, frozen=True):
    """A refusal by the front end under option.tgi_compat, which TGI's clients can read too."""

    error: str
    error_type: str


REQUEST: Final = (LmiRequest, CompletionRequest, ChatRequest, LmiSessionRequest)
_LINE: Final = (LmiLine, LmiOutputs, LmiFailure, ChatChunk, Completion)
RESPONSES: Final[dict[int, dict[str, Any]]] = {
    200: {
        JSON: (LmiAnswer, list[LmiAnswer], ChatCompletion, Completion, LmiSessionAnswer),
        JSONLINES: _LINE,
        SSE: (*_LINE, "[DONE]"),
    },
    424: {JSON: LmiFailure},
}
ERRORS: Final[dict[int, Bodies]] = {
    status: {JSON: (DjlError, TgiRefusal)} for status in (400, 404, 405, 413, 429, 431, 500, 503)
}
