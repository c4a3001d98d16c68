"""Short answers: pages, errors in a dialect's shape or, where there is none, in the front end's own.

Runs in the front end. The front end's shape is that of DJL's front end, the names in `type` too: clients match on them.
"""

from __future__ import annotations

import json
from dataclasses import replace
from http import HTTPStatus
from typing import Final

from ..config import ModelConfig
from ..dialects.base import Answer, Dialect
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


def front_end_error(error: ServingError) -> Answer:
    """`{"code", "type", "message"}`, pretty."""
    kind = _DJL_TYPES.get(type(error), type(error).__name__)
    return Answer(error.status, pretty_json({"code": error.status, "type": kind, "message": error.message}))


def error_answer(error: ServingError, dialect: Dialect | None, model: ModelConfig | None) -> Answer:
    """`error` as the dialect writes it, or as the front end does where no route was found."""
    answer = front_end_error(error) if dialect is None else dialect.error(error, model)
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
