"""Ollama's API.

Routes, pages and errors run in the front end, parsing and answering in the worker. Answers are streams of lines unless
the request says `"stream": false`. Models are pulled, copied and deleted by those who may manage them; none are
created.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import ClassVar, Final

from ...config import TEXT_GENERATION, ModelConfig
from ...core.errors import ModelNotFoundError, ParameterError, ServingError
from ...formats.json_framing import JSON, encode_json, encode_jsonlines
from ...inputs import Input
from ..shared.adapters import adapter_of_model, field_before_parsing
from ..shared.base import Answer, Bodies, Dialect, Kind, Parsed, Route, StreamedAnswer
from ..shared.fields.named_model import named_model
from ..shared.request_body import ignored_header, json_object, object_of
from ..shared.typed_body import read_body
from ..shared.views import ModelStatus, ServerView
from . import embed, keep_alive, managing, pulling
from .answer import NDJSON, OllamaChatResponse, OllamaFormatter, OllamaGenerateResponse
from .errors import DOCUMENTED, OllamaError, ollama_answer, ollama_error
from .models import (
    LoadedModels,
    OllamaModels,
    OllamaShown,
    OllamaShowRequest,
    OllamaVersion,
    listed,
    loaded,
    shown,
)
from .names import bare_name
from .request import OllamaChatRequest, OllamaGenerateRequest, read_chat, read_generate

CHAT: Final = "ollama_chat"
GENERATE: Final = "ollama_generate"
TAGS: Final = "tags"
PS: Final = "ps"
SHOW: Final = "show"
VERSION: Final = "version"
_READERS: Final = {CHAT: read_chat, GENERATE: read_generate}
#: What the requests that generate text call their prompt.
_PROMPTS: Final = {CHAT: "messages", GENERATE: "prompt", embed.EMBED: "input", embed.EMBEDDINGS: "prompt"}


class OllamaDialect(Dialect):
    """Ollama's chats, prompts, embeddings and models."""

    name = "ollama"
    summary = "Ollama's API: chats, prompts, embeddings."
    routes = (
        Route(
            "POST",
            "/api/chat",
            CHAT,
            summary="Answer a chat.",
            request=OllamaChatRequest,
            example={"model": "demo", "messages": [{"role": "user", "content": "What is deep learning?"}]},
            responses={200: {JSON: OllamaChatResponse, NDJSON: (OllamaChatResponse, OllamaError)}},
        ),
        Route(
            "POST",
            "/api/generate",
            GENERATE,
            summary="Answer a prompt.",
            request=OllamaGenerateRequest,
            example={"model": "demo"},
            responses={200: {JSON: OllamaGenerateResponse, NDJSON: (OllamaGenerateResponse, OllamaError)}},
        ),
        *embed.ROUTES,
        Route("GET", "/api/tags", TAGS, Kind.PAGE, summary="List the models.", responses={200: {JSON: OllamaModels}}),
        Route("GET", "/api/ps", PS, Kind.PAGE, summary="The loaded models.", responses={200: {JSON: LoadedModels}}),
        Route(
            "POST",
            "/api/show",
            SHOW,
            Kind.PAGE,
            summary="One model.",
            request=OllamaShowRequest,
            example={"model": "demo"},
            responses={200: {JSON: OllamaShown}},
        ),
        Route(
            "GET",
            "/api/version",
            VERSION,
            Kind.PAGE,
            summary="The release of Ollama whose API this is.",
            responses={200: {JSON: OllamaVersion}},
        ),
        *managing.ROUTES,
        pulling.ROUTE,
    )
    task_parsers: ClassVar = embed.PARSERS
    model_field = "model"
    keep_alive_field = keep_alive.FIELD
    any_content_type = True
    errors: ClassVar[Mapping[int, Bodies]] = DOCUMENTED

    def parse(self, inputs: Input, model: ModelConfig) -> Parsed:
        """Read a chat or a prompt."""
        if (read := _READERS.get(inputs.operation)) is None:
            raise self.wrong_task(TEXT_GENERATION, model)
        parsed = read(json_object(inputs, model), model)
        formatter = OllamaFormatter(
            chat=inputs.operation == CHAT,
            stream=parsed.fields.stream is not False,
            model=parsed.fields.model,
            headers=ignored_header(parsed.ignored),
        )
        return Parsed(parsed.requests, formatter)

    def page(
        self, operation: str, server: ServerView, path_values: Mapping[str, str], body: bytes
    ) -> Answer | StreamedAnswer | Awaitable[Answer]:
        """The models, one of them, or the version; or what is done to one."""
        if operation in managing.OPERATIONS:
            return managing.managed(operation, server, body)
        if operation == pulling.PULL:
            return pulling.pulled(server, body)
        if operation == VERSION:
            return _json(OllamaVersion())
        if operation == SHOW:
            return _shown(server, body)
        return _listed(server) if operation == TAGS else _loaded(server)

    def adapters_of(self, inputs: Input, model: ModelConfig) -> Sequence[str]:
        named = field_before_parsing(inputs, model, self.model_field)
        return [adapter_of_model(bare_name(named), model)] if isinstance(named, str) else []

    def model_of(self, body: bytes) -> str | None:
        name = named_model(body)
        return None if name is None else bare_name(name)

    def keep_alive_s(self, body: bytes) -> float | None:
        return keep_alive.keep_alive_s(body)

    def unloading(self, operation: str, body: bytes) -> Answer | None:
        return keep_alive.unloading(body, chat=operation == CHAT) if operation in _READERS else None

    def error(
        self,
        error: ServingError,
        model: ModelConfig | None = None,
        *,
        operation: str = "",
        inputs: Input | None = None,
    ) -> Answer:
        return ollama_answer(error, _PROMPTS.get(operation, "prompt"))

    def stream_error(self, error: ServingError, headers: Mapping[str, str], model: ModelConfig | None = None) -> bytes:
        return encode_jsonlines(ollama_error(error, "prompt"))


def _models(server: ServerView) -> list[ModelStatus]:
    """The models, of each the version that was registered last."""
    return list({model.config.name: model for model in reversed(server.models)}.values())[::-1]


async def _listed(server: ServerView) -> Answer:
    return _json(OllamaModels([listed(model, await server.card(model)) for model in _models(server)]))


async def _loaded(server: ServerView) -> Answer:
    await server.measure()
    models = [model for model in _models(server) if model.ready]
    return _json(LoadedModels([loaded(model, await server.card(model)) for model in models]))


async def _shown(server: ServerView, body: bytes) -> Answer:
    fields = read_body(object_of(body), OllamaShowRequest)
    model = _named(fields, _models(server))
    card = await server.card(model, whole=bool(fields.verbose))
    return await asyncio.to_thread(_json, shown(model, card))  # a vocabulary is long


def _json(page: object) -> Answer:
    return Answer(200, encode_json(page))


def _named(fields: OllamaShowRequest, models: list[ModelStatus]) -> ModelStatus:
    name = fields.model or fields.name
    if not name:
        raise ParameterError("model: required, expected a model's name", "model")
    for model in models:
        if model.config.name == bare_name(name):
            return model
    raise ModelNotFoundError(f"model '{name}' not found")
