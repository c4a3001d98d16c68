"""Text Embeddings Inference's bodies: the types that the dialect reads and writes, and that /openapi.json shows.

Source: TEI's OpenAPI document. Requests to rank texts and to compare them have the pipelines' types.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ...core import budgets
from ...core.text_tasks import TextInput
from ..shared.text_tasks.pipeline_types import TruncationParameters
from ..shared.text_tasks.texts import Text, TextList, TextsOrIds, TokenId, TokenIds

_Pair = Annotated[list[Text], Meta(min_length=1, max_length=2)]


class TeiTextsRequest(TruncationParameters, frozen=True, kw_only=True):
    """Texts to embed."""

    inputs: TextsOrIds
    prompt_name: Annotated[str, Meta(description="The model's prompt that comes before each text.")] | None = None

    @property
    def text(self) -> TextInput:
        """The settings that the texts share."""
        return msgspec.structs.replace(self.like(), prompt_name=self.prompt_name)


class TeiEmbedRequest(TeiTextsRequest, frozen=True, kw_only=True):
    """Texts to embed, each as one vector."""

    normalize: Annotated[bool, Meta(description="Scale to length 1; true if absent.")] = True
    dimensions: Annotated[int, Meta(ge=1, description="Keep so many values, of models that allow it.")] | None = None


class TeiPredictRequest(TruncationParameters, frozen=True, kw_only=True):
    """A text to classify, a pair of texts, or a list of lists of one text or two."""

    inputs: Text | Annotated[list[Text | _Pair], Meta(min_length=1)]
    raw_scores: Annotated[bool, Meta(description="The model's logits.")] = False


class TeiTokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Texts to tokenize."""

    inputs: Text | TextList
    add_special_tokens: Annotated[bool, Meta(description="Whether the tokenizer adds its own.")] = True
    model: Annotated[str | None, Meta(description="Not TEI's: which of several models answers.")] = None


class TeiDecodeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids to write as text: of one text, or of several."""

    ids: Annotated[list[TokenId | TokenIds], Meta(min_length=1, max_length=budgets.VALUES.most)]
    skip_special_tokens: Annotated[bool, Meta(description="Leave out tokens such as [CLS].")] = True


class SparseValue(msgspec.Struct, frozen=True):
    """The weight of a token of the vocabulary."""

    index: int
    value: float


class Prediction(msgspec.Struct, frozen=True):
    """A label of a text."""

    score: float
    label: str


class TeiToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token: characters start to stop of the text; a special one has none."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class EmbeddingKind(msgspec.Struct, frozen=True):
    """How a model of embeddings makes one vector of a text."""

    pooling: str


class LabelKind(msgspec.Struct, frozen=True):
    """The labels of a classifier."""

    id2label: dict[str, str]
    label2id: dict[str, int]


class ModelType(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The kind of the model: one of these fields is set; none, for another task."""

    embedding: EmbeddingKind | None = None
    classifier: LabelKind | None = None
    reranker: LabelKind | None = None


class TeiInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is served, and its limits. `model_pipeline_tag` is not TEI's."""

    model_id: str
    model_sha: str | None
    model_dtype: str
    model_type: ModelType
    model_pipeline_tag: str
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_batch_requests: int | None = None
    max_client_batch_size: int
    auto_truncate: bool = False
    tokenization_workers: int
    version: str
    sha: str | None = None
    docker_label: str | None = None
