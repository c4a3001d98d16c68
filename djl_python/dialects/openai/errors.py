"""The last object of an OpenAI stream that failed; under option.tgi_compat, TGI's.

Runs in the front end and in the worker. TGI's error event in a stream of chunks has a shape of its own.
"""

from __future__ import annotations

import msgspec

from ...core.errors import ServingError
from ..shared.openai.errors import ErrorBody, openai_error
from ..shared.typed_errors import typed_error


class StreamFailureDetail(msgspec.Struct, frozen=True):
    """What went wrong, in TGI's form for streams of chunks."""

    message: str
    http_status_code: int


class StreamFailure(msgspec.Struct, frozen=True):
    """The last object of a stream that failed, under option.tgi_compat."""

    error: StreamFailureDetail


def stream_failure(error: ServingError, *, tgi: bool) -> ErrorBody | StreamFailure:
    """The object that ends a stream which has already begun."""
    if not tgi:
        return openai_error(error)[1]
    status, body = typed_error(error)
    return StreamFailure(StreamFailureDetail(body.error, status))
