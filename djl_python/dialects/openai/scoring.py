"""vLLM's /score and /rerank: the similarity of texts, and the ranking of documents for a query.

The routes are the front end's, parsing and answering run in the worker. Sources: vLLM's score and rerank protocol;
Cohere's rerank (v1 and v2) and Jina's, which have the same body. At /rerank, TEI's dialect answers a body with `texts`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ...config import ModelConfig
from ...core import budgets
from ...core.errors import PayloadError
from ...core.text_tasks import EMBEDDING_TASKS, TEXT_RANKING, Activation, Score, ScoreRequest, TextInput
from ...formats.json_framing import JSON
from ...inputs import Input
from ..shared.base import ParsedTask, Route, parses
from ..shared.text_tasks.formatter import TaskFormatter, ranked
from ..shared.text_tasks.texts import Text, TextList, paired
from .pooling_fields import PoolingFields, PoolingUsage, new_id, read_fields, usage_of

SCORE: Final = "score"
#: The path that TEI has too; Jina's and Cohere's first version; Cohere's second version.
RERANK, RERANK_V1, RERANK_V2 = "rerank", "rerank_v1", "rerank_v2"
_TEXTS: Final = ["Networks of many layers find patterns in data.", "Cheese is made of milk."]


class ScoringFields(PoolingFields, frozen=True, kw_only=True):
    """Common fields of requests for scores."""

    use_activation: (
        Annotated[bool, Meta(description="false: the model's logits, not what its activation makes of them.")] | None
    ) = None

    @property
    def activation(self) -> Activation:
        """The function that turns logits into scores."""
        return Activation.NONE if self.use_activation is False else Activation.MODEL


class ScoreBody(ScoringFields, frozen=True, kw_only=True):
    """Pairs of texts: one with one or with each of several, or as many with as many."""

    text_1: Annotated[Text | TextList, Meta(description="One text, or as many as in text_2.")]
    text_2: Text | TextList


class RerankDocument(msgspec.Struct, frozen=True):
    """A document as an object."""

    text: Text


class RerankBody(ScoringFields, frozen=True, kw_only=True):
    """A query and documents."""

    query: Text
    documents: Annotated[list[Text | RerankDocument], Meta(min_length=1, max_length=budgets.TEXTS.most)]
    top_n: Annotated[int, Meta(ge=0, description="Only so many results; 0: all.")] | None = None
    return_documents: (
        Annotated[bool, Meta(description="Whether results have their document; not at /v2/rerank if absent.")] | None
    ) = None


class ScoreObject(msgspec.Struct, frozen=True, kw_only=True):
    """The score of a pair."""

    index: int
    object: Literal["score"] = "score"
    score: float


class ScoreList(msgspec.Struct, frozen=True, kw_only=True):
    """The scores, in the order of the pairs."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[ScoreObject]
    usage: PoolingUsage


class RerankResult(msgspec.Struct, frozen=True, kw_only=True):
    """A document's place: its number among the documents, and its score."""

    index: int
    document: RerankDocument | UnsetType = UNSET
    relevance_score: float


class RerankAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The documents, the best first."""

    id: str
    model: str
    usage: PoolingUsage
    results: list[RerankResult]


def _score(path: str) -> Route:
    return Route(
        *("POST", path, SCORE),
        summary="How similar two texts are, for one pair or several.",
        request=ScoreBody,
        example={"text_1": "What is deep learning?", "text_2": _TEXTS},
        responses={200: {JSON: ScoreList}},
    )


def _rerank(path: str, operation: str) -> Route:
    return Route(
        *("POST", path, operation),
        summary="Documents by how well they answer a query.",
        request=RerankBody,
        example={"query": "What is deep learning?", "documents": _TEXTS},
        responses={200: {JSON: RerankAnswer}},
    )


ROUTES: Final = (
    _score("/v1/score"),
    _score("/score"),
    _rerank("/v1/rerank", RERANK_V1),
    _rerank("/v2/rerank", RERANK_V2),
    _rerank("/rerank", RERANK),
)


def parse_score(inputs: Input, model: ModelConfig) -> ParsedTask[ScoreRequest, Score]:
    """Read a request for scores.

    Raises:
        PayloadError, ParameterError: with the field's path and what was expected.
    """
    fields, ignored = read_fields(inputs, model, ScoreBody, "text_1", "text_2")
    first = [fields.text_1] if isinstance(fields.text_1, str) else fields.text_1
    second = [fields.text_2] if isinstance(fields.text_2, str) else fields.text_2
    if len(first) not in (1, len(second)):
        expected = f"as many texts as text_1 has, {len(first)}, or one text in text_1"
        raise PayloadError(f"text_2: expected {expected}, got {len(second)}", "text_2")
    like = fields.text
    texts = [
        paired(first[index if len(first) > 1 else 0], text, _at("text_2", index, fields.text_2), like)
        for index, text in enumerate(second)
    ]

    def item(index: int, result: Score) -> ScoreObject:
        return ScoreObject(index=index, score=result.value)

    def whole(items: list[Any], tokens: int) -> ScoreList:
        return ScoreList(
            id=new_id("score"), created=int(time.time()), model=model.name, data=items, usage=usage_of(tokens)
        )

    return ParsedTask(_requests(texts, fields), TaskFormatter(item, whole, ignored), fields.priority)


def parse_rerank(inputs: Input, model: ModelConfig) -> ParsedTask[ScoreRequest, Score]:
    """Read a request to rank documents. As Cohere documents it, /v2/rerank takes documents of any length.

    Raises:
        PayloadError, ParameterError: with the field's path and what was expected.
    """
    fields, ignored = read_fields(inputs, model, RerankBody, "query", "documents")
    second_version = inputs.operation == RERANK_V2
    like = fields.text
    if second_version and not like.truncate:
        like = msgspec.structs.replace(like, truncate="right")
    documents = [document if isinstance(document, str) else document.text for document in fields.documents]
    texts = [paired(fields.query, document, f"documents[{index}]", like) for index, document in enumerate(documents)]
    shows = not second_version if fields.return_documents is None else fields.return_documents
    whole = _ranking(model.name, documents if shows else None, fields.top_n or len(documents))
    return ParsedTask(
        _requests(texts, fields), TaskFormatter(lambda _, result: result.value, whole, ignored), fields.priority
    )


PARSERS: Final[Mapping[tuple[str, str], Any]] = {
    **parses(SCORE, parse_score, TEXT_RANKING, *EMBEDDING_TASKS),
    **parses(RERANK, parse_rerank, TEXT_RANKING, *EMBEDDING_TASKS),
    **parses(RERANK_V2, parse_rerank, TEXT_RANKING, *EMBEDDING_TASKS),
    **parses(RERANK_V1, parse_rerank, TEXT_RANKING, *EMBEDDING_TASKS),
}


def _requests(texts: list[TextInput], fields: ScoringFields) -> tuple[ScoreRequest, ...]:
    return tuple(ScoreRequest(text=text, activation=fields.activation) for text in texts)


def _at(field: str, index: int, given: str | list[str]) -> str:
    return field if isinstance(given, str) else f"{field}[{index}]"


def _ranking(model: str, documents: list[str] | None, most: int) -> Callable[[list[Any], int], RerankAnswer]:
    """The function that writes the answer, from the scores in the order of the documents."""

    def whole(scores: list[Any], tokens: int) -> RerankAnswer:
        results = [
            RerankResult(
                index=index,
                relevance_score=score,
                document=UNSET if documents is None else RerankDocument(documents[index]),
            )
            for index, score in ranked(scores)[:most]
        ]
        return RerankAnswer(id=new_id("rerank"), model=model, usage=usage_of(tokens), results=results)

    return whole
