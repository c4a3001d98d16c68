"""Text Embeddings Inference's API: /embed, /embed_all, /embed_sparse, /predict, /similarity, /vertex, /decode.

And /rerank, /tokenize, /info and /, where the body or the model is one of TEI's.

Routes and errors run in the front end, parsing and queries in the worker. Source: TEI's OpenAPI document, and its
router where that is silent. /rerank belongs to OpenAI's dialect, which leaves a body with `texts` to this one.
/tokenize, /info and / belong to TGI's, which leaves to this one the models that read text without generating any. What
Hugging Face's clients send to / is read for each task as its Inference API does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from ... import __version__
from ...config import TEXT_GENERATION, ModelConfig, workers_of
from ...core import budgets
from ...core.budgets import TEXTS
from ...core.errors import PayloadError, ServingError
from ...core.text_tasks import EMBEDDING_TASKS, TEXT_CLASSIFICATION, TEXT_RANKING
from ...formats.json_framing import JSON, encode_json
from ...inputs import Input
from ..shared.base import Answer, Bodies, Dialect, Kind, Parsed, Route
from ..shared.text_tasks import pipelines
from ..shared.text_tasks.pipeline_types import RankBody, RankedText, SimilarityBody
from ..shared.views import QueriedModel
from .errors import ERRORS, tei_answer, tei_error
from .requests import EMBED, EMBED_ALL, EMBED_SPARSE, PARSERS, PREDICT, RERANK, ROOT, SIMILARITY, read
from .types import (
    EmbeddingKind,
    LabelKind,
    ModelType,
    Prediction,
    SparseValue,
    TeiDecodeRequest,
    TeiEmbedRequest,
    TeiInfo,
    TeiPredictRequest,
    TeiTextsRequest,
    TeiToken,
    TeiTokenizeRequest,
)
from .vertex import PARSERS as VERTEX_PARSERS
from .vertex import VERTEX, VertexAnswer, VertexRequest

TOKENIZE, DECODE, INFO = "tokenize", "decode", "info"
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


#: Bodies with what is needed.
_TEXT: Final = {"inputs": "What is deep learning?"}
_COMPARED: Final = {"inputs": {"source_sentence": "What is deep learning?", "sentences": ["Cheese is made of milk."]}}


def _route(
    path: str,
    operation: str,
    summary: str,
    request: Any,
    answer: Any,
    kind: Kind = Kind.GENERATE,
    example: Mapping[str, Any] = _TEXT,
) -> Route:
    return Route("POST", path, operation, kind, summary, request, {200: {JSON: answer}}, example=example)


class TeiDialect(Dialect):
    """TEI's own routes, and its part of the shared ones."""

    name = "tei"
    summary = "The API of Hugging Face's Text Embeddings Inference."
    errors: ClassVar[Mapping[int, Bodies]] = ERRORS
    routes = (
        _route("/embed", EMBED, "A vector for each text.", TeiEmbedRequest, list[list[float]]),
        _route(
            "/embed_all", EMBED_ALL, "A vector for each token of each text.", TeiTextsRequest, list[list[list[float]]]
        ),
        _route(
            "/embed_sparse",
            EMBED_SPARSE,
            "Weights of the vocabulary's tokens.",
            TeiTextsRequest,
            list[list[SparseValue]],
        ),
        _route(
            *("/predict", PREDICT, "The labels of each text.", TeiPredictRequest),
            (list[Prediction], list[list[Prediction]]),
        ),
        _route(
            *("/similarity", SIMILARITY, "How similar texts are to one text.", SimilarityBody, list[float]),
            example=_COMPARED,
        ),
        _route(
            *("/vertex", VERTEX, "The answers of /embed, /predict or /rerank, in Vertex AI's form."),
            *(VertexRequest, VertexAnswer),
            example={"instances": [_TEXT]},
        ),
        _route(
            *("/decode", DECODE, "The text of token ids.", TeiDecodeRequest, list[str], Kind.QUERY),
            example={"ids": [1, 2]},
        ),
    )
    shared = (
        _route("/rerank", RERANK, "Texts by how well they answer a query.", RankBody, list[RankedText]),
        _route("/", ROOT, "Run the model's task: embed, classify or rank.", pipelines.REQUESTS, pipelines.ANSWERS),
        _route("/tokenize", TOKENIZE, "The tokens of texts.", TeiTokenizeRequest, list[list[TeiToken]], Kind.QUERY),
        Route(
            "GET",
            "/info",
            INFO,
            Kind.QUERY,
            summary="The served model and its limits.",
            responses={200: {JSON: TeiInfo}},
        ),
    )
    task_parsers: ClassVar = {**PARSERS, **VERTEX_PARSERS}

    def parse(self, inputs: Input, model: ModelConfig) -> Parsed:
        """Refuse a model that generates text: none of the routes is for one."""
        raise self.wrong_task(TEXT_GENERATION, model)

    def query(self, inputs: Input, model: QueriedModel) -> Answer:
        """/info, the tokens of texts, and the text of tokens."""
        if inputs.operation == INFO:
            return Answer(200, encode_json(_info(model)))
        if inputs.operation == DECODE:
            return _decoded(inputs, model)
        fields, ignored = read(inputs, model.config, TeiTokenizeRequest)
        texts = [fields.inputs] if isinstance(fields.inputs, str) else fields.inputs
        tokens: list[list[TeiToken]] = []
        for text in texts:
            tokens.append(_tokens(text, model, special=fields.add_special_tokens))
            if excess := budgets.LISTED_TOKENS.excess(sum(map(len, tokens)), at_least=True):
                raise PayloadError(f"inputs: {excess}", "inputs")
        return Answer(200, encode_json(tokens), {"content-type": JSON, **ignored})

    def error(
        self,
        error: ServingError,
        model: ModelConfig | None = None,
        *,
        operation: str = "",
        inputs: Input | None = None,
    ) -> Answer:
        return tei_answer(error)

    def stream_error(self, error: ServingError, headers: Mapping[str, str], model: ModelConfig | None = None) -> bytes:
        return encode_json(tei_error(error)[1])


def _tokens(text: str, model: QueriedModel, *, special: bool) -> list[TeiToken]:
    return [
        TeiToken(
            id=token.id,
            text=token.text or model.decode([token.id], False),
            special=token.start == token.stop,
            start=None if token.start == token.stop else token.start,
            stop=None if token.start == token.stop else token.stop,
        )
        for token in model.tokenize(text, special)
    ]


def _decoded(inputs: Input, model: QueriedModel) -> Answer:
    fields, ignored = read(inputs, model.config, TeiDecodeRequest)
    one = [token for token in fields.ids if isinstance(token, int)]
    lists = [one] if one else [ids for ids in fields.ids if isinstance(ids, list)]
    if one and len(one) < len(fields.ids):
        raise PayloadError("ids: expected token ids, or arrays of them, and not both", "ids")
    texts = [model.decode(ids, fields.skip_special_tokens) for ids in lists]
    return Answer(200, encode_json(texts), {"content-type": JSON, **ignored})


def _info(model: QueriedModel) -> TeiInfo:
    config, option = model.config, model.config.option
    concurrent = config.serving.job_queue_size + workers_of(config) * model.capacity
    return TeiInfo(
        model_id=model.model_id,
        model_sha=option.revision if _COMMIT.fullmatch(option.revision) else None,
        model_dtype=model.dtype,
        model_type=_model_type(model),
        model_pipeline_tag=model.task,
        max_concurrent_requests=concurrent,
        max_input_length=model.max_model_len,
        max_batch_tokens=model.max_batch_tokens,
        max_client_batch_size=TEXTS.most,
        tokenization_workers=1,  # each worker process tokenizes for itself
        version=__version__,
    )


def _model_type(model: QueriedModel) -> ModelType:
    if model.task in EMBEDDING_TASKS:
        return ModelType(embedding=EmbeddingKind(model.pooling))
    labels = LabelKind(
        {str(index): label for index, label in enumerate(model.labels)},
        {label: index for index, label in enumerate(model.labels)},
    )
    if model.task == TEXT_RANKING:
        return ModelType(reranker=labels)
    return ModelType(classifier=labels) if model.task == TEXT_CLASSIFICATION else ModelType()
