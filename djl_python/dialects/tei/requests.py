"""Text Embeddings Inference's requests, read; and the formatters of their answers. Runs in the worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from ...config import ModelConfig
from ...core.budgets import TEXTS
from ...core.errors import PayloadError, TooLargeError
from ...core.text_tasks import (
    EMBEDDING_TASKS,
    TEXT_CLASSIFICATION,
    TEXT_RANKING,
    Activation,
    Classification,
    ClassifyRequest,
    Embedding,
    EmbedRequest,
    Granularity,
    Score,
    ScoreRequest,
    TextInput,
)
from ...inputs import Input
from ..shared.base import ParsedTask, TaskParser, parses
from ..shared.request_body import ignored_header, json_object
from ..shared.text_tasks.formatter import TaskFormatter, encoded, rows_of
from ..shared.text_tasks.pipelines import PIPELINES, PipelineParser, parse_rank, parse_similarity
from ..shared.text_tasks.texts import text_inputs
from ..shared.typed_body import read_body, unknown_fields
from .types import Prediction, SparseValue, TeiEmbedRequest, TeiPredictRequest, TeiTextsRequest

EMBED, EMBED_ALL, EMBED_SPARSE = "embed", "embed_all", "embed_sparse"
PREDICT, SIMILARITY = "predict", "similarity"
#: Operations at paths of other dialects, by the names that these have for them: /rerank and /.
RERANK, ROOT = "rerank", "compat_generate"
#: Where a body has its texts.
_TEXT_FIELDS: Final = ("inputs", "texts")
BodyT = TypeVar("BodyT")


def read(inputs: Input, model: ModelConfig, into: type[BodyT]) -> tuple[BodyT, Mapping[str, str]]:
    """A body, and the header that names what has no effect.

    Raises:
        TooLargeError: it has too many texts.
        PayloadError, ParameterError: with the field's path and what was expected.
    """
    return _fields(json_body(inputs, model), model, into)


def _fields(body: dict[str, Any], model: ModelConfig, into: type[BodyT]) -> tuple[BodyT, Mapping[str, str]]:
    fields = read_body(body, into, payload=_TEXT_FIELDS)
    return fields, ignored_header(unknown_fields(body, into, model))


def json_body(inputs: Input, model: ModelConfig) -> dict[str, Any]:
    """The body as an object, which has no more texts than one may have.

    Raises:
        TooLargeError: it has, as TEI says it.
        PayloadError: it is no object.
    """
    return checked(json_object(inputs, model))


def checked(body: dict[str, Any]) -> dict[str, Any]:
    """A body that has no more texts than one may have.

    Raises:
        TooLargeError: it has, as TEI says it.
    """
    for name in _TEXT_FIELDS:
        given = body.get(name)
        if isinstance(given, list) and TEXTS.excess(len(given)):
            if all(isinstance(one, int) for one in given):
                continue  # the token ids of one text
            raise TooLargeError(f"batch size {len(given)} > maximum allowed batch size {TEXTS.most}")
    return body


def parse_embed(inputs: Input, model: ModelConfig) -> ParsedTask[EmbedRequest, Embedding]:
    """Read texts for a vector each."""
    return embed_of(json_body(inputs, model), model)


def embed_of(body: dict[str, Any], model: ModelConfig) -> ParsedTask[EmbedRequest, Embedding]:
    """Read the texts of a body for a vector each."""
    fields, ignored = _fields(body, model, TeiEmbedRequest)
    texts, _ = text_inputs(fields.inputs, "inputs", fields.text)
    requests = tuple(
        EmbedRequest(text=text, normalize=fields.normalize, dimensions=fields.dimensions) for text in texts
    )
    return ParsedTask(requests, _list(rows_of, ignored))


def parse_embed_all(inputs: Input, model: ModelConfig) -> ParsedTask[EmbedRequest, Embedding]:
    """Read texts for a vector of each token."""
    requests, ignored = _embedded(inputs, model, Granularity.TOKENS)
    return ParsedTask(requests, _list(rows_of, ignored))


def parse_embed_sparse(inputs: Input, model: ModelConfig) -> ParsedTask[EmbedRequest, Embedding]:
    """Read texts for the weights of the vocabulary's tokens."""
    requests, ignored = _embedded(inputs, model, Granularity.SPARSE)
    return ParsedTask(requests, _list(_weights, ignored))


def parse_predict(inputs: Input, model: ModelConfig) -> ParsedTask[ClassifyRequest, Classification]:
    """Read a text, a pair of texts, or a list of lists of one text or two."""
    return predict_of(json_body(inputs, model), model)


def predict_of(body: dict[str, Any], model: ModelConfig) -> ParsedTask[ClassifyRequest, Classification]:
    """Read the text or the texts of a body."""
    fields, ignored = _fields(body, model, TeiPredictRequest)
    given = fields.inputs
    several = isinstance(given, list) and isinstance(given[0], list)
    sequences = given if isinstance(given, list) and several else [[given] if isinstance(given, str) else given]
    activation = Activation.NONE if fields.raw_scores else Activation.MODEL
    requests = tuple(
        ClassifyRequest(
            text=_sequence(one, f"inputs[{index}]" if several else "inputs", fields.like()), activation=activation
        )
        for index, one in enumerate(sequences)
    )

    def item(_: int, result: Classification) -> list[Prediction]:
        return [Prediction(label.score, label.name) for label in result.labels]

    def whole(items: list[Any], _: int) -> Any:
        return items if several else items[0]

    return ParsedTask(requests, TaskFormatter(item, whole, ignored))


def parse_ranking(inputs: Input, model: ModelConfig) -> ParsedTask[ScoreRequest, Score]:
    """Read a query and texts."""
    return parse_rank(json_body(inputs, model), model, truncates=False)


def parse_comparison(inputs: Input, model: ModelConfig) -> ParsedTask[ScoreRequest, Score]:
    """Read a text and those that it is compared with."""
    return parse_similarity(json_body(inputs, model), model, truncates=False)


def _at_root(parse: PipelineParser) -> TaskParser:
    """Reads a body for /, which Hugging Face's clients send there."""

    def parser(inputs: Input, model: ModelConfig) -> ParsedTask[Any, Any]:
        return parse(json_body(inputs, model), model, True)

    return parser


PARSERS: Final[Mapping[tuple[str, str], TaskParser]] = {
    **parses(EMBED, parse_embed, *EMBEDDING_TASKS),
    **parses(EMBED_ALL, parse_embed_all, *EMBEDDING_TASKS),
    **parses(EMBED_SPARSE, parse_embed_sparse, *EMBEDDING_TASKS),
    **parses(SIMILARITY, parse_comparison, *EMBEDDING_TASKS),
    **parses(PREDICT, parse_predict, TEXT_CLASSIFICATION),
    **parses(RERANK, parse_ranking, TEXT_RANKING, *EMBEDDING_TASKS),
    **{(task, ROOT): _at_root(parse) for task, parse in PIPELINES.items()},
}


def _embedded(
    inputs: Input, model: ModelConfig, granularity: Granularity
) -> tuple[tuple[EmbedRequest, ...], Mapping[str, str]]:
    fields, ignored = read(inputs, model, TeiTextsRequest)
    texts, _ = text_inputs(fields.inputs, "inputs", fields.text)
    return tuple(EmbedRequest(text=text, granularity=granularity) for text in texts), ignored


def _list(write: Callable[[Embedding], Any], ignored: Mapping[str, str]) -> TaskFormatter[Embedding]:
    """A list of what is written of each text."""
    return TaskFormatter(lambda _, result: encoded(write(result)), lambda items, _: items, ignored)


def _weights(embedding: Embedding) -> list[SparseValue]:
    return [SparseValue(index, value) for index, value in zip(embedding.indices, embedding.values, strict=True)]


def _sequence(given: Any, field: str, like: TextInput) -> TextInput:
    """One text, or two that are read together."""
    if not (isinstance(given, list) and len(given) <= 2 and all(isinstance(one, str) for one in given)):
        raise PayloadError(f"{field}: expected an array of one text or two, as the others are", field)
    return msgspec.structs.replace(like, text=given[0], pair=given[1] if len(given) > 1 else None, field=field)
