"""LMI's bodies as /openapi.json shows them: what `dialect` reads and `format` writes.

Runs in the front end. They describe the built-in handler; a model.py with a handler of its own may read and answer
anything. Under option.tgi_compat objects have TGI's names for some fields, and all of its fields.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ...formats.json_framing import JSON, JSONLINES, SSE
from ..shared.base import Bodies
from ..shared.chat.request import ChatRequest
from ..shared.chat.shapes import ChatChunk, ChatCompletion
from ..shared.completion import CompletionRequest
from ..shared.completion_shapes import Completion
from ..shared.djl_errors import DjlError
from ..shared.text_tasks import pipelines
from .parameters import LmiParameters

_Prompt = Annotated[str, Meta(min_length=1)]


#: The header that names a session.
SESSION_ID: Final = "X-Amzn-SageMaker-Session-Id"


class LmiRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt and its generation parameters."""

    inputs: Annotated[
        _Prompt | Annotated[list[_Prompt], Meta(min_length=1)],
        Meta(description="The prompt, or an array of prompts, which has an array of answers."),
    ]
    parameters: LmiParameters | None = None
    stream: Annotated[bool, Meta(description="Answer with a line for each token.")] | None = None


class LmiSessionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Opens a session, or closes that of the header X-Amzn-SageMaker-Session-Id."""

    requestType: Literal["NEW_SESSION", "CLOSE"]


class LmiSessionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The session's new state, in words. A header has its id: X-Amzn-SageMaker-Session-Id, with its expiry, or
    X-Amzn-SageMaker-Closed-Session-Id.
    """

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


class _PartsOfDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Optional fields of details, which the request has to ask for."""

    top_tokens: list[list[LmiToken]] | UnsetType = UNSET
    prefill: list[LmiToken] | UnsetType = UNSET
    prefill_top_tokens: list[list[LmiToken]] | UnsetType = UNSET
    best_of_sequences: list[LmiSequence] | UnsetType = UNSET
    seed: int | UnsetType | None = UNSET
    input_length: int | UnsetType = UNSET


class LmiDetails(_PartsOfDetails, frozen=True, kw_only=True):
    """Details of a generation. In a stream they leave out `tokens`, which were sent before."""

    finish_reason: Literal["eos_token", "stop_sequence", "length"]
    generated_tokens: int
    inputs: Annotated[str, Meta(description="The prompt.")]
    tokens: list[LmiToken] | UnsetType = UNSET


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


class LmiItemDetails(_PartsOfDetails, frozen=True, kw_only=True):
    """Details of one of several generations. A failed generation has no values."""

    finish_reason: Literal["eos_token", "stop_sequence", "length", "error"]
    generated_tokens: int | None
    inputs: str | None
    tokens: list[LmiToken] | UnsetType | None = UNSET


class LmiItem(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one prompt of an array; or its error, with `error` and `code`, beside the answers to the others.

    With option.rolling_batch=disable an error has no text and details, but a `message`.
    """

    generated_text: str | UnsetType = UNSET
    details: LmiItemDetails | UnsetType = UNSET
    error: str | UnsetType = UNSET
    code: int | UnsetType = UNSET
    error_type: str | UnsetType = UNSET
    message: str | UnsetType = UNSET


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


REQUEST: Final = (LmiRequest, CompletionRequest, ChatRequest, LmiSessionRequest, *pipelines.REQUESTS)
_LINE: Final = (LmiLine, LmiOutputs, LmiFailure, ChatChunk, Completion)
RESPONSES: Final[dict[int, dict[str, Any]]] = {
    200: {
        JSON: (LmiAnswer, list[LmiItem], ChatCompletion, Completion, LmiSessionAnswer, *pipelines.ANSWERS),
        JSONLINES: _LINE,
        SSE: (*_LINE, "[DONE]"),
    },
    424: {JSON: LmiFailure},
}
ERRORS: Final[dict[int, Bodies]] = {
    status: {JSON: (DjlError, TgiRefusal)} for status in (400, 401, 403, 404, 405, 413, 429, 431, 500, 503)
}
