"""OpenAI's API: /v1/chat/completions, /v1/completions, /v1/models, and the routes of other modules of this folder.

`embeddings` and `batches` are OpenAI's too; `scoring`, `pooling`, `tokens` and /version have what vLLM adds.
Routes, pages and errors run in the front end, parsing, queries and answering in the worker. Under option.tgi_compat the
same requests are answered with TGI's shapes and codes. A stream is SSE that ends with `[DONE]`; chats under
option.output_formatter=jsonlines_chat stream one object per line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

from ... import __version__
from ...config import TEXT_GENERATION, ModelConfig
from ...config.sources.hub_ids import is_hub_id
from ...core.engine_info import EngineInfo
from ...core.errors import ModelNotFoundError, ParameterError, ServingError
from ...formats.json_framing import JSON, JSONLINES, SSE, encode_json, encode_jsonlines, encode_sse
from ...inputs import Input
from ..shared.base import Answer, Bodies, Dialect, Kind, Parsed, Route
from ..shared.chat.answer import ChatFormatter, ChatStyle
from ..shared.chat.request import ChatRequest, read_chat
from ..shared.chat.shapes import ChatChunk, ChatCompletion
from ..shared.completion import (
    FINISH_REASONS,
    SYSTEM_FINGERPRINT,
    CompletionFormatter,
    CompletionRequest,
    ParsedCompletion,
    read_completion,
)
from ..shared.completion_shapes import Completion
from ..shared.fields.generation import GenerationFields
from ..shared.fields.named_model import named_model
from ..shared.fields.request_names import with_request_fields
from ..shared.fields.telling_fields import has_fields
from ..shared.fields.wants_stream import wants_stream
from ..shared.framing import SSE_DONE
from ..shared.openai.errors import ErrorBody, openai_answer
from ..shared.request_body import ignored_header, json_object
from ..shared.typed_errors import ErrorResponse, documented_errors, typed_answer
from ..shared.views import ModelStatus, QueriedModel, ServerView
from . import batches, embeddings, pooling, scoring, tokens
from .errors import StreamFailure, stream_failure

CHAT: Final = "chat"
COMPLETION: Final = "completion"
MODELS: Final = "models"
MODEL: Final = "model"
VERSION: Final = "version"
_OWNER: Final = "djl-serving"
#: The operations that generate text, and their requests' name of the prompt.
_TEXT: Final = {CHAT: "messages", COMPLETION: "prompt"}
_PARSERS: Final = {**embeddings.PARSERS, **scoring.PARSERS, **pooling.PARSERS}
#: The operations whose requests have texts, and no prompt.
_OF_TASKS: Final = frozenset(operation for _, operation in _PARSERS)
#: Errors that may end a stream, and the data of the event that ends every stream of events.
_FAILURES: Final = (ErrorBody, StreamFailure)
_DONE: Final = "[DONE]"
#: With the charset, as in OpenAI's own server and vLLM: without one, some clients decode text as Latin-1.
_EVENTS: Final = f"{SSE}; charset=utf-8"


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: Annotated[int, Meta(ge=0, description="When it was registered, in Unix seconds.")]
    owned_by: str = _OWNER
    root: Annotated[str, Meta(description="The checkpoint on the hub; of one from elsewhere, the model's name.")]
    max_model_len: (
        Annotated[int, Meta(description="Tokens of a prompt and its answer together, at most.")] | msgspec.UnsetType
    ) = msgspec.UNSET  # vLLM's, as `root`
    engine: EngineInfo | msgspec.UnsetType = msgspec.UNSET  # not OpenAI's
    parent: Annotated[str, Meta(description="Of a LoRA adapter: its model.")] | msgspec.UnsetType = (
        msgspec.UNSET
    )  # vLLM's


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The models that are served."""

    object: Literal["list"] = "list"
    data: list[ModelInfo]


class ServerVersion(msgspec.Struct, frozen=True):
    """The version of this server."""

    version: str = __version__


class OpenAIChatFormatter(ChatFormatter):
    """A chat's answer with OpenAI's errors, or TGI's."""

    def __init__(self, framing: str, style: ChatStyle, *, tgi: bool, **options: Any) -> None:
        super().__init__(framing, style, **options)
        self._tgi = tgi
        self.headers["content-type"] = _content_type(framing, self.headers, tgi=tgi)

    def error(self, error: ServingError) -> bytes:
        return self._encode(stream_failure(error, tgi=self._tgi)) + self._done


class OpenAICompletionFormatter(CompletionFormatter):
    """A completion with OpenAI's errors, or TGI's."""

    def __init__(self, framing: str, parsed: ParsedCompletion, *, tgi: bool, **options: Any) -> None:
        super().__init__(framing, parsed, tgi=tgi, **options)
        self.headers["content-type"] = _content_type(framing, self.headers, tgi=tgi)

    def error(self, error: ServingError) -> bytes:
        return self._encode(stream_failure(error, tgi=self._tgi)) + self._done


class OpenAIDialect(Dialect):
    """OpenAI's chats, completions and models."""

    name = "openai"
    summary = "OpenAI's API: chats, completions, embeddings, files and batches."
    routes = (
        Route(
            "POST",
            "/v1/chat/completions",
            CHAT,
            summary="Answer a chat.",
            request=ChatRequest,
            example={"messages": [{"role": "user", "content": "What is deep learning?"}]},
            responses={
                200: {
                    JSON: ChatCompletion,
                    SSE: (ChatChunk, *_FAILURES, _DONE),
                    JSONLINES: (ChatChunk, *_FAILURES),
                }
            },
        ),
        Route(
            "POST",
            "/v1/completions",
            COMPLETION,
            summary="Complete one or several prompts.",
            request=CompletionRequest,
            example={"prompt": "What is deep learning?"},
            responses={200: {JSON: Completion, SSE: (Completion, *_FAILURES, _DONE)}},
        ),
        Route("GET", "/v1/models", MODELS, Kind.PAGE, summary="List the models.", responses={200: {JSON: ModelList}}),
        Route("GET", "/v1/models/{model}", MODEL, Kind.PAGE, summary="One model.", responses={200: {JSON: ModelInfo}}),
        # Hub ids have a slash, and not every client escapes it.
        Route(
            "GET",
            "/v1/models/{owner}/{model}",
            MODEL,
            Kind.PAGE,
            summary="One model, whose id has a slash.",
            responses={200: {JSON: ModelInfo}},
        ),
        Route(
            "GET",
            "/version",
            VERSION,
            Kind.PAGE,
            summary="This server's version.",
            responses={200: {JSON: ServerVersion}},
        ),
        tokens.ROUTE,
        embeddings.ROUTE,
        *scoring.ROUTES,
        *pooling.ROUTES,
        *batches.ROUTES,
    )
    shared = (tokens.SHARED_ROUTE,)
    task_parsers: ClassVar = _PARSERS
    model_field = "model"
    #: TGI's bodies, and the statuses that only they have, are answered under option.tgi_compat.
    errors: ClassVar[Mapping[int, Bodies]] = {
        **documented_errors(JSON),
        **{
            status: {JSON: (ErrorBody, ErrorResponse)}
            for status in (400, 401, 403, 404, 405, 413, 415, 429, 431, 500, 503, 507)
        },
    }

    def parse(self, inputs: Input, model: ModelConfig) -> Parsed:
        """Read a chat or a completion request."""
        if inputs.operation not in _TEXT:
            raise self.wrong_task(TEXT_GENERATION, model)
        body = json_object(inputs, model)
        return (_chat if inputs.operation == CHAT else _completion)(body, model)

    def query(self, inputs: Input, model: QueriedModel) -> Answer:
        """The tokens of a prompt, or the text of tokens."""
        return tokens.answer_tokens(inputs, model)

    def page(self, operation: str, server: ServerView, path_values: Mapping[str, str], body: bytes) -> Answer:
        """The list of models, one of them, or the server's version."""
        if operation == VERSION:
            return Answer(200, encode_json(ServerVersion()))
        served = {model.config.name: model for model in reversed(server.models)}
        infos = {info.id: info for model in served.values() for info in reversed(_infos(model))}
        if operation == MODELS:
            return Answer(200, encode_json(ModelList(data=list(reversed(infos.values())))))
        name = "/".join(path_values[part] for part in ("owner", "model") if part in path_values)
        if name not in infos:
            loaded = ", ".join(sorted(infos)) or "none"
            raise ModelNotFoundError(f"The model `{name}` does not exist; loaded: {loaded}")
        return Answer(200, encode_json(infos[name]))

    def answering_dialect(self, operation: str, model: ModelConfig, task: str, body: bytes) -> str:
        """At /rerank, TEI's dialect if the body is one of TEI's."""
        return "tei" if operation == scoring.RERANK and has_fields(body, ("texts",), ("documents",)) else self.name

    def model_of(self, body: bytes) -> str | None:
        return named_model(body)

    def error(
        self,
        error: ServingError,
        model: ModelConfig | None = None,
        *,
        operation: str = "",
        inputs: Input | None = None,
    ) -> Answer:
        prompt_field = None if operation in _OF_TASKS else _TEXT.get(operation, "messages")
        if model is not None and model.option.tgi_compat:
            return typed_answer(with_request_fields(error, prompt_field))
        return openai_answer(error, prompt_field)

    def waiting_stream(self, operation: str, body: bytes, model: ModelConfig) -> Mapping[str, str] | None:
        if operation not in _TEXT or _streams_lines(operation, model) or not wants_stream(body):
            return None
        return {"content-type": SSE}

    def late_error(self, body: bytes) -> bytes:
        return super().late_error(body) + SSE_DONE

    def stream_error(self, error: ServingError, headers: Mapping[str, str], model: ModelConfig | None = None) -> bytes:
        body = stream_failure(error, tgi=model is not None and model.option.tgi_compat)
        sse = headers.get("content-type", "").startswith(SSE)
        return encode_sse(body) + SSE_DONE if sse else encode_jsonlines(body)


def _chat(body: dict[str, Any], model: ModelConfig) -> Parsed:
    parsed = read_chat(body, model, must_fit=True)
    tgi = model.option.tgi_compat
    style = ChatStyle(
        finish_reasons=FINISH_REASONS,
        tool_calls_reason="tool_calls",
        model=parsed.request.adapter or model.name,
        system_fingerprint=SYSTEM_FINGERPRINT,
        role_always=tgi,
        refusals=not tgi,
    )
    formatter = OpenAIChatFormatter(
        _framing(parsed.fields, jsonlines=_streams_lines(CHAT, model)),
        style,
        tgi=tgi,
        fields=parsed.fields,
        headers=ignored_header(parsed.request.ignored),
    )
    return Parsed((parsed.request,), formatter)


def _completion(body: dict[str, Any], model: ModelConfig) -> Parsed:
    parsed = read_completion(body, model, must_fit=True)
    most = model.option.max_client_batch_size
    if model.option.tgi_compat and len(parsed.requests) > most:
        raise ParameterError(f"Number of prompts exceeds the maximum allowed batch size of {most}", "prompt")
    formatter = OpenAICompletionFormatter(
        _framing(parsed.fields),
        parsed,
        model=parsed.requests[0].adapter or model.name,
        tgi=model.option.tgi_compat,
        headers=ignored_header(parsed.ignored),
    )
    return Parsed(parsed.requests, formatter)


def _content_type(framing: str, headers: Mapping[str, str], *, tgi: bool) -> str:
    """The answer's content type; TGI's has no charset."""
    return _EVENTS if framing == "sse" and not tgi else headers["content-type"]


def _streams_lines(operation: str, model: ModelConfig) -> bool:
    """Whether the model's streams are lines of JSON."""
    return operation == CHAT and model.option.output_formatter == "jsonlines_chat"


def _framing(fields: GenerationFields, jsonlines: bool = False) -> str:
    """The answer's framing; the request decides whether to stream."""
    if not fields.stream:
        return "json"
    return "jsonlines" if jsonlines else "sse"


def _infos(model: ModelStatus) -> list[ModelInfo]:
    """A model, and its adapters: in OpenAI's API they are models too."""
    name, source = model.config.name, model.config.option.model_id
    own = ModelInfo(
        id=name,
        created=int(model.registered_s),
        root=source if is_hub_id(source) else name,  # paths and buckets are private
        max_model_len=(model.engine and model.engine.max_model_len) or msgspec.UNSET,
        engine=model.engine or msgspec.UNSET,
    )
    adapters = (name for name in model.config.adapters if name != own.id)
    return [own, *(msgspec.structs.replace(own, id=name, parent=own.id, engine=msgspec.UNSET) for name in adapters)]
