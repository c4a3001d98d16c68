"""Requests and results of the tasks that read text without generating any: embeddings, scores, labels, spans.

Runs in the worker: a dialect parses a body to these requests, one for each input, the task's handler computes a result
for each, and the dialect's formatter writes it. Depends on nothing but msgspec. Everything is frozen.

    request = EmbedRequest(text=TextInput(text="What is deep learning?", field="input[0]"), dimensions=256)
    result = Embedding(values=array("f", ...), shape=(256,), tokens=7)
"""

from __future__ import annotations

import enum
from array import array
from typing import Final, Literal

import msgspec

#: The tasks, by the names of transformers' pipelines and the hub's tags.
FEATURE_EXTRACTION: Final = "feature-extraction"
SENTENCE_SIMILARITY: Final = "sentence-similarity"
TEXT_RANKING: Final = "text-ranking"
TEXT_CLASSIFICATION: Final = "text-classification"
TOKEN_CLASSIFICATION: Final = "token-classification"
QUESTION_ANSWERING: Final = "question-answering"
FILL_MASK: Final = "fill-mask"
ZERO_SHOT_CLASSIFICATION: Final = "zero-shot-classification"
#: Those of models that make embeddings, and compare texts by them.
EMBEDDING_TASKS: Final = (FEATURE_EXTRACTION, SENTENCE_SIMILARITY)
TEXT_TASKS: Final = frozenset(
    {
        *EMBEDDING_TASKS,
        *(TEXT_RANKING, TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION),
        *(QUESTION_ANSWERING, FILL_MASK, ZERO_SHOT_CLASSIFICATION),
    }
)

#: Which end of a text that is too long is dropped; "": such a text is refused.
TruncationSide = Literal["", "left", "right"]


class TextInput(msgspec.Struct, frozen=True, kw_only=True):
    """A text, or the token ids that stand for one, and how it becomes a sequence of tokens.

    Attributes:
        text: the text; "" where there are `ids`.
        pair: a second text that is encoded in the same sequence: the document beside a query, the context beside a
            question.
        ids: token ids, special tokens included, in place of a text.
        prompt_name: the name of the checkpoint's prompt (config_sentence_transformers.json) that comes before the text;
            None: the checkpoint's default prompt, if any.
        truncate: which end is dropped where there are more tokens than `max_tokens` or than the model takes.
        max_tokens: how many tokens are kept, special ones included; None: as many as the model takes.
        add_special_tokens: whether the tokenizer adds its own, such as [CLS] and [SEP].
        field: the path of the text in the request's body, which errors name.
    """

    text: str = ""
    pair: str | None = None
    ids: tuple[int, ...] | None = None
    prompt_name: str | None = None
    truncate: TruncationSide = ""
    max_tokens: int | None = None
    add_special_tokens: bool = True
    field: str = ""


class Granularity(enum.Enum):
    """What an embedding has a vector for."""

    TEXT = "text"  # one vector, pooled as the checkpoint says
    TOKENS = "tokens"  # a vector for each token: the last hidden states
    SPARSE = "sparse"  # a weight for each token of the vocabulary (SPLADE)


class EmbedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An embedding of one text.

    Attributes:
        dimensions: keep the first so many values (Matryoshka), and normalize after that; None: all.
        normalize: scale to unit length; None: as the checkpoint's modules say.
    """

    text: TextInput
    granularity: Granularity = Granularity.TEXT
    dimensions: int | None = None
    normalize: bool | None = None


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an EmbedRequest.

    Attributes:
        values: float32 values in row-major order. SPARSE: the weights above zero.
        shape: (dimensions,) of TEXT, (tokens, dimensions) of TOKENS, (weights,) of SPARSE.
        indices: the token id of each weight of SPARSE; else empty.
        tokens: how many tokens the model has read, special ones included.
    """

    values: array[float]
    shape: tuple[int, ...]
    indices: tuple[int, ...] = ()
    tokens: int


class Activation(enum.Enum):
    """What turns a classifier's logits into scores."""

    MODEL = "model"  # what the checkpoint says: softmax over several labels, sigmoid of one or of a multi-label model
    SIGMOID = "sigmoid"
    SOFTMAX = "softmax"
    NONE = "none"  # the logits themselves


class ScoreRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How relevant a document is to a query, or how similar two texts are.

    A cross-encoder reads `text` with its pair; a model of embeddings compares the two texts' vectors (cosine).
    """

    text: TextInput
    activation: Activation = Activation.MODEL


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a ScoreRequest; `tokens` is how many tokens the model has read."""

    value: float
    tokens: int


class ClassifyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The labels of a text, or of a pair; the best `top` of them (None: all)."""

    text: TextInput
    activation: Activation = Activation.MODEL
    top: int | None = None


class Label(msgspec.Struct, frozen=True):
    """A label by the name in config.json's id2label, and its score."""

    name: str
    score: float


class Classification(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a ClassifyRequest or a ZeroShotRequest: labels, the best first.

    A ClassifyRequest's result has `values`: the scores in the order of the model's labels.
    """

    labels: tuple[Label, ...]
    values: tuple[float, ...] = ()
    tokens: int


class ZeroShotRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which of `labels` a text has, by a model that was trained to find contradictions (NLI).

    Attributes:
        hypothesis: the sentence that a label is put into, at `{}`.
        multi_label: whether labels are independent; else their scores sum to 1.
    """

    text: TextInput
    labels: tuple[str, ...]
    hypothesis: str = "This example is {}."
    multi_label: bool = False


class TagRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The named entities of a text, or a label for each of its tokens.

    Attributes:
        aggregation: transformers' strategies, which join tokens to entities.
        ignored: labels that are left out.
    """

    text: TextInput
    aggregation: Literal["none", "simple", "first", "average", "max"] = "none"
    ignored: tuple[str, ...] = ("O",)


class Entity(msgspec.Struct, frozen=True, kw_only=True):
    """A token or a group of tokens: text[start:end]. `word` is the token as the vocabulary has it, or the text that the
    tokenizer makes of a group's tokens.

    `index` is the number of a single token; None for a group.
    """

    label: str
    score: float
    word: str
    start: int
    end: int
    index: int | None = None


class Tags(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a TagRequest."""

    entities: tuple[Entity, ...]
    tokens: int


class ExtractRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a question that stands in a context: `text.text` is the question, `text.pair` the context.

    Attributes:
        top: how many answers.
        max_answer_tokens: tokens of an answer, at most.
        stride: tokens that two pieces of a long context share.
        may_have_none: whether "" is an answer too.
        align_to_words: whether an answer begins and ends with whole words, as the tokenizer splits them.
    """

    text: TextInput
    top: int = 1
    max_answer_tokens: int = 15
    stride: int = 128
    may_have_none: bool = False
    align_to_words: bool = True


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the context: context[start:end] is `text`."""

    text: str
    score: float
    start: int
    end: int


class Spans(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an ExtractRequest, the best answer first."""

    spans: tuple[Span, ...]
    tokens: int


class FillRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens for each mask of a text: the best `top`, from the vocabulary or from `targets`."""

    text: TextInput
    top: int = 5
    targets: tuple[str, ...] = ()


class Filling(msgspec.Struct, frozen=True, kw_only=True):
    """A token for a mask; `sequence` is the text with it."""

    score: float
    token: int
    token_text: str
    sequence: str


class Fillings(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a FillRequest: for each mask its tokens, the best first."""

    masks: tuple[tuple[Filling, ...], ...]
    tokens: int


TextTaskRequest = (
    EmbedRequest | ScoreRequest | ClassifyRequest | ZeroShotRequest | TagRequest | ExtractRequest | FillRequest
)
TextTaskResult = Embedding | Score | Classification | Tags | Spans | Fillings
