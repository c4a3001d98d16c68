"""OpenAI's API: /v1/chat/completions, /v1/completions, /v1/models, and the routes of `batches`.

Routes, pages and errors run in the front end, parsing and answering in the worker. Under option.tgi_compat the same
requests are answered with TGI's shapes and codes. A stream is SSE that ends with `[DONE]`; chats under
option.output_formatter=jsonlines_chat stream one object per line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

from ...config import ModelConfig
from ...core.engine_info import EngineInfo
from ...core.errors import ModelNotFoundError, ParameterError, PayloadError, ServingError
from ...formats.json_framing import JSON, JSONLINES, SSE, encode_json, encode_jsonlines, encode_sse
from ...inputs import Input
from ..shared.base import Answer, Bodies, Dialect, Kind, ModelStatus, Parsed, Route, ServerView
from ..shared.chat.answer import ChatChunk, ChatCompletion, ChatFormatter, ChatStyle
from ..shared.chat.request import ChatRequest, read_chat
from ..shared.completion import (
    FINISH_REASONS,
    SYSTEM_FINGERPRINT,
    Completion,
    CompletionFormatter,
    CompletionRequest,
    ParsedCompletion,
    read_completion,
)
from ..shared.fields.generation import GenerationFields
from ..shared.framing import SSE_DONE
from ..shared.request_body import ignored_header, json_object, object_of
from ..shared.typed_body import read_body
from ..shared.typed_errors import ErrorResponse, documented_errors, typed_answer
from . import batches
from .errors import ErrorBody, StreamFailure, openai_answer, stream_failure, with_request_fields

CHAT: Final = "chat"
COMPLETION: Final = "completion"
MODELS: Final = "models"
MODEL: Final = "model"
_OWNER: Final = "djl-serving"
#: Longer bodies are not parsed a second time, into objects, for a better error message: that would take a tenth of a
#: second of the front end's time per megabyte.
_EXPLAINED_BYTES: Final = 1 << 20
#: Errors that may end a stream, and the data of the event that ends every stream of events.
_FAILURES: Final = (ErrorBody, StreamFailure)
_DONE: Final = "[DONE]"
#: As OpenAI's own server and vLLM say it: clients that decode text of an unnamed charset take it for Latin-1.
_EVENTS: Final = f"{SSE}; charset=utf-8"


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: Annotated[int, Meta(ge=0, description="When it was registered, in Unix seconds.")]
    owned_by: str = _OWNER
    engine: EngineInfo | msgspec.UnsetType = msgspec.UNSET  # not OpenAI's
    parent: Annotated[str, Meta(description="Of a LoRA adapter: its model.")] | msgspec.UnsetType = (
        msgspec.UNSET
    )  # vLLM's


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The models that are served."""

    object: Literal["list"] = "list"
    data: list[ModelInfo]


class _Named(msgspec.Struct, frozen=True):
    """The part of a body that names the model."""

    model: str | None = None


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
    routes = (
        Route(
            "POST",
            "/v1/chat/completions",
            CHAT,
            summary="Answer a chat.",
            request=ChatRequest,
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
            summary="Go on with one or several prompts.",
            request=CompletionRequest,
            responses={200: {JSON: Completion, SSE: (Completion, *_FAILURES, _DONE)}},
        ),
        Route("GET", "/v1/models", MODELS, Kind.PAGE, summary="What is served.", responses={200: {JSON: ModelList}}),
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
        *batches.ROUTES,
    )
    #: TGI's bodies, and the statuses that only they have, are answered under option.tgi_compat.
    errors: ClassVar[Mapping[int, Bodies]] = {
        **documented_errors(JSON),
        **{status: {JSON: (ErrorBody, ErrorResponse)} for status in (400, 404, 405, 413, 415, 429, 431, 500, 503)},
    }

    def parse(self, inputs: Input, model: ModelConfig) -> Parsed:
        """Read a chat or a completion request."""
        body = json_object(inputs)
        return (_chat if inputs.operation == CHAT else _completion)(body, model)

    def page(self, operation: str, server: ServerView, path_values: Mapping[str, str], body: bytes) -> Answer:
        """The list of models, or one of them."""
        served = {model.config.name: model for model in reversed(server.models)}
        infos = {info.id: info for model in served.values() for info in reversed(_infos(model))}
        if operation == MODELS:
            return Answer(200, encode_json(ModelList(data=list(reversed(infos.values())))))
        name = "/".join(path_values[part] for part in ("owner", "model") if part in path_values)
        if name not in infos:
            loaded = ", ".join(sorted(infos)) or "none"
            raise ModelNotFoundError(f"The model `{name}` does not exist; loaded: {loaded}")
        return Answer(200, encode_json(infos[name]))

    def model_of(self, body: bytes) -> str | None:
        try:
            return msgspec.json.decode(body, type=_Named).model or None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
            if len(body) > _EXPLAINED_BYTES:
                raise PayloadError(f"the request body: {exc}") from exc
            return read_body(object_of(body), _Named).model or None  # raises with a better message

    def error(
        self,
        error: ServingError,
        model: ModelConfig | None = None,
        *,
        operation: str = "",
        inputs: Input | None = None,
    ) -> Answer:
        prompt_field = "prompt" if operation == COMPLETION else "messages"
        if model is not None and model.option.tgi_compat:
            return typed_answer(with_request_fields(error, prompt_field))
        return openai_answer(error, prompt_field)

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
        _framing(parsed.fields, jsonlines=model.option.output_formatter == "jsonlines_chat"),
        style,
        tgi=tgi,
        logprobs=bool(parsed.fields.logprobs),
        include_usage=parsed.fields.include_usage,
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


def _framing(fields: GenerationFields, jsonlines: bool = False) -> str:
    """The answer's framing; the request decides whether to stream."""
    if not fields.stream:
        return "json"
    return "jsonlines" if jsonlines else "sse"


def _infos(model: ModelStatus) -> list[ModelInfo]:
    """A model, and its adapters: in OpenAI's API they are models too."""
    own = ModelInfo(id=model.config.name, created=int(model.registered_s), engine=model.engine or msgspec.UNSET)
    adapters = (name for name in model.config.adapters if name != own.id)
    return [own, *(msgspec.structs.replace(own, id=name, parent=own.id, engine=msgspec.UNSET) for name in adapters)]
