"""The errors of responses: OpenAI's shape, with the codes that its Responses API documents.

Runs in the front end and in the worker. Source: OpenAI's API reference (Responses, streaming events).
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal

import msgspec

from ...core.errors import (
    ContextLengthError,
    KeptNotFoundError,
    OverloadedError,
    ParameterError,
    PayloadError,
    ServingError,
)
from ...formats.json_framing import JSON, encode_json
from ..shared.base import Answer, Bodies, retry_header
from ..shared.openai.errors import INVALID_REQUEST, ErrorBody, openai_error

PREVIOUS: Final = "previous_response_id"
_INPUT: Final = "input"
#: What the chat template says of its messages, which are made of the input.
_MESSAGES: Final = re.compile(r"messages(\[\d+\])?[\w.\[\]]*")
FailureCode = Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]

#: Every status that `response_error` gives, for the dialect's `errors`.
DOCUMENTED: Final[dict[int, Bodies]] = {
    status: {JSON: ErrorBody} for status in (400, 401, 403, 404, 405, 413, 415, 429, 431, 500, 503, 507)
}


class UnsupportedError(ParameterError):
    """Something that OpenAI's own servers would do, and this server does not. `code` is OpenAI's."""

    def __init__(self, message: str, field: str = "", code: str = "unsupported_parameter") -> None:
        super().__init__(message, field)
        self.code = code


class ErrorEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="error"):
    """What went wrong in a stream. One that this server could not number has the highest number."""

    sequence_number: int
    code: str | None
    message: str
    param: str | None


def response_error(error: ServingError) -> tuple[int, ErrorBody]:
    """HTTP status and body of an error."""
    status, body = openai_error(_of_input(error), _INPUT)
    code = body.error.code
    if isinstance(error, UnsupportedError):
        code = error.code
    elif isinstance(error, KeptNotFoundError) and error.field == PREVIOUS:
        status, code = 400, "previous_response_not_found"
    return status, ErrorBody(msgspec.structs.replace(body.error, code=code))


def response_error_answer(error: ServingError) -> Answer:
    """The response to an error before the first byte."""
    status, body = response_error(error)
    return Answer(status, encode_json(body), {"content-type": JSON, **retry_header(error)})


def error_event(error: ServingError, number: int) -> ErrorEvent:
    """The event for an error in a stream."""
    detail = response_error(error)[1].error
    code = detail.code or detail.type
    return ErrorEvent(sequence_number=number, code=code, message=detail.message, param=detail.param)


def failure_of(error: ServingError) -> dict[str, Any]:
    """(code, message) of a response that has failed, as the fields of its `error`."""
    detail = response_error(error)[1].error
    code: FailureCode = "server_error"
    if isinstance(error, OverloadedError):
        code = "rate_limit_exceeded"
    elif detail.type == INVALID_REQUEST:
        code = "invalid_prompt"
    return {"code": code, "message": detail.message}


def _of_input(error: ServingError) -> ServingError:
    """The error with the request's own field, where it is about the messages that were made of it."""
    if isinstance(error, ContextLengthError) or not isinstance(error, PayloadError | ParameterError):
        return error
    if error.field is None or not _MESSAGES.fullmatch(error.field):
        return error
    return type(error)(_MESSAGES.sub(_INPUT, error.message, count=1), _INPUT)
