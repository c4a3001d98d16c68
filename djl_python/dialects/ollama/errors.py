"""`{"error": "..."}`: errors in Ollama's shape. Runs in the front end and in the worker."""

from __future__ import annotations

from typing import Final

import msgspec

from ...core.errors import ContextLengthError, ServingError
from ...formats.json_framing import JSON, encode_json
from ..shared.base import Answer, Bodies, retry_header
from ..shared.fields.request_names import with_request_fields

#: Our status for a failed generation, which Ollama answers with 500.
_FAILED_DEPENDENCY: Final = 424
_SERVERS_FAULT: Final = 500


class OllamaError(msgspec.Struct, frozen=True):
    """What went wrong."""

    error: str


#: Every status that an error may have, for the dialect's `errors`.
DOCUMENTED: Final[dict[int, Bodies]] = {
    status: {JSON: OllamaError} for status in (400, 401, 403, 404, 405, 413, 415, 429, 431, 500, 503, 507)
}


def ollama_error(error: ServingError, prompt_field: str) -> OllamaError:
    """The body of an error; `prompt_field` is what the request calls its prompt."""
    if isinstance(error, ContextLengthError):
        return OllamaError(error.message.replace("inputs", prompt_field, 1))
    return OllamaError(with_request_fields(error, prompt_field).message)


def ollama_answer(error: ServingError, prompt_field: str) -> Answer:
    """The response to an error before the first byte."""
    status = _SERVERS_FAULT if error.status == _FAILED_DEPENDENCY else error.status
    return Answer(status, encode_json(ollama_error(error, prompt_field)), {"content-type": JSON, **retry_header(error)})
