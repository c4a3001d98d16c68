"""What Ollama's clients ask to have done to the models of a server: copied, deleted. Runs in the front end.

Whoever may manage models may do that. What Ollama's own registry and Modelfiles are for is refused by name.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ...core.access.scopes import Scope
from ...core.errors import ParameterError
from ...formats.json_framing import JSON
from ..shared.base import Answer, Kind, Route
from ..shared.request_body import object_of
from ..shared.typed_body import read_body
from ..shared.views import ServerView
from .errors import OllamaError
from .names import bare_name

COPY: Final = "ollama_copy"
DELETE: Final = "ollama_delete"
PUSH: Final = "ollama_push"
CREATE: Final = "ollama_create"
#: Operations that this server does not have, and the reason.
_REFUSED: Final = {
    PUSH: "push: not served: there is no registry to push to; the files are those of the model's directory",
    CREATE: "create: not served: a model is a directory with a checkpoint and a serving.properties, which POST /models "
    "registers",
}


class OllamaCopyRequest(msgspec.Struct, frozen=True):
    """A model, and a further name for it."""

    source: str
    destination: str


class OllamaDeleteRequest(msgspec.Struct, frozen=True):
    """Which model to unregister; `name` is the field's older name."""

    model: str = ""
    name: str = ""


ROUTES: Final = (
    Route(
        *("POST", "/api/copy", COPY, Kind.PAGE),
        summary="Register a model under another name too.",
        request=OllamaCopyRequest,
        example={"source": "demo", "destination": "other"},
        responses={200: {}},
        scope=Scope.MANAGE,
    ),
    Route(
        *("DELETE", "/api/delete", DELETE, Kind.PAGE),
        summary="Unregister a model; its files stay.",
        request=OllamaDeleteRequest,
        example={"model": "demo"},
        responses={200: {}},
        scope=Scope.MANAGE,
    ),
    Route(
        *("POST", "/api/push", PUSH, Kind.PAGE),
        summary="Refused: there is no registry.",
        responses={400: {JSON: OllamaError}},
        scope=Scope.MANAGE,
    ),
    Route(
        *("POST", "/api/create", CREATE, Kind.PAGE),
        summary="Refused: there are no Modelfiles.",
        responses={400: {JSON: OllamaError}},
        scope=Scope.MANAGE,
    ),
)
OPERATIONS: Final = (COPY, DELETE, PUSH, CREATE)


async def managed(operation: str, server: ServerView, body: bytes) -> Answer:
    """Do what a request wants done.

    Raises:
        ModelNotFoundError, ModelConflictError: see `ServerView.copy` and `remove`.
        PayloadError, ParameterError: the body is wrong, or there is no such operation here.
    """
    if (reason := _REFUSED.get(operation)) is not None:
        raise ParameterError(reason)
    if operation == COPY:
        copied = read_body(object_of(body), OllamaCopyRequest)
        await server.copy(bare_name(copied.source), bare_name(copied.destination))
    else:
        deleted = read_body(object_of(body), OllamaDeleteRequest)
        if not (name := deleted.model or deleted.name):
            raise ParameterError("model: required, expected a model's name", "model")
        await server.remove(bare_name(name))
    return Answer(200, b"", {})
