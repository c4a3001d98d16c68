"""Errors as TGI says them; the messages themselves are in test_tgi.py."""

from __future__ import annotations

import json

import pytest

from djl_python.core import errors
from djl_python.dialects.shared.typed_errors import (
    ErrorResponse,
    documented_errors,
    typed_answer,
    typed_error,
    typed_event,
    typed_stream_error,
)


def every_kind() -> list[type[errors.ServingError]]:
    """All but the one that only the registration of a model has: no API that has these errors registers models."""
    kinds: list[type[errors.ServingError]] = []
    waiting = [errors.ServingError]
    while waiting:
        kinds.append(kind := waiting.pop())
        waiting += kind.__subclasses__()
    kinds.remove(errors.ModelConflictError)
    return kinds


@pytest.mark.parametrize("kind", every_kind())
def test_every_status_is_documented(kind: type[errors.ServingError]) -> None:
    made = {
        errors.ContextLengthError: errors.ContextLengthError(3, 4, 5),
        errors.TextLengthError: errors.TextLengthError(3, 2, "inputs"),
    }
    error = made[kind] if kind in made else kind("why")
    status, shape = typed_error(error)
    assert documented_errors("application/json")[status] == {"application/json": ErrorResponse}
    assert shape.error
    assert shape.error_type


def test_an_error_is_answered_as_json_or_as_an_event() -> None:
    answer = typed_answer(errors.ParameterError("x: wrong", "x"))
    assert answer.headers == {"content-type": "application/json"}
    assert json.loads(answer.body) == {"error": "Input validation error: x: wrong", "error_type": "validation"}
    event = typed_answer(errors.ParameterError("x: wrong", "x"), as_event=True)
    assert (event.status, event.headers) == (422, {"content-type": "text/event-stream"})
    assert event.body == b"data: " + answer.body + b"\n\n" == typed_event(errors.ParameterError("x: wrong", "x"))


def test_a_stream_ends_with_what_it_is_made_of() -> None:
    error = errors.WorkerDiedError("it died")
    line = b'{"error":"Request failed during generation: it died","error_type":"generation"}'
    assert typed_stream_error(error, {"content-type": "application/jsonlines"}) == line
    for kind in ("text/event-stream", "text/event-stream; charset=utf-8"):
        assert typed_stream_error(error, {"content-type": kind}) == b"data: " + line + b"\n\n"


def test_clients_are_told_when_to_come_back() -> None:
    assert typed_answer(errors.OverloadedError("full")).headers["retry-after"] == "1"
    assert typed_answer(errors.UnavailableError("loading")).headers["retry-after"] == "5"
