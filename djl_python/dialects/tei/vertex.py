"""Google Vertex AI's form of Text Embeddings Inference's requests: instances in, predictions out.

Runs in the worker. Each instance is a body of another path, and has the answer of that path as its prediction.

Source: TEI's router. Where a body has a query and texts it is one of /rerank; the model tells what the others are.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from ...config import ModelConfig
from ...core.budgets import TEXTS
from ...core.errors import ParameterError, PayloadError, ServingError, TooLargeError
from ...core.text_tasks import EMBEDDING_TASKS, TEXT_CLASSIFICATION, TEXT_RANKING
from ...formats.json_framing import JSON, encode_json
from ...inputs import Input
from ..shared.base import AnswerFormatter, ParsedTask, TaskParser
from ..shared.request_body import IGNORED_HEADER, json_object
from ..shared.text_tasks.pipelines import parse_rank
from ..shared.typed_body import read_body
from .requests import checked, embed_of, predict_of

VERTEX: Final = "vertex"


class VertexRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Bodies of /embed, /predict or /rerank, as the model takes them."""

    instances: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=TEXTS.most)]


class VertexAnswer(msgspec.Struct, frozen=True):
    """The answer to each, in their order."""

    predictions: list[Any]


class VertexFormatter(AnswerFormatter[Any]):
    """Has each instance's own formatter write its answer.

    Args:
        parsed: the instances, in their order.
    """

    stream = False

    def __init__(self, parsed: Sequence[ParsedTask[Any, Any]]) -> None:
        named = [one.formatter.headers[IGNORED_HEADER] for one in parsed if IGNORED_HEADER in one.formatter.headers]
        self.headers = {"content-type": JSON}
        if named:
            self.headers[IGNORED_HEADER] = ",".join(dict.fromkeys(named))
        self._formatters = [one.formatter for one in parsed]
        self._of_parts = iter([one.formatter for one in parsed for _ in one.requests])

    def push(self, part: Any, /) -> bytes:
        """Take the next result, which is of the first instance that lacks one."""
        return next(self._of_parts).push(part)

    def end(self) -> bytes:
        return encode_json(VertexAnswer([msgspec.Raw(one.end()) for one in self._formatters]))

    def error(self, error: ServingError) -> bytes:
        raise NotImplementedError("an answer that is not streamed fails before it begins")


def parse_vertex(task: str, inputs: Input, model: ModelConfig) -> ParsedTask[Any, Any]:
    """Read the instances of a request to a model for this task.

    Raises:
        TooLargeError: they have too many texts.
        PayloadError, ParameterError: with the field's path in its instance, and what was expected.
    """
    body = json_object(inputs, model)
    fields = read_body(body, VertexRequest, payload=("instances",))
    parsed = [_instance(task, at, one, model) for at, one in enumerate(fields.instances)]
    count = sum(len(one.requests) for one in parsed)
    if TEXTS.excess(count):
        raise TooLargeError(f"batch size {count} > maximum allowed batch size {TEXTS.most}")
    requests = tuple(request for one in parsed for request in one.requests)
    return ParsedTask(requests, VertexFormatter(parsed))


def _instance(task: str, at: int, body: dict[str, Any], model: ModelConfig) -> ParsedTask[Any, Any]:
    place = f"instances[{at}]"
    try:
        parsed = _read(task, checked(body), model)
    except (PayloadError, ParameterError) as exc:
        if exc.field is None:
            raise
        raise type(exc)(f"{place}.{exc.message}", f"{place}.{exc.field}") from exc
    return ParsedTask(tuple(_placed(place, one) for one in parsed.requests), parsed.formatter)


def _read(task: str, body: dict[str, Any], model: ModelConfig) -> ParsedTask[Any, Any]:
    if task == TEXT_RANKING or {"query", "texts"} <= body.keys():
        return parse_rank(body, model, truncates=False)
    return predict_of(body, model) if task == TEXT_CLASSIFICATION else embed_of(body, model)


def _placed(place: str, request: Any) -> Any:
    """The request, whose errors name its instance."""
    replace = msgspec.structs.replace
    return replace(request, text=replace(request.text, field=f"{place}.{request.text.field}"))


#: Embedders come last: /openapi.json shows the last one's example.
PARSERS: Final[Mapping[tuple[str, str], TaskParser]] = {
    (task, VERTEX): functools.partial(parse_vertex, task)
    for task in (TEXT_CLASSIFICATION, TEXT_RANKING, *EMBEDDING_TASKS)
}
