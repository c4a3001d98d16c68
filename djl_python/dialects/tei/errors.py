"""`{"error", "error_type"}` as Text Embeddings Inference answers it.

Runs in the front end and in the worker. Source: TEI's OpenAPI document, and its router where that is silent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from ...core.errors import (
    ContextLengthError,
    GenerationError,
    HandlerError,
    OverloadedError,
    ParameterError,
    PayloadError,
    RateLimitError,
    ServingError,
    TaskError,
    UnavailableError,
)
from ...formats.json_framing import JSON, encode_json
from ..shared.base import Answer, Bodies, retry_header
from ..shared.typed_errors import FAILED_DEPENDENCY, KEEP_STATUS, TOO_MANY, VALIDATION, too_long

_TOO_LONG: Final = 413

ErrorType = Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer"]


class TeiError(msgspec.Struct, frozen=True):
    """What went wrong."""

    error: Annotated[str, Meta(description="What went wrong, for people.")]
    error_type: ErrorType


ERRORS: Final[Mapping[int, Bodies]] = {
    status: {JSON: TeiError}
    for status in (400, 401, 403, 404, 405, _TOO_LONG, 415, VALIDATION, FAILED_DEPENDENCY, TOO_MANY, 431, 500, 503)
}


def tei_error(error: ServingError) -> tuple[int, TeiError]:
    """HTTP status and body of an error. A path that is not for the model's task has failed as TEI has it: 424."""
    if isinstance(error, TaskError):
        return FAILED_DEPENDENCY, TeiError(error.message, "Backend")
    if isinstance(error, ContextLengthError):
        return _TOO_LONG, TeiError(f"Input validation error: {too_long(error)}", "Validation")
    if isinstance(error, KEEP_STATUS):
        return error.status, TeiError(error.message, "Validation")
    if isinstance(error, PayloadError) and error.field is None:  # not JSON, or no object: not even a request
        return error.status, TeiError(error.message, "Validation")
    if isinstance(error, PayloadError | ParameterError):
        return VALIDATION, TeiError(f"Input validation error: {error.message}", "Validation")
    if isinstance(error, GenerationError | HandlerError):
        return FAILED_DEPENDENCY, TeiError(f"Inference failed: {error.message}", "Backend")
    if isinstance(error, RateLimitError):  # the client's own doing, which its message explains
        return TOO_MANY, TeiError(error.message, "Overloaded")
    if isinstance(error, OverloadedError):
        return TOO_MANY, TeiError("Model is overloaded", "Overloaded")
    if isinstance(error, UnavailableError):
        return error.status, TeiError(error.message, "Unhealthy")
    return error.status, TeiError(error.message, "Backend")


def tei_answer(error: ServingError) -> Answer:
    """The response to an error."""
    status, body = tei_error(error)
    return Answer(status, encode_json(body), {"content-type": JSON, **retry_header(error)})
