"""The bodies of transformers' pipelines, as Hugging Face's Inference API and LMI's handlers have them.

The types that requests are read as, and answers written as; /openapi.json shows them. Sources: transformers' pipelines;
the task specifications of Hugging Face's Inference API; LMI's guide to text embeddings, and DJL's cross-encoders.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ....core import budgets
from ....core.text_tasks import TextInput, TruncationSide
from .texts import Text, TextList, TextsOrIds

_TopK = Annotated[int, Meta(ge=1, le=budgets.BEST.most)]
Direction = Literal["left", "right", "Left", "Right"]


def side(direction: Direction | None) -> TruncationSide:
    """Which end of a long text is dropped; the right one if nothing says so."""
    return "left" if direction in ("left", "Left") else "right"


class TruncationParameters(msgspec.Struct, frozen=True, kw_only=True):
    """How a text that is longer than the model takes is truncated."""

    truncate: Annotated[bool, Meta(description="Drop an end of a text that is too long.")] | None = None
    truncation_direction: Annotated[Direction, Meta(description="Which end; right if absent.")] | None = None

    def like(self, *, truncates: bool = False) -> TextInput:
        """The settings of a text; `truncates`: the default of `truncate`."""
        wanted = truncates if self.truncate is None else self.truncate
        return TextInput(truncate=side(self.truncation_direction) if wanted else "")


# ------------------------------------------------------------------------------------------------ requests


class TextPair(msgspec.Struct, frozen=True, kw_only=True):
    """Two texts that are read together."""

    text: Text
    text_pair: Text | None = None


class EmbedParameters(TruncationParameters, frozen=True, kw_only=True):
    """How texts are embedded. A text that is too long is cut unless `truncate` is false."""

    normalize: Annotated[bool, Meta(description="Scale to length 1; as the model says if absent.")] | None = None
    dimensions: Annotated[int, Meta(ge=1, description="Keep so many values, of models that allow it.")] | None = None
    prompt_name: Annotated[str, Meta(description="The model's prompt that comes before each text.")] | None = None


class EmbedBody(EmbedParameters, frozen=True, kw_only=True):
    """Texts to embed. The parameters may be beside `inputs`, too."""

    inputs: Annotated[TextsOrIds, Meta(description="A text or several.")]
    parameters: EmbedParameters | None = None


class SentencesInput(msgspec.Struct, frozen=True, kw_only=True):
    """A text, and those that it is compared with."""

    source_sentence: Text
    sentences: TextList


class SimilarityBody(msgspec.Struct, frozen=True, kw_only=True):
    """A text to compare with others."""

    inputs: SentencesInput
    parameters: EmbedParameters | None = None


class RankParameters(TruncationParameters, frozen=True, kw_only=True):
    """How pairs are scored. What is too long is cut unless `truncate` is false."""

    raw_scores: Annotated[bool, Meta(description="The model's logits.")] = False
    return_text: Annotated[bool, Meta(description="Whether each result has its text.")] = False


class RankBody(RankParameters, frozen=True, kw_only=True):
    """Texts to rank by a query."""

    query: Text
    texts: TextList


class CompletePair(msgspec.Struct, frozen=True, kw_only=True):
    """A query and a text."""

    text: Text
    text_pair: Text


class PairsBody(msgspec.Struct, frozen=True, kw_only=True):
    """A query with a text, or several such pairs, to be scored each by itself."""

    inputs: CompletePair | Annotated[list[CompletePair], Meta(min_length=1, max_length=budgets.TEXTS.most)]
    parameters: RankParameters | None = None


class LabelParameters(TruncationParameters, frozen=True, kw_only=True):
    """How texts are classified."""

    top_k: Annotated[_TopK | None, Meta(description="So many labels of each text, null: all; the best if absent.")] | (
        UnsetType
    ) = UNSET
    function_to_apply: (
        Annotated[
            Literal["sigmoid", "softmax", "none"],
            Meta(description="What turns logits into scores; as the model says if absent."),
        ]
        | None
    ) = None


class LabelBody(msgspec.Struct, frozen=True, kw_only=True):
    """Texts, or pairs of texts, to classify."""

    inputs: Text | TextPair | Annotated[list[Text | TextPair], Meta(min_length=1, max_length=budgets.TEXTS.most)]
    parameters: LabelParameters | None = None


class TagParameters(TruncationParameters, frozen=True, kw_only=True):
    """How entities are found."""

    aggregation_strategy: (
        Annotated[Literal["none", "simple", "first", "average", "max"], Meta(description="How tokens become entities.")]
        | None
    ) = None
    ignore_labels: (
        Annotated[list[str], Meta(max_length=budgets.WORDS.most, description='Not reported; ["O"] if absent.')] | None
    ) = None


class TagBody(msgspec.Struct, frozen=True, kw_only=True):
    """Texts whose entities are wanted."""

    inputs: Text | TextList
    parameters: TagParameters | None = None


class QuestionInput(msgspec.Struct, frozen=True, kw_only=True):
    """A question, and the text that may answer it."""

    question: Text
    context: Text


class QuestionParameters(msgspec.Struct, frozen=True, kw_only=True):
    """How answers are found. A context that is too long is read in pieces."""

    top_k: Annotated[_TopK, Meta(description="So many answers.")] | None = None
    max_answer_len: Annotated[int, Meta(ge=1, le=100_000, description="In tokens; 15 if absent.")] | None = None
    doc_stride: Annotated[int, Meta(ge=0, le=100_000, description="Tokens that two pieces share; 128 if absent.")] | (
        None
    ) = None
    handle_impossible_answer: Annotated[bool, Meta(description='Whether "" is an answer.')] | None = None
    align_to_words: (
        Annotated[bool, Meta(description="Whether answers are of whole words; they are if absent.")] | None
    ) = None


class QuestionBody(msgspec.Struct, frozen=True, kw_only=True):
    """Questions about texts."""

    inputs: QuestionInput | Annotated[list[QuestionInput], Meta(min_length=1, max_length=budgets.TEXTS.most)]
    parameters: QuestionParameters | None = None


class MaskParameters(TruncationParameters, frozen=True, kw_only=True):
    """How masks are filled."""

    top_k: Annotated[_TopK, Meta(description="So many tokens for each mask; 5 if absent.")] | None = None
    targets: (
        Text
        | Annotated[list[Text], Meta(min_length=1, max_length=budgets.TARGETS.most, description="Only these tokens.")]
        | None
    ) = None


class MaskBody(msgspec.Struct, frozen=True, kw_only=True):
    """Texts with the model's mask token in them."""

    inputs: Text | TextList
    parameters: MaskParameters | None = None


class ZeroShotParameters(TruncationParameters, frozen=True, kw_only=True):
    """Labels of the client's. A text that is too long is cut unless `truncate` is false."""

    candidate_labels: Annotated[
        Text | Annotated[list[Text], Meta(min_length=1, max_length=budgets.LABELS.most)],
        Meta(description="A list, or one text with commas between the labels."),
    ]
    hypothesis_template: Annotated[str, Meta(description="A sentence with {} for the label.")] | None = None
    multi_label: Annotated[bool, Meta(description="Whether each label is scored by itself.")] | None = None


class ZeroShotBody(msgspec.Struct, frozen=True, kw_only=True):
    """Texts to classify by labels of the client's."""

    inputs: Text | TextList
    parameters: ZeroShotParameters


# ------------------------------------------------------------------------------------------------ answers


class RankedText(msgspec.Struct, frozen=True, kw_only=True):
    """A text's place: its number among the texts, and its score."""

    index: int
    text: str | UnsetType = UNSET
    score: float


class PairScore(msgspec.Struct, frozen=True):
    """The score of a pair."""

    score: float


class ScoredLabel(msgspec.Struct, frozen=True):
    """A label of a text."""

    label: str
    score: float


class TokenEntity(msgspec.Struct, frozen=True, kw_only=True):
    """The label of a token."""

    entity: str
    score: float
    index: int | None
    word: str
    start: int
    end: int


class GroupEntity(msgspec.Struct, frozen=True, kw_only=True):
    """An entity of one or several tokens."""

    entity_group: str
    score: float
    word: str
    start: int
    end: int


class FoundAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer: the characters start to end of the context."""

    score: float
    start: int
    end: int
    answer: str


class FilledMask(msgspec.Struct, frozen=True, kw_only=True):
    """A token for a mask."""

    score: float
    token: int
    token_str: str
    sequence: str


class ZeroShotAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A text with its labels, the best first."""

    sequence: str
    labels: list[str]
    scores: list[float]
