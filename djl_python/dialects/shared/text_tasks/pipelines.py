"""Requests and answers of transformers' pipelines: a function for each task that reads a body.

Runs in the worker. There are two forms of some answers: the pipelines' own, which LMI's handlers give, and those of
Hugging Face's Inference API (`hub`), which huggingface_hub's clients read. They differ for a single text: the hub's
answer is a list of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET

from ....config import ModelConfig
from ....core import budgets
from ....core.errors import ParameterError, PayloadError
from ....core.text_tasks import (
    EMBEDDING_TASKS,
    FILL_MASK,
    QUESTION_ANSWERING,
    TEXT_CLASSIFICATION,
    TEXT_RANKING,
    TOKEN_CLASSIFICATION,
    ZERO_SHOT_CLASSIFICATION,
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
    Score,
    ScoreRequest,
    Span,
    Spans,
    TagRequest,
    Tags,
    TextInput,
    ZeroShotRequest,
)
from ..base import ParsedTask
from ..request_body import ignored_header
from ..typed_body import read_body, unknown_fields
from . import pipeline_types as types
from .formatter import TaskFormatter, encoded, ranked, rows_of
from .texts import paired, text_inputs

BodyT = TypeVar("BodyT")
#: Reads a body; the last argument says whether the answer has the hub's form.
PipelineParser = Callable[[dict[str, Any], ModelConfig, bool], ParsedTask[Any, Any]]

_DEFAULT_HYPOTHESIS: Final = ZeroShotRequest(text=TextInput(), labels=()).hypothesis
#: function_to_apply -> the function that turns logits into scores.
ACTIVATIONS: Final = {
    None: Activation.MODEL,
    "sigmoid": Activation.SIGMOID,
    "softmax": Activation.SOFTMAX,
    "none": Activation.NONE,
}


def _read(body: dict[str, Any], into: type[BodyT], model: ModelConfig) -> tuple[BodyT, Mapping[str, str]]:
    """The body, and the header that names parameters without effect."""
    fields = read_body(body, into, payload=("inputs", "query", "texts"))
    return fields, ignored_header(unknown_fields(body, into, model))


def _all(items: list[Any], _: int) -> Any:
    return items


def _first(items: list[Any], _: int) -> Any:
    return items[0]


def _wrap(*, several: bool) -> Callable[[list[Any], int], Any]:
    return _all if several else _first


def _texts(given: str | list[str], like: TextInput) -> tuple[tuple[TextInput, ...], bool]:
    return text_inputs(given, "inputs", like)


# ------------------------------------------------------------------------------------------------ embeddings, scores


def parse_embedding(body: dict[str, Any], model: ModelConfig, hub: bool) -> ParsedTask[Any, Any]:
    """Read texts to embed; or a text to compare with others, or pairs of texts."""
    inputs = body.get("inputs")
    if inputs is None and "query" in body:
        return parse_ranking(body, model, hub)
    if isinstance(inputs, dict) or (isinstance(inputs, list) and inputs and isinstance(inputs[0], dict)):
        return parse_ranking(body, model, hub)
    fields, ignored = _read(body, types.EmbedBody, model)
    own = fields.parameters or types.EmbedParameters()
    given = {name: value for name in own.__struct_fields__ if (value := getattr(own, name)) is not None}
    chosen = msgspec.structs.replace(fields, **given)
    texts, several = text_inputs(fields.inputs, "inputs", _embedded_text(chosen))
    requests = tuple(
        EmbedRequest(text=text, dimensions=chosen.dimensions, normalize=chosen.normalize) for text in texts
    )

    def item(_: int, result: Embedding) -> msgspec.Raw:
        return encoded(rows_of(result))

    return ParsedTask(requests, TaskFormatter(item, _wrap(several=several or hub), ignored))


def parse_ranking(body: dict[str, Any], model: ModelConfig, hub: bool) -> ParsedTask[ScoreRequest, Score]:
    """Read a query and texts, a text to compare with others, or pairs of texts."""
    inputs = body.get("inputs")
    if inputs is None and ("query" in body or "texts" in body):
        return parse_rank(body, model, truncates=True)
    if isinstance(inputs, dict) and ("source_sentence" in inputs or "sentences" in inputs):
        return parse_similarity(body, model, truncates=True)
    fields, ignored = _read(body, types.PairsBody, model)
    parameters = fields.parameters or types.RankParameters()
    several = isinstance(fields.inputs, list)
    pairs = fields.inputs if isinstance(fields.inputs, list) else [fields.inputs]
    like = parameters.like(truncates=True)
    requests = tuple(
        ScoreRequest(
            text=paired(pair.text, pair.text_pair, _at(index, several=several), like),
            activation=Activation.NONE if parameters.raw_scores else Activation.MODEL,
        )
        for index, pair in enumerate(pairs)
    )
    formatter = TaskFormatter[Score](lambda _, result: types.PairScore(result.value), _wrap(several=several), ignored)
    return ParsedTask(requests, formatter)


def parse_rank(body: dict[str, Any], model: ModelConfig, *, truncates: bool) -> ParsedTask[ScoreRequest, Score]:
    """Read a query and texts; the answer has the texts' places, the best first.

    Args:
        truncates: whether texts that are too long are cut where the body does not say.
    """
    fields, ignored = _read(body, types.RankBody, model)
    like = fields.like(truncates=truncates)
    requests = tuple(
        ScoreRequest(
            text=paired(fields.query, text, f"texts[{index}]", like),
            activation=Activation.NONE if fields.raw_scores else Activation.MODEL,
        )
        for index, text in enumerate(fields.texts)
    )

    def whole(scores: list[Any], _: int) -> list[types.RankedText]:
        return [
            types.RankedText(index=index, score=score, text=fields.texts[index] if fields.return_text else UNSET)
            for index, score in ranked(scores)
        ]

    return ParsedTask(requests, TaskFormatter(lambda _, result: result.value, whole, ignored))


def parse_similarity(body: dict[str, Any], model: ModelConfig, *, truncates: bool) -> ParsedTask[ScoreRequest, Score]:
    """Read a text and others that it is compared with; the answer has a score for each of these, in their order."""
    fields, ignored = _read(body, types.SimilarityBody, model)
    like = _embedded_text(fields.parameters or types.EmbedParameters(), truncates=truncates)
    requests = tuple(
        ScoreRequest(text=paired(fields.inputs.source_sentence, text, f"inputs.sentences[{index}]", like))
        for index, text in enumerate(fields.inputs.sentences)
    )
    return ParsedTask(requests, TaskFormatter(lambda _, result: result.value, _all, ignored))


def _embedded_text(parameters: types.EmbedParameters, *, truncates: bool = True) -> TextInput:
    return msgspec.structs.replace(parameters.like(truncates=truncates), prompt_name=parameters.prompt_name)


def _at(index: int, *, several: bool) -> str:
    return f"inputs[{index}]" if several else "inputs"


# ------------------------------------------------------------------------------------------------ labels


def parse_classification(
    body: dict[str, Any], model: ModelConfig, hub: bool
) -> ParsedTask[ClassifyRequest, Classification]:
    """Read texts to classify. Without top_k the pipeline tells the best label of each."""
    fields, ignored = _read(body, types.LabelBody, model)
    parameters = fields.parameters or types.LabelParameters()
    several = isinstance(fields.inputs, list)
    given = fields.inputs if isinstance(fields.inputs, list) else [fields.inputs]
    like = parameters.like()
    best_only = parameters.top_k is UNSET and not hub
    top = 1 if best_only else parameters.top_k or None
    requests = tuple(
        ClassifyRequest(
            text=_maybe_paired(text, _at(index, several=several), like),
            activation=ACTIVATIONS[parameters.function_to_apply],
            top=top,
        )
        for index, text in enumerate(given)
    )

    def item(_: int, result: Classification) -> Any:
        labels = scored(result)
        return labels[0] if best_only else labels

    # The pipeline answers one text without top_k as a list of one label, too.
    return ParsedTask(requests, TaskFormatter(item, _wrap(several=several or hub or best_only), ignored))


def scored(result: Classification) -> list[types.ScoredLabel]:
    """The labels of a text, the best first."""
    return [types.ScoredLabel(label.name, label.score) for label in result.labels]


def _maybe_paired(given: str | types.TextPair, field: str, like: TextInput) -> TextInput:
    if isinstance(given, str):
        return msgspec.structs.replace(like, text=given, field=field)
    return msgspec.structs.replace(like, text=given.text, pair=given.text_pair, field=field)


def parse_zero_shot(body: dict[str, Any], model: ModelConfig, hub: bool) -> ParsedTask[ZeroShotRequest, Classification]:
    """Read texts, and the labels that they may have."""
    fields, ignored = _read(body, types.ZeroShotBody, model)
    parameters = fields.parameters
    labels = _labels(parameters.candidate_labels)
    hypothesis = parameters.hypothesis_template or _DEFAULT_HYPOTHESIS
    _check_hypothesis(hypothesis, labels)
    texts, several = _texts(fields.inputs, parameters.like(truncates=True))
    if wrong := budgets.TEXTS.excess(len(texts) * len(labels)):
        raise PayloadError(f"inputs: {wrong}: {len(texts)} with {len(labels)} labels each", "inputs")
    requests = tuple(
        ZeroShotRequest(text=text, labels=labels, hypothesis=hypothesis, multi_label=bool(parameters.multi_label))
        for text in texts
    )

    def item(index: int, result: Classification) -> Any:
        if hub:
            return scored(result)
        return types.ZeroShotAnswer(
            sequence=texts[index].text,
            labels=[label.name for label in result.labels],
            scores=[label.score for label in result.labels],
        )

    return ParsedTask(requests, TaskFormatter(item, _wrap(several=several), ignored))


def _check_hypothesis(hypothesis: str, labels: Sequence[str]) -> None:
    """Refuse what is no sentence for a label, or a long one: the model reads it with each text and label."""
    field = "parameters.hypothesis_template"
    if "{}" not in hypothesis:
        raise ParameterError(f"{field}: expected a text with {{}} for the label, got {hypothesis[:60]!r}", field)
    grown = hypothesis.count("{}") * (max(map(len, labels)) - len("{}"))
    if wrong := budgets.HYPOTHESIS_CHARS.excess(len(hypothesis) + grown):
        field = "parameters.candidate_labels" if hypothesis == _DEFAULT_HYPOTHESIS else field
        raise ParameterError(f"{field}: {wrong}", field)


def _labels(given: str | Sequence[str]) -> tuple[str, ...]:
    """The labels; a text separates them by commas."""
    if not isinstance(given, str):
        return tuple(given)
    labels = tuple(label for part in given.split(",") if (label := part.strip()))
    wrong = budgets.LABELS.excess(len(labels)) or ("" if labels else f"expected labels, got {given!r}")
    if wrong:
        field = "parameters.candidate_labels"
        raise ParameterError(f"{field}: {wrong}", field)
    return labels


def parse_tags(body: dict[str, Any], model: ModelConfig, hub: bool) -> ParsedTask[TagRequest, Tags]:
    """Read texts whose entities are wanted. The hub's API groups them where the request does not say."""
    fields, ignored = _read(body, types.TagBody, model)
    parameters = fields.parameters or types.TagParameters()
    aggregation = parameters.aggregation_strategy or ("simple" if hub else "none")
    left_out = ("O",) if parameters.ignore_labels is None else tuple(parameters.ignore_labels)
    texts, several = _texts(fields.inputs, parameters.like())
    requests = tuple(TagRequest(text=text, aggregation=aggregation, ignored=left_out) for text in texts)
    write = _token_entity if aggregation == "none" else _group_entity
    formatter = TaskFormatter[Tags](
        lambda _, result: encoded([write(entity) for entity in result.entities]), _wrap(several=several), ignored
    )
    return ParsedTask(requests, formatter)


def _token_entity(entity: Entity) -> types.TokenEntity | types.GroupEntity:
    return types.TokenEntity(
        entity=entity.label,
        score=entity.score,
        index=entity.index,
        word=entity.word,
        start=entity.start,
        end=entity.end,
    )


def _group_entity(entity: Entity) -> types.TokenEntity | types.GroupEntity:
    return types.GroupEntity(
        entity_group=entity.label, score=entity.score, word=entity.word, start=entity.start, end=entity.end
    )


# ------------------------------------------------------------------------------------------------ answers, masks


def parse_questions(body: dict[str, Any], model: ModelConfig, hub: bool) -> ParsedTask[ExtractRequest, Spans]:
    """Read questions and their contexts, in `inputs` or as the body itself. With top_k=1 each has one answer, and no
    list."""
    if "inputs" not in body and "question" in body:
        asked = {name: body[name] for name in ("question", "context") if name in body}
        body = {name: value for name, value in body.items() if name not in asked} | {"inputs": asked}
    fields, ignored = _read(body, types.QuestionBody, model)
    parameters = fields.parameters or types.QuestionParameters()
    several = isinstance(fields.inputs, list)
    given = fields.inputs if isinstance(fields.inputs, list) else [fields.inputs]
    named = {
        "top": parameters.top_k,
        "max_answer_tokens": parameters.max_answer_len,
        "stride": parameters.doc_stride,
        "may_have_none": parameters.handle_impossible_answer,
        "align_to_words": parameters.align_to_words,
    }
    chosen: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    requests = tuple(
        ExtractRequest(text=paired(asked.question, asked.context, _at(index, several=several), TextInput()), **chosen)
        for index, asked in enumerate(given)
    )
    one_answer = parameters.top_k in (None, 1)

    def item(_: int, result: Spans) -> Any:
        answers = [_answer_of(span) for span in result.spans]
        return answers[0] if one_answer and answers else answers

    return ParsedTask(requests, TaskFormatter(item, _wrap(several=several), ignored))


def _answer_of(span: Span) -> types.FoundAnswer:
    return types.FoundAnswer(score=span.score, start=span.start, end=span.end, answer=span.text)


def parse_masks(body: dict[str, Any], model: ModelConfig, hub: bool) -> ParsedTask[FillRequest, Fillings]:
    """Read texts with masks. A text with one mask has a list of tokens, one with several a list of such lists."""
    fields, ignored = _read(body, types.MaskBody, model)
    parameters = fields.parameters or types.MaskParameters()
    targets = parameters.targets or ()
    texts, several = _texts(fields.inputs, parameters.like())
    requests = tuple(
        FillRequest(
            text=text,
            top=parameters.top_k or FillRequest(text=text).top,
            targets=(targets,) if isinstance(targets, str) else tuple(targets),
        )
        for text in texts
    )

    def item(_: int, result: Fillings) -> Any:
        masks = [[_filled(filling) for filling in mask] for mask in result.masks]
        return masks[0] if len(masks) == 1 else masks

    return ParsedTask(requests, TaskFormatter(item, _wrap(several=several), ignored))


def _filled(filling: Filling) -> types.FilledMask:
    return types.FilledMask(
        score=filling.score, token=filling.token, token_str=filling.token_text, sequence=filling.sequence
    )


#: Task -> how its body is read.
PIPELINES: Final[Mapping[str, PipelineParser]] = {
    **dict.fromkeys(EMBEDDING_TASKS, parse_embedding),
    TEXT_RANKING: parse_ranking,
    TEXT_CLASSIFICATION: parse_classification,
    TOKEN_CLASSIFICATION: parse_tags,
    QUESTION_ANSWERING: parse_questions,
    FILL_MASK: parse_masks,
    ZERO_SHOT_CLASSIFICATION: parse_zero_shot,
}
#: The bodies of every task, and the answers, for /openapi.json.
REQUESTS: Final = (
    *(types.EmbedBody, types.SimilarityBody, types.RankBody, types.PairsBody, types.LabelBody),
    *(types.TagBody, types.QuestionBody, types.MaskBody, types.ZeroShotBody),
)
ANSWERS: Final = (
    list[float | list[float]],
    list[types.RankedText],
    *(types.PairScore, list[types.PairScore]),
    *(list[types.ScoredLabel], list[list[types.ScoredLabel]]),
    *(list[types.TokenEntity], list[list[types.TokenEntity]], list[types.GroupEntity], list[list[types.GroupEntity]]),
    *(types.FoundAnswer, list[types.FoundAnswer], list[list[types.FoundAnswer]]),
    *(list[types.FilledMask], list[list[types.FilledMask]], list[list[list[types.FilledMask]]]),
    *(types.ZeroShotAnswer, list[types.ZeroShotAnswer]),
)
