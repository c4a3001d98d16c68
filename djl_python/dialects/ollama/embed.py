"""Ollama's embeddings: /api/embed, and the older /api/embeddings. Parsing and answering run in the worker."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from ...config import ModelConfig
from ...core import budgets
from ...core.text_tasks import EMBEDDING_TASKS, Embedding, EmbedRequest, TextInput
from ...formats.json_framing import JSON
from ...inputs import Input
from ..shared.base import ParsedTask, Route, parses
from ..shared.request_body import ignored_header, json_object
from ..shared.text_tasks.formatter import TaskFormatter, encoded, rows_of
from ..shared.text_tasks.texts import Text, text_inputs
from ..shared.typed_body import read_body, unknown_fields
from .keep_alive import KeepAlive

EMBED: Final = "embed"
EMBEDDINGS: Final = "ollama_embeddings"
_TEXT: Final = "What is deep learning?"


class EmbedFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that both share."""

    model: str
    options: Annotated[Any, Meta(description="Without effect.")] = None
    keep_alive: KeepAlive | None = None


class OllamaEmbedRequest(EmbedFields, frozen=True, kw_only=True):
    """Texts to embed."""

    input: Text | Annotated[list[Text], Meta(min_length=1, max_length=budgets.TEXTS.most)]
    truncate: Annotated[bool, Meta(description="Drop the end of a text that is too long; true if absent.")] | None = (
        None
    )
    dimensions: Annotated[int, Meta(ge=1, description="Keep so many values, of models that allow it.")] | None = None


class OllamaEmbeddingsRequest(EmbedFields, frozen=True, kw_only=True):
    """A text to embed."""

    prompt: Text


class OllamaEmbeddings(msgspec.Struct, frozen=True, kw_only=True):
    """The embeddings, in the order of the texts. Durations are in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaEmbedding(msgspec.Struct, frozen=True):
    """The embedding of a text."""

    embedding: list[float]


ROUTES: Final = (
    Route(
        "POST",
        "/api/embed",
        EMBED,
        summary="A vector for each text.",
        request=OllamaEmbedRequest,
        example={"model": "demo", "input": _TEXT},
        responses={200: {JSON: OllamaEmbeddings}},
    ),
    Route(
        "POST",
        "/api/embeddings",
        EMBEDDINGS,
        summary="A vector for a text, as before /api/embed.",
        request=OllamaEmbeddingsRequest,
        example={"model": "demo", "prompt": _TEXT},
        responses={200: {JSON: OllamaEmbedding}},
    ),
)


def parse_embed(inputs: Input, model: ModelConfig) -> ParsedTask[EmbedRequest, Embedding]:
    """Read a request for /api/embed.

    Raises:
        PayloadError, ParameterError: with the field's path and what was expected.
    """
    begun_s = time.monotonic()
    body = json_object(inputs, model)
    fields = read_body(body, OllamaEmbedRequest, ("input",))
    like = TextInput(truncate="" if fields.truncate is False else "right")
    texts, _ = text_inputs(fields.input, "input", like)

    def whole(items: list[Any], tokens: int) -> dict[str, Any]:
        return {
            "model": fields.model,
            "embeddings": items,
            "total_duration": int((time.monotonic() - begun_s) * 1e9),
            "load_duration": 0,
            "prompt_eval_count": tokens,
        }

    requests = tuple(EmbedRequest(text=text, dimensions=fields.dimensions) for text in texts)
    return ParsedTask(requests, TaskFormatter(_item, whole, _headers(body, OllamaEmbedRequest, model)))


def parse_embeddings(inputs: Input, model: ModelConfig) -> ParsedTask[EmbedRequest, Embedding]:
    """Read a request for /api/embeddings.

    Raises:
        PayloadError, ParameterError: with the field's path and what was expected.
    """
    body = json_object(inputs, model)
    fields = read_body(body, OllamaEmbeddingsRequest, ("prompt",))
    texts, _ = text_inputs(fields.prompt, "prompt", TextInput(truncate="right"))

    def whole(items: list[Any], tokens: int) -> dict[str, Any]:
        return {"embedding": items[0]}

    requests = tuple(EmbedRequest(text=text) for text in texts)
    return ParsedTask(requests, TaskFormatter(_item, whole, _headers(body, OllamaEmbeddingsRequest, model)))


PARSERS: Final = parses(EMBED, parse_embed, *EMBEDDING_TASKS) | parses(EMBEDDINGS, parse_embeddings, *EMBEDDING_TASKS)


def _item(index: int, result: Embedding) -> msgspec.Raw:
    return encoded(rows_of(result))


def _headers(body: dict[str, Any], into: type, model: ModelConfig) -> dict[str, str]:
    return ignored_header(unknown_fields(body, into, model))
