"""`{"error", "error_type"}`: the errors of TGI, and of the APIs that follow it.

Runs in the front end and in the worker. Sources: TGI 2.3.2's OpenAPI document (`ErrorResponse`) and the messages and
codes of its router.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from ...core.errors import (
    ContextLengthError,
    ForbiddenError,
    GenerationError,
    HandlerError,
    MethodError,
    ModelNotFoundError,
    ModelNotNamedError,
    OverloadedError,
    ParameterError,
    PayloadError,
    RateLimitError,
    RouteError,
    ServingError,
    TooLargeError,
    UnauthorizedError,
    UnavailableError,
)
from ...formats.json_framing import JSON, SSE, encode_json, encode_sse
from .base import Answer, Bodies, retry_header

VALIDATION: Final = 422
FAILED_DEPENDENCY: Final = 424
TOO_MANY: Final = 429
INTERNAL: Final = 500
#: Errors that keep their own status, because the request is refused before its parameters are read.
KEEP_STATUS: Final = (
    *(RouteError, MethodError, TooLargeError, ModelNotFoundError, ModelNotNamedError),
    *(UnauthorizedError, ForbiddenError),
)


class ErrorResponse(msgspec.Struct, frozen=True):
    """What went wrong."""

    error: Annotated[str, Meta(description="What went wrong, for people.")]
    error_type: Annotated[
        str,
        Meta(description="validation, generation, overloaded, incomplete_generation, healthcheck, or another kind."),
    ]


def documented_errors(content_type: str) -> dict[int, Bodies]:
    """Every status that `typed_error` gives, for a dialect's `errors`."""
    return {
        status: {content_type: ErrorResponse}
        for status in (400, 401, 403, 404, 405, 413, 415, 422, 424, 429, 431, 500, 503)
    }


def typed_error(error: ServingError) -> tuple[int, ErrorResponse]:
    """HTTP status and body of an error, as TGI's router has them."""
    if isinstance(error, (*KEEP_STATUS, RateLimitError)):
        return error.status, ErrorResponse(error.message, error.kind)
    if isinstance(error, PayloadError) and error.field is None:  # not JSON, or no object: not even a request
        return error.status, ErrorResponse(error.message, "validation")
    if isinstance(error, PayloadError | ParameterError):
        return VALIDATION, ErrorResponse(f"Input validation error: {_validation(error)}", "validation")
    if isinstance(error, GenerationError | HandlerError):
        return FAILED_DEPENDENCY, ErrorResponse(f"Request failed during generation: {error.message}", "generation")
    if isinstance(error, OverloadedError):
        return TOO_MANY, ErrorResponse("Model is overloaded", "overloaded")
    if isinstance(error, UnavailableError):
        return error.status, ErrorResponse(error.message, "healthcheck")
    return INTERNAL, ErrorResponse(f"Incomplete generation: {error.message}", "incomplete_generation")


def typed_answer(error: ServingError, *, as_event: bool = False) -> Answer:
    """The response to an error before the first byte: JSON, or one server-sent event."""
    status, body = typed_error(error)
    headers = {"content-type": SSE if as_event else JSON, **retry_header(error)}
    return Answer(status, encode_sse(body) if as_event else encode_json(body), headers)


def typed_event(error: ServingError) -> bytes:
    """The event that ends a stream which has already begun."""
    return encode_sse(typed_error(error)[1])


def typed_stream_error(error: ServingError, headers: Mapping[str, str]) -> bytes:
    """The bytes that end a stream which began with these headers."""
    if headers.get("content-type", "").startswith(SSE):
        return typed_event(error)
    return encode_json(typed_error(error)[1])


def too_long(error: ContextLengthError) -> str:
    """What a client is told of a text that is too long by itself."""
    return f"`inputs` must have less than {error.limit} tokens. Given: {error.bound}{error.prompt_tokens}"


def _validation(error: PayloadError | ParameterError) -> str:
    if not isinstance(error, ContextLengthError):
        return error.message
    if error.max_new_tokens is None:
        return too_long(error)
    return (
        f"`inputs` tokens + `max_new_tokens` must be <= {error.limit}. "
        f"Given: {error.prompt_tokens} `inputs` tokens and {error.max_new_tokens} `max_new_tokens`"
    )
