"""Short answers: pages, errors in a dialect's shape or, where there is none, in the front end's own.

Runs in the front end. The front end's shape is that of DJL's front end, the names in `type` too: clients match on them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Final

from ..config import ModelConfig
from ..dialects.base import Dialect
from ..errors import (
    MethodError,
    ModelNotFoundError,
    ModelNotNamedError,
    OverloadedError,
    RouteError,
    ServingError,
    UnavailableError,
)

_DJL_TYPES: Final[dict[type[ServingError], str]] = {
    RouteError: "ResourceNotFoundException",
    ModelNotFoundError: "ModelNotFoundException",
    ModelNotNamedError: "BadRequestException",
    MethodError: "MethodNotAllowedException",
    UnavailableError: "ServiceUnavailableException",
    OverloadedError: "WlmCapacityException",
}


@dataclass(frozen=True)
class Answer:
    """A short answer, whole."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "application/json"})


def front_end_error(error: ServingError) -> Answer:
    """`{"code", "type", "message"}`, pretty."""
    kind = _DJL_TYPES.get(type(error), type(error).__name__)
    return Answer(error.status, pretty_json({"code": error.status, "type": kind, "message": error.message}))


def error_answer(error: ServingError, dialect: Dialect | None, model: ModelConfig | None) -> Answer:
    """`error` as the dialect writes it, or as the front end does where no route was found."""
    if dialect is None:
        answer = front_end_error(error)
    else:
        shaped = dialect.error(error, model)
        answer = Answer(shaped.status, shaped.body, shaped.headers)
    if isinstance(error, OverloadedError | UnavailableError) and "retry-after" not in map(str.lower, answer.headers):
        # A client that is not told when to come back comes back at once.
        return replace(answer, headers={**answer.headers, "retry-after": str(error.retry_after_s)})
    return answer


def pretty_json(value: object) -> bytes:
    """As DJL's front end prints it."""
    return json.dumps(value, indent=2).encode() + b"\n"


def reason(status: int) -> str:
    """The reason phrase of a status; never text of ours."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
