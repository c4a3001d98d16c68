"""`{"type": "error", "error": {...}}`: errors in Anthropic's shape, with its statuses and types.

Runs in the front end and in the worker. Source: Anthropic's API reference (errors).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from ...core.errors import (
    ContextLengthError,
    ForbiddenError,
    KeptNotFoundError,
    ModelNotFoundError,
    OverloadedError,
    PredictTimeoutError,
    RateLimitError,
    RouteError,
    ServingError,
    TooLargeError,
    UnauthorizedError,
    UnavailableError,
)
from ...formats.json_framing import JSON, encode_json
from ..shared.base import Answer, Bodies, retry_header
from ..shared.fields.request_names import with_request_fields

_INVALID: Final = "invalid_request_error"
_API: Final = "api_error"
#: Statuses and types of the kinds that Anthropic documents, the first that fits. Others keep their own status.
_KINDS: Final[tuple[tuple[type[ServingError], int | None, str], ...]] = (
    (UnauthorizedError, 401, "authentication_error"),
    (ForbiddenError, 403, "permission_error"),
    (ModelNotFoundError, 404, "not_found_error"),
    (RouteError, 404, "not_found_error"),
    (KeptNotFoundError, 404, "not_found_error"),
    (TooLargeError, None, "request_too_large"),
    (RateLimitError, 429, "rate_limit_error"),
    (OverloadedError, 529, "overloaded_error"),
    (UnavailableError, 529, "overloaded_error"),
    (PredictTimeoutError, 504, "timeout_error"),
)
_SERVERS_FAULT: Final = 500
#: Statuses that mean something else in Anthropic's API, or nothing.
_FAILED_DEPENDENCY: Final = 424


class MessageErrorDetail(msgspec.Struct, frozen=True):
    """What went wrong."""

    type: str
    message: Annotated[str, Meta(description="For people: the field and what was expected.")]


class MessageError(msgspec.Struct, frozen=True, kw_only=True):
    """The body of any error response, and the data of the event that ends a failed stream."""

    type: Literal["error"] = "error"
    error: MessageErrorDetail


#: Every status that `anthropic_error` gives, for the dialect's `errors`.
DOCUMENTED: Final[dict[int, Bodies]] = {
    status: {JSON: MessageError} for status in (400, 401, 403, 404, 405, 413, 415, 429, 431, 500, 504, 507, 529)
}


def anthropic_error(error: ServingError) -> tuple[int, MessageError]:
    """HTTP status and body of an error."""
    message = _message(error)
    for kind, status, name in _KINDS:
        if isinstance(error, kind):
            return status or error.status, MessageError(error=MessageErrorDetail(name, message))
    status = _SERVERS_FAULT if error.status == _FAILED_DEPENDENCY else error.status
    return status, MessageError(error=MessageErrorDetail(_INVALID if status < _SERVERS_FAULT else _API, message))


def anthropic_answer(error: ServingError) -> Answer:
    """The response to an error before the first byte."""
    status, body = anthropic_error(error)
    return Answer(status, encode_json(body), {"content-type": JSON, **retry_header(error)})


def error_event(error: ServingError) -> bytes:
    """The event that ends a failed stream."""
    return b"event: error\ndata: %b\n\n" % encode_json(anthropic_error(error)[1])


def _message(error: ServingError) -> str:
    if isinstance(error, ContextLengthError):
        # Clients find the two numbers in this sentence, and make the chat shorter.
        return f"prompt is too long: {error.prompt_tokens} tokens > {error.limit} maximum"
    return with_request_fields(error, "messages").message
