"""`{"error": {...}}`: errors in OpenAI's shape, so that its clients raise the exception class of each kind.

Runs in the front end and in the worker. Source: OpenAI's API reference (error codes).
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from ....core.errors import (
    ContextLengthError,
    ForbiddenError,
    HeadTooLongError,
    KeptNotFoundError,
    MediaTypeError,
    MethodError,
    ModelNotFoundError,
    ModelNotNamedError,
    OverloadedError,
    ParameterError,
    PayloadError,
    RateLimitError,
    RouteError,
    ServingError,
    StorageError,
    TextLengthError,
    TooLargeError,
    UnauthorizedError,
    UnavailableError,
)
from ....formats.json_framing import JSON, encode_json
from ..base import Answer, retry_header
from ..fields.request_names import OUR_PROMPT, with_request_fields

INVALID_REQUEST: Final = "invalid_request_error"
SERVER_ERROR: Final = "server_error"
#: Errors in the client's request, with HTTP status and code.
_CLIENTS: Final[dict[type[ServingError], tuple[int, str | None]]] = {
    UnauthorizedError: (401, "invalid_api_key"),
    ForbiddenError: (403, "insufficient_permissions"),
    ContextLengthError: (400, "context_length_exceeded"),
    MediaTypeError: (415, None),
    PayloadError: (400, None),
    ParameterError: (400, None),
    ModelNotFoundError: (404, "model_not_found"),
    ModelNotNamedError: (400, None),
    RouteError: (404, None),
    KeptNotFoundError: (404, None),
    MethodError: (405, None),
    HeadTooLongError: (431, None),
    TooLargeError: (413, None),
}


class ErrorDetail(msgspec.Struct, frozen=True):
    """What went wrong."""

    message: Annotated[str, Meta(description="For people: the field and what was expected.")]
    type: str
    param: Annotated[str | None, Meta(description="Path of the field that is wrong.")]
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of any error response."""

    error: ErrorDetail


def openai_error(error: ServingError, prompt_field: str | None = "messages") -> tuple[int, ErrorBody]:
    """HTTP status and body of an error; `prompt_field` is what the request calls its prompt, None: it has none."""
    for kind, (status, code) in _CLIENTS.items():
        if isinstance(error, kind):
            message, param = _message(error, prompt_field)
            return status, ErrorBody(ErrorDetail(message, INVALID_REQUEST, param, code))
    if isinstance(error, OverloadedError):
        what = error.what if isinstance(error, RateLimitError) else "requests"
        return 429, ErrorBody(ErrorDetail(error.message, what, None, "rate_limit_exceeded"))
    if isinstance(error, UnavailableError):
        return 503, ErrorBody(ErrorDetail(error.message, SERVER_ERROR, None, "service_unavailable"))
    status = error.status if isinstance(error, StorageError) else 500
    return status, ErrorBody(ErrorDetail(error.message, SERVER_ERROR, None, error.kind))


def openai_answer(error: ServingError, prompt_field: str | None = "messages") -> Answer:
    """The response to an error before the first byte."""
    status, body = openai_error(error, prompt_field)
    return Answer(status, encode_json(body), {"content-type": JSON, **retry_header(error)})


def _message(error: ServingError, prompt_field: str | None) -> tuple[str, str | None]:
    """(message, param)."""
    if isinstance(error, TextLengthError):
        return _text_too_long(error), error.field
    if isinstance(error, ContextLengthError):
        return _too_long(error, prompt_field or OUR_PROMPT), prompt_field
    error = with_request_fields(error, prompt_field)
    if isinstance(error, ModelNotFoundError | ModelNotNamedError):
        return error.message, "model"
    return error.message, error.field if isinstance(error, PayloadError | ParameterError | KeptNotFoundError) else None


def _too_long(error: ContextLengthError, prompt_field: str) -> str:
    """OpenAI's sentence, which clients parse."""
    new = error.max_new_tokens
    total = error.prompt_tokens + (1 if new is None else new)
    asked = (
        f"{error.bound}{total} tokens ({error.bound}{error.prompt_tokens} tokens in the "
        f"{prompt_field}, {'at least 1' if new is None else new} in the completion)"
    )
    return (
        f"This model's maximum context length is {error.limit} tokens. However, you requested {asked}. "
        f"Please reduce the length of the {prompt_field}"
        f"{' or completion' if new is not None else ''}."
    )


def _text_too_long(error: TextLengthError) -> str:
    """OpenAI's sentence about a text that is only read."""
    got = f"{error.bound}{error.prompt_tokens}"
    return (
        f"This model's maximum context length is {error.limit} tokens, however you requested {got} tokens "
        f"({got} in your prompt; 0 for the completion). Please reduce your prompt; or completion length."
    )
