"""/v1/embeddings: OpenAI's embeddings, with vLLM's further fields.

The route is the front end's, parsing and answering run in the worker. Sources: OpenAI's API reference; vLLM's embedding
protocol.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from ...config import ModelConfig
from ...core.text_tasks import EMBEDDING_TASKS, Embedding, EmbedRequest
from ...formats.json_framing import JSON
from ...inputs import Input
from ..shared.base import ParsedTask, Route, parses
from ..shared.text_tasks.formatter import TaskFormatter, encoded, rows_of
from .pooling_fields import InputFields, PoolingUsage, read_fields, usage_of

EMBEDDINGS: Final = "embeddings"

EncodingFormat = Literal["float", "base64"]
#: Values, or the little-endian float32 values in base64.
Vector = list[float] | str


class EmbeddingsRequest(InputFields, frozen=True, kw_only=True):
    """Texts to embed."""

    encoding_format: Annotated[EncodingFormat, Meta(description="base64: little-endian float32 values.")] = "float"
    dimensions: Annotated[int, Meta(ge=1, description="Keep so many values, of models that allow it.")] | None = None
    normalize: Annotated[bool, Meta(description="Scale to length 1; as the model says if absent.")] | None = None


class EmbeddingObject(msgspec.Struct, frozen=True, kw_only=True):
    """The embedding of a text."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: Vector


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """The embeddings, in the order of the texts."""

    object: Literal["list"] = "list"
    data: list[EmbeddingObject]
    model: str
    usage: PoolingUsage


ROUTE: Final = Route(
    "POST",
    "/v1/embeddings",
    EMBEDDINGS,
    summary="A vector for each text.",
    request=EmbeddingsRequest,
    example={"input": "What is deep learning?"},
    responses={200: {JSON: EmbeddingList}},
)


def vectors(encoding: EncodingFormat) -> Callable[[Embedding], Any]:
    """The function that writes an embedding: one vector, or a row of them for the tokens."""
    return _base64 if encoding == "base64" else rows_of


def parse_embeddings(inputs: Input, model: ModelConfig) -> ParsedTask[EmbedRequest, Embedding]:
    """Read a request.

    Raises:
        PayloadError, ParameterError: with the field's path and what was expected.
    """
    fields, ignored = read_fields(inputs, model, EmbeddingsRequest, "input")
    requests = tuple(
        EmbedRequest(text=text, dimensions=fields.dimensions, normalize=fields.normalize) for text in fields.texts
    )
    write = vectors(fields.encoding_format)

    def item(index: int, result: Embedding) -> msgspec.Raw:
        return encoded(EmbeddingObject(index=index, embedding=write(result)))

    def whole(items: list[Any], tokens: int) -> EmbeddingList:
        return EmbeddingList(data=items, model=model.name, usage=usage_of(tokens))

    return ParsedTask(requests, TaskFormatter(item, whole, ignored), fields.priority)


PARSERS: Final = parses(EMBEDDINGS, parse_embeddings, *EMBEDDING_TASKS)


def _base64(embedding: Embedding) -> str:
    return base64.b64encode(embedding.values.tobytes()).decode()
