"""vLLM's /pooling and /classify: vectors of texts or of their tokens, and labels.

The routes are the front end's, parsing and answering run in the worker. Source: vLLM's pooling and classification
protocols.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from ...config import ModelConfig
from ...core.errors import ParameterError
from ...core.text_tasks import (
    EMBEDDING_TASKS,
    TEXT_CLASSIFICATION,
    Activation,
    Classification,
    ClassifyRequest,
    Embedding,
    EmbedRequest,
    Granularity,
)
from ...formats.json_framing import JSON
from ...inputs import Input
from ..shared.base import ParsedTask, Route, parses
from ..shared.text_tasks.formatter import TaskFormatter, encoded
from .embeddings import EncodingFormat, vectors
from .pooling_fields import InputFields, PoolingUsage, new_id, read_fields, usage_of

POOLING, CLASSIFY = "pooling", "classify"


class ClassifyBody(InputFields, frozen=True, kw_only=True):
    """Texts to classify."""

    use_activation: Annotated[bool, Meta(description="false: logits instead of probabilities.")] | None = None

    @property
    def activation(self) -> Activation:
        """The function that turns logits into scores."""
        return Activation.NONE if self.use_activation is False else Activation.MODEL


class PoolingBody(ClassifyBody, frozen=True, kw_only=True):
    """Texts, and the wanted result."""

    task: (
        Annotated[
            Literal["embed", "token_embed", "classify"],
            Meta(
                description="A vector for each text or for each token, or the labels' scores; as the model's if absent."
            ),
        ]
        | None
    ) = None
    encoding_format: Annotated[EncodingFormat, Meta(description="base64: little-endian float32 values.")] = "float"
    dimensions: Annotated[int, Meta(ge=1, description="Keep so many values, of models that allow it.")] | None = None


class PoolingObject(msgspec.Struct, frozen=True, kw_only=True):
    """The result for a text."""

    index: int
    object: Literal["pooling"] = "pooling"
    data: list[list[float] | float] | str


class PoolingList(msgspec.Struct, frozen=True, kw_only=True):
    """The results, in the order of the texts."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[PoolingObject]
    usage: PoolingUsage


class ClassificationObject(msgspec.Struct, frozen=True, kw_only=True):
    """The best label of a text, and the probabilities of all labels in the model's order."""

    index: int
    label: str | None
    probs: list[float]
    num_classes: int


class ClassificationList(msgspec.Struct, frozen=True, kw_only=True):
    """The labels, in the order of the texts."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[ClassificationObject]
    usage: PoolingUsage


ROUTES: Final = (
    Route(
        *("POST", "/pooling", POOLING),
        summary="Vectors of texts or of their tokens, or the scores of labels.",
        request=PoolingBody,
        example={"input": "What is deep learning?"},
        responses={200: {JSON: PoolingList}},
    ),
    Route(
        *("POST", "/classify", CLASSIFY),
        summary="The label of each text.",
        request=ClassifyBody,
        example={"input": "What is deep learning?"},
        responses={200: {JSON: ClassificationList}},
    ),
)


def parse_pooling_of_embeddings(inputs: Input, model: ModelConfig) -> ParsedTask[EmbedRequest, Embedding]:
    """Read a request to a model of embeddings.

    Raises:
        PayloadError, ParameterError: with the field's path and what was expected.
    """
    fields, ignored = read_fields(inputs, model, PoolingBody, "input")
    _check_task(fields, model, "embed", "token_embed")
    granularity = Granularity.TOKENS if fields.task == "token_embed" else Granularity.TEXT
    requests = tuple(
        EmbedRequest(
            text=text,
            granularity=granularity,
            dimensions=fields.dimensions,
            normalize=fields.use_activation,
        )
        for text in fields.texts
    )
    write = vectors(fields.encoding_format)

    def item(index: int, result: Embedding) -> msgspec.Raw:
        return encoded(PoolingObject(index=index, data=write(result)))

    return ParsedTask(requests, TaskFormatter(item, _pooled(model), ignored), fields.priority)


def parse_pooling_of_classes(inputs: Input, model: ModelConfig) -> ParsedTask[ClassifyRequest, Classification]:
    """Read a request to a classifier.

    Raises:
        PayloadError, ParameterError: with the field's path and what was expected.
    """
    fields, ignored = read_fields(inputs, model, PoolingBody, "input")
    _check_task(fields, model, "classify")
    requests = tuple(ClassifyRequest(text=text, activation=fields.activation) for text in fields.texts)
    write = vectors(fields.encoding_format)

    def item(index: int, result: Classification) -> msgspec.Raw:
        scores = Embedding(values=array("f", result.values), shape=(len(result.values),), tokens=result.tokens)
        return encoded(PoolingObject(index=index, data=write(scores)))

    return ParsedTask(requests, TaskFormatter(item, _pooled(model), ignored), fields.priority)


def parse_classify(inputs: Input, model: ModelConfig) -> ParsedTask[ClassifyRequest, Classification]:
    """Read a request for labels.

    Raises:
        PayloadError, ParameterError: with the field's path and what was expected.
    """
    fields, ignored = read_fields(inputs, model, ClassifyBody, "input")
    requests = tuple(ClassifyRequest(text=text, activation=fields.activation) for text in fields.texts)

    def item(index: int, result: Classification) -> ClassificationObject:
        return ClassificationObject(
            index=index,
            label=result.labels[0].name if result.labels else None,
            probs=list(result.values),
            num_classes=len(result.values),
        )

    def whole(items: list[Any], tokens: int) -> ClassificationList:
        return ClassificationList(
            id=new_id("classify"), created=int(time.time()), model=model.name, data=items, usage=usage_of(tokens)
        )

    return ParsedTask(requests, TaskFormatter(item, whole, ignored), fields.priority)


PARSERS: Final[Mapping[tuple[str, str], Any]] = {
    **parses(POOLING, parse_pooling_of_embeddings, *EMBEDDING_TASKS),
    **parses(POOLING, parse_pooling_of_classes, TEXT_CLASSIFICATION),
    **parses(CLASSIFY, parse_classify, TEXT_CLASSIFICATION),
}


def _check_task(fields: PoolingBody, model: ModelConfig, *served: str) -> None:
    if fields.task is not None and fields.task not in served:
        raise ParameterError(f"task: expected {' or '.join(served)} of model {model.name!r}, got {fields.task}", "task")


def _pooled(model: ModelConfig) -> Callable[[list[Any], int], PoolingList]:
    def whole(items: list[Any], tokens: int) -> PoolingList:
        return PoolingList(
            id=new_id("pool"), created=int(time.time()), model=model.name, data=items, usage=usage_of(tokens)
        )

    return whole
