"""Triton: the generate extension, and KServe's v2 protocol for text.

Routes, pages and errors run in the front end, parsing in the worker. Sources: Triton's generate extension; the KServe
v2 protocol and Triton's extensions of it, as `tritonclient` speaks them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping
from typing import Any, ClassVar, Final

from ...config import ModelConfig
from ...core import budgets
from ...core.access.scopes import Scope
from ...core.errors import ContextLengthError, GenerationError, HandlerError, ServingError
from ...formats.json_framing import JSON, SSE, encode_json, encode_sse
from ...inputs import Input
from ..shared.base import Answer, Bodies, Dialect, Kind, Parsed, Route, retry_header
from ..shared.request_body import with_json
from ..shared.views import ServerView
from .generate import EVENTS, json_object, parse_generate
from .infer import BINARY, parse_infer
from .pages import PAGES
from .tensors import JSON_LENGTH, split_body
from .text_tasks import INFER, PARSERS
from .types import (
    DEFAULT_VERSION,
    TEXT_INPUT,
    IndexEntry,
    IndexRequest,
    InferRequest,
    InferResponse,
    LoadRequest,
    ModelConfiguration,
    ModelMetadata,
    ServerMetadata,
    Statistics,
    TritonError,
    TritonRequest,
    TritonResponse,
    UnloadRequest,
)

_MODEL: Final = "/v2/models/{model}"
_REPOSITORY: Final = "/v2/repository"
_INTERNAL: Final = 500
_READINESS: Final[dict[int, dict[str, Any]]] = {200: {}, 503: {}}


def _of_a_model(method: str, suffix: str, *row: Any, **doc: Any) -> Iterator[Route]:
    """The routes of one operation on a model, with and without a version."""
    for version in ("", "/versions/{version}"):
        yield Route(method, f"{_MODEL}{version}{suffix}", *row, **doc)


def _page(path: str, operation: str, summary: str, answer: Any, method: str = "GET", **doc: Any) -> Route:
    return Route(method, path, operation, Kind.PAGE, summary, responses={200: {JSON: answer}}, **doc)


class TritonDialect(Dialect):
    """Triton's HTTP API for text models."""

    name = "triton"
    summary = "Triton's API: text, tensors and the models' metadata."
    unversioned = DEFAULT_VERSION
    routes = (
        *_of_a_model(
            *("POST", "/generate", "generate"),
            summary="Generate text.",
            request=TritonRequest,
            example={"text_input": "What is deep learning?"},
            responses={200: {JSON: TritonResponse}},
        ),
        *_of_a_model(
            *("POST", "/generate_stream", "generate_stream"),
            summary="Generate text, as a stream.",
            request=TritonRequest,
            example={"text_input": "What is deep learning?"},
            responses={200: {EVENTS: (TritonResponse, TritonError)}},
        ),
        *_of_a_model(
            *("POST", "/infer", INFER),
            summary="Generate text, or compute vectors, scores or labels; in tensors.",
            request=InferRequest,
            example={
                "inputs": [
                    {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["What is deep learning?"]}
                ]
            },
            responses={200: {JSON: InferResponse, BINARY: Any}},
        ),
        *_of_a_model(
            *("GET", "", "metadata", Kind.PAGE),
            summary="A model and its tensors.",
            responses={200: {JSON: ModelMetadata}},
        ),
        *_of_a_model(
            *("GET", "/ready", "model_ready", Kind.PAGE),
            summary="Whether a model can answer now.",
            responses=_READINESS,
            scope=Scope.PROBE,
        ),
        *_of_a_model(
            *("GET", "/config", "config", Kind.PAGE),
            summary="A model's configuration.",
            responses={200: {JSON: ModelConfiguration}},
        ),
        *_of_a_model(
            *("GET", "/stats", "stats", Kind.PAGE),
            summary="A model's statistics.",
            responses={200: {JSON: Statistics}},
        ),
        _page("/v2/models/stats", "all_stats", "Every model's statistics.", Statistics),
        _page("/v2", "server", "The server's name, version and extensions.", ServerMetadata),
        Route(
            *("GET", "/v2/health/live", "live", Kind.PAGE),
            summary="Whether the server is live: 503 if only a new container helps.",
            responses=_READINESS,
            scope=Scope.PROBE,
        ),
        Route(
            *("GET", "/v2/health/ready", "ready", Kind.PAGE),
            summary="Whether every model can answer now.",
            responses=_READINESS,
            scope=Scope.PROBE,
        ),
        _page(
            *(f"{_REPOSITORY}/index", "index", "Every model and its state.", list[IndexEntry], "POST"),
            request=IndexRequest,
            example={},
        ),
        Route(
            *("POST", f"{_REPOSITORY}/models/{{model}}/load", "load", Kind.PAGE),
            summary="Load a model, or load it again.",
            request=LoadRequest,
            example={},
            responses={200: {}, 403: {JSON: TritonError}},
            scope=Scope.MANAGE,
        ),
        Route(
            *("POST", f"{_REPOSITORY}/models/{{model}}/unload", "unload", Kind.PAGE),
            summary="Unload a model.",
            request=UnloadRequest,
            example={},
            responses={200: {}, 403: {JSON: TritonError}},
            scope=Scope.MANAGE,
        ),
    )
    task_parsers: ClassVar = PARSERS
    errors: ClassVar[Mapping[int, Bodies]] = {
        status: {JSON: TritonError} for status in (400, 401, 403, 404, 405, 413, 429, 431, _INTERNAL, 503)
    }

    def parse(self, inputs: Input, model: ModelConfig) -> Parsed:
        """Read a body of generate, generate_stream or infer."""
        if inputs.operation == INFER:
            return parse_infer(inputs, model)
        return parse_generate(inputs, model, stream=inputs.operation == "generate_stream")

    def payload(self, inputs: Input) -> Any:
        """The JSON of the body, whatever the content-type says, without the binary data that may follow it."""
        return json_object(split_body(inputs.body, inputs.get_property(JSON_LENGTH))[0], budgets.VALUES.most)

    def with_payload(self, inputs: Input, payload: Any) -> Input:
        """A copy of the call with other JSON; the binary data after the JSON, if any, is kept."""
        _, binary = split_body(inputs.body, inputs.get_property(JSON_LENGTH))
        data = encode_json(payload)
        made = with_json(inputs, data, binary)
        if binary:
            made.properties[JSON_LENGTH] = str(len(data))
        else:
            made.properties.pop(JSON_LENGTH, None)
        return made

    def page(
        self, operation: str, server: ServerView, path_values: Mapping[str, str], body: bytes
    ) -> Answer | Awaitable[Answer]:
        """Health, metadata, configuration, statistics and the repository."""
        return PAGES[operation](server, path_values, body)

    def error(
        self,
        error: ServingError,
        model: ModelConfig | None = None,
        *,
        operation: str = "",
        inputs: Input | None = None,
    ) -> Answer:
        """`{"error"}`; failed generations and handlers have status 500."""
        status = _INTERNAL if isinstance(error, GenerationError | HandlerError) else error.status
        return Answer(status, encode_json(TritonError(_message(error))), {"content-type": JSON, **retry_header(error)})

    def stream_error(self, error: ServingError, headers: Mapping[str, str], model: ModelConfig | None = None) -> bytes:
        encode = encode_sse if headers.get("content-type", "").startswith(SSE) else encode_json
        return encode(TritonError(_message(error)))


def _message(error: ServingError) -> str:
    """The error's message, with Triton's field name."""
    if isinstance(error, ContextLengthError):
        return TEXT_INPUT + error.message.removeprefix(error.field or "")
    return error.message
