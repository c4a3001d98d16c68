"""Models of every task that reads text, without a model: results that a text's length and words determine.

`result` is what a handler would compute for a request. The module stands for itself, so that a test can make it the
model.py of a server: `Canned` is its handler, for the task that option.task names.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any

from djl_python.config import ModelConfig
from djl_python.core.engine_info import EngineInfo
from djl_python.core.errors import PayloadError, TextLengthError
from djl_python.core.text_tasks import (
    Activation,
    Classification,
    ClassifyRequest,
    Embedding,
    EmbedRequest,
    Entity,
    ExtractRequest,
    Filling,
    Fillings,
    FillRequest,
    Granularity,
    Label,
    Score,
    ScoreRequest,
    Span,
    Spans,
    TagRequest,
    Tags,
    TextInput,
    ZeroShotRequest,
)
from djl_python.core.types import Chat
from djl_python.dialects import dialect
from djl_python.dialects.shared.base import Kind
from djl_python.dialects.shared.views import TokenSpan
from djl_python.handler import Context, Handler, Reply
from djl_python.inputs import Input

#: Tokens that the model takes.
LIMIT = 16
LABELS = ("short", "long", "question")
DIMENSIONS = 4


def tokens_of(text: TextInput) -> int:
    """Two special tokens, and one for each word.

    Raises:
        ContextLengthError: they are too many, and the text is not to be cut.
    """
    if text.ids is not None:
        count = len(text.ids)
    else:
        count = len(text.text.split()) + len((text.pair or "").split()) + 2 * text.add_special_tokens
    limit = min(LIMIT, text.max_tokens or LIMIT)
    if count > limit and not text.truncate:
        raise TextLengthError(count, LIMIT, text.field)
    return min(count, limit)


def vector(text: TextInput) -> list[float]:
    """A vector of unit length that a text's characters determine."""
    data = bytes(text.ids) if text.ids is not None else f"{text.prompt_name or ''}{text.text}".encode()
    values = [float(sum(data[place::DIMENSIONS]) + 1) for place in range(DIMENSIONS)]
    length = math.hypot(*values)
    return [value / length for value in values]


def overlap(one: str, other: str) -> float:
    """The share of one text's words that another has."""
    words = set(one.lower().split())
    return len(words & set(other.lower().split())) / len(words)


def result(request: Any) -> Any:
    """What a model finds for a request."""
    text: TextInput = request.text
    return _RESULTS[type(request)](request, tokens_of(text))


def _embedding(request: EmbedRequest, tokens: int) -> Embedding:
    values = vector(request.text)
    if request.granularity is Granularity.SPARSE:
        return Embedding(values=array("f", [0.5, 1.5]), shape=(2,), indices=(7, 9), tokens=tokens)
    if request.granularity is Granularity.TOKENS:
        return Embedding(values=array("f", values * tokens), shape=(tokens, DIMENSIONS), tokens=tokens)
    values = values[: request.dimensions or DIMENSIONS]
    if request.normalize is False:
        values = [2 * value for value in values]
    return Embedding(values=array("f", values), shape=(len(values),), tokens=tokens)


def _score(request: ScoreRequest, tokens: int) -> Score:
    assert request.text.pair is not None
    value = overlap(request.text.text, request.text.pair)
    return Score(value=value * 10 if request.activation is Activation.NONE else value, tokens=tokens)


def _classification(request: ClassifyRequest, tokens: int) -> Classification:
    scale = 10 if request.activation is Activation.NONE else 1
    values = [0.25 * scale, 0.125 * scale, 0.625 * scale]
    labels = sorted(map(Label, LABELS, values), key=lambda label: -label.score)
    return Classification(labels=tuple(labels[: request.top]), values=tuple(values), tokens=tokens)


def _zero_shot(request: ZeroShotRequest, tokens: int) -> Classification:
    scores = [overlap(label, request.text.text) for label in request.labels]
    labels = sorted(map(Label, request.labels, scores), key=lambda label: -label.score)
    return Classification(labels=tuple(labels), tokens=tokens)


def _tags(request: TagRequest, tokens: int) -> Tags:
    text = request.text.text
    entities = [
        Entity(label="NAME", score=0.75, word=word, start=(at := text.index(word)), end=at + len(word), index=place)
        for place, word in enumerate(text.split(), 1)
        if word[0].isupper() and "NAME" not in request.ignored
    ]
    return Tags(entities=tuple(entities), tokens=tokens)


def _spans(request: ExtractRequest, tokens: int) -> Spans:
    context = request.text.pair or ""
    words = context.split()[: request.top]
    spans = [
        Span(text=word, score=0.5 / place, start=(at := context.index(word)), end=at + len(word))
        for place, word in enumerate(words, 1)
    ]
    return Spans(spans=tuple(spans), tokens=tokens)


def _fillings(request: FillRequest, tokens: int) -> Fillings:
    masks = request.text.text.count("[MASK]")
    if not masks:
        raise PayloadError(f"{request.text.field}: expected a text with [MASK]", request.text.field)
    words = request.targets or ("one", "two", "three", "four", "five", "six")
    fillings = tuple(
        Filling(
            score=0.5 / (place + 1), token=place, token_text=word, sequence=request.text.text.replace("[MASK]", word)
        )
        for place, word in enumerate(words[: request.top])
    )
    return Fillings(masks=(fillings,) * masks, tokens=tokens)


_RESULTS: dict[type, Any] = {
    EmbedRequest: _embedding,
    ScoreRequest: _score,
    ClassifyRequest: _classification,
    ZeroShotRequest: _zero_shot,
    TagRequest: _tags,
    ExtractRequest: _spans,
    FillRequest: _fillings,
}


class View:
    """What queries ask of the model: a token for each word, by its length."""

    dtype = "float32"
    max_model_len = LIMIT
    max_batch_tokens = 64 * LIMIT
    capacity = 8
    engine = EngineInfo(runner="canned")
    labels: Sequence[str] = LABELS

    def __init__(self, config: ModelConfig, task: str) -> None:
        self.config = config
        self.task = task
        self.pooling = "mean"
        self.model_id = "canned/model"

    def tokenize(self, text: str, add_special_tokens: bool = True) -> list[TokenSpan]:
        """The words, between two special tokens."""
        spans, at = [], 0
        for word in text.split():
            at = text.index(word, at)
            spans.append(TokenSpan(len(word), word, at, at + len(word)))
            at += len(word)
        end = TokenSpan(0, "", 0, 0)
        return [end, *spans, end] if add_special_tokens else spans

    def entries(self, ids: Sequence[int]) -> list[str]:
        """Words of such lengths."""
        return ["x" * one for one in ids]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool, field: str = "ids") -> str:
        """Words of such lengths."""
        return " ".join("x" * one or "[END]" for one in ids if one or not skip_special_tokens)

    def render(self, chat: Chat) -> str:
        """No such model has a template."""
        raise PayloadError("no chat template")


class Canned(Handler):
    """Answers every request at once."""

    capacity = 8
    queries = 8

    async def load(self, context: Context) -> None:
        """Take the task from the settings."""
        self.task = context.config.option.task
        self._config = context.config

    async def serve(self, inputs: Input, reply: Reply) -> None:
        """Parse, compute, write; or answer a query."""
        api = dialect(inputs.dialect)
        if inputs.operation in {route.operation for route in (*api.routes, *api.shared) if route.kind is Kind.QUERY}:
            answer = api.query(inputs, View(self._config, self.task))
            reply.start(answer.status, answer.headers)
            reply.finish(answer.body)
            return
        parsed = api.parse_task(self.task, inputs, self._config)
        for request in parsed.requests:
            parsed.formatter.push(result(request))
        body = parsed.formatter.end()
        reply.start(200, parsed.formatter.headers)
        reply.finish(body)
