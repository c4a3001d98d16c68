"""`{"code", "type", "message"}`: the errors of DJL's front end. Clients match on the names in `type`.

Runs in the front end and in the worker.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ...core.errors import (
    ForbiddenError,
    HeadTooLongError,
    KeptNotFoundError,
    MethodError,
    ModelConflictError,
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

_TYPES: Final[dict[type[ServingError], str]] = {
    UnauthorizedError: "UnauthorizedException",
    ForbiddenError: "ForbiddenException",
    RouteError: "ResourceNotFoundException",
    KeptNotFoundError: "ResourceNotFoundException",
    ModelNotFoundError: "ModelNotFoundException",
    ModelConflictError: "BadRequestException",
    ModelNotNamedError: "BadRequestException",
    MethodError: "MethodNotAllowedException",
    TooLargeError: "RequestEntityTooLargeException",
    HeadTooLongError: "RequestHeaderFieldsTooLargeException",
    PayloadError: "BadRequestException",
    ParameterError: "BadRequestException",
    RateLimitError: "ThrottlingException",
    OverloadedError: "WlmCapacityException",
    UnavailableError: "ServiceUnavailableException",
}
_OTHER: Final = "InternalServerException"


class DjlError(msgspec.Struct, frozen=True):
    """An error of the front end."""

    code: int
    type: str
    message: str


def djl_error(error: ServingError, status: int | None = None) -> DjlError:
    """The body of an error; `status` overrides the error's own."""
    name = next((_TYPES[kind] for kind in type(error).__mro__ if kind in _TYPES), _OTHER)
    return DjlError(error.status if status is None else status, name, error.message)
