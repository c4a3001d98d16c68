"""`{"error": {...}}`: errors in OpenAI's shape, so that its clients raise the exception class of each kind.

Runs in the front end and in the worker. Source: OpenAI's API reference (error codes). Under option.tgi_compat the
bodies and codes are TGI's; in a stream of chunks TGI's error event has a shape of its own.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from ...core.errors import (
    ContextLengthError,
    HeadTooLongError,
    KeptNotFoundError,
    MediaTypeError,
    MethodError,
    ModelNotFoundError,
    ModelNotNamedError,
    OverloadedError,
    ParameterError,
    PayloadError,
    RouteError,
    ServingError,
    TooLargeError,
    UnavailableError,
)
from ...formats.json_framing import JSON, encode_json
from ..shared.base import Answer, retry_header
from ..shared.typed_errors import typed_error

INVALID_REQUEST: Final = "invalid_request_error"
SERVER_ERROR: Final = "server_error"
#: Errors in the client's request, with HTTP status and code.
_CLIENTS: Final[dict[type[ServingError], tuple[int, str | None]]] = {
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
#: How this project's messages name the prompt and the model, to be replaced by the fields of OpenAI's requests.
_OUR_PROMPT: Final = "inputs"
_OUR_MODEL: Final = "Parameter model_name"


class ErrorDetail(msgspec.Struct, frozen=True):
    """What went wrong."""

    message: Annotated[str, Meta(description="For people: the field and what was expected.")]
    type: str
    param: Annotated[str | None, Meta(description="Path of the field that is wrong.")]
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of any error response."""

    error: ErrorDetail


class StreamFailureDetail(msgspec.Struct, frozen=True):
    """What went wrong, in TGI's form for streams of chunks."""

    message: str
    http_status_code: int


class StreamFailure(msgspec.Struct, frozen=True):
    """The last object of a stream that failed, under option.tgi_compat."""

    error: StreamFailureDetail


def openai_error(error: ServingError, prompt_field: str = "messages") -> tuple[int, ErrorBody]:
    """HTTP status and body of an error; `prompt_field` is what the request calls its prompt."""
    for kind, (status, code) in _CLIENTS.items():
        if isinstance(error, kind):
            message, param = _message(error, prompt_field)
            return status, ErrorBody(ErrorDetail(message, INVALID_REQUEST, param, code))
    if isinstance(error, OverloadedError):
        return 429, ErrorBody(ErrorDetail(error.message, "requests", None, "rate_limit_exceeded"))
    if isinstance(error, UnavailableError):
        return 503, ErrorBody(ErrorDetail(error.message, SERVER_ERROR, None, "service_unavailable"))
    return 500, ErrorBody(ErrorDetail(error.message, SERVER_ERROR, None, error.kind))


def openai_answer(error: ServingError, prompt_field: str = "messages") -> Answer:
    """The response to an error before the first byte."""
    status, body = openai_error(error, prompt_field)
    return Answer(status, encode_json(body), {"content-type": JSON, **retry_header(error)})


def stream_failure(error: ServingError, *, tgi: bool) -> ErrorBody | StreamFailure:
    """The object that ends a stream which has already begun."""
    if not tgi:
        return openai_error(error)[1]
    status, body = typed_error(error)
    return StreamFailure(StreamFailureDetail(body.error, status))


def with_request_fields(error: ServingError, prompt_field: str) -> ServingError:
    """The error with the request's own field names; `prompt_field` is what it calls its prompt."""
    if isinstance(error, ModelNotNamedError):
        return ModelNotNamedError(error.message.replace(_OUR_MODEL, "model", 1))
    if isinstance(error, ContextLengthError) or not isinstance(error, PayloadError | ParameterError):
        return error
    if error.field != _OUR_PROMPT:
        return error
    return type(error)(error.message.replace(_OUR_PROMPT, prompt_field, 1), prompt_field)


def _message(error: ServingError, prompt_field: str) -> tuple[str, str | None]:
    """(message, param)."""
    if isinstance(error, ContextLengthError):
        return _too_long(error, prompt_field), prompt_field
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
