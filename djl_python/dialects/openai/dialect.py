"""OpenAI's API: /v1/chat/completions, /v1/completions and /v1/models.

Routes, pages and errors run in the front end, parsing and answering in the worker. Under option.tgi_compat the same
requests are answered with TGI's shapes and codes. A stream is SSE that ends with `[DONE]`; chats under
option.output_formatter=jsonlines_chat stream one object per line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

from ... import __version__
from ...config import ModelConfig
from ...core.errors import ModelNotFoundError, ParameterError, PayloadError, ServingError
from ...core.types import EngineInfo, FinishReason
from ...formats.json_framing import JSON, JSONLINES, SSE, encode_json, encode_jsonlines, encode_sse
from ...inputs import Input
from ..shared.base import Answer, Bodies, Dialect, Kind, ModelStatus, Parsed, Route, ServerView
from ..shared.chat.answer import ChatChunk, ChatCompletion, ChatFormatter, ChatStyle
from ..shared.chat.request import ChatRequest, read_chat
from ..shared.fields.generation import GenerationFields
from ..shared.framing import SSE_DONE
from ..shared.request_body import ignored_header, json_object, object_of
from ..shared.typed_body import read_body
from ..shared.typed_errors import ErrorResponse, documented_errors, typed_answer
from .completions import Completion, CompletionFormatter, CompletionRequest, read_completion
from .errors import ErrorBody, StreamFailure, openai_answer, stream_failure, with_request_fields

CHAT: Final = "chat"
COMPLETION: Final = "completion"
MODELS: Final = "models"
MODEL: Final = "model"
FINISH_REASONS: Final = {
    FinishReason.EOS: "stop",
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ERROR: "error",
}
#: Same seed, same fingerprint: same answer.
SYSTEM_FINGERPRINT: Final = f"djl-serving-{__version__}"
_OWNER: Final = "djl-serving"
#: Longer bodies are not parsed a second time, into objects, for a better error message: that would take a tenth of a
#: second of the front end's time per megabyte.
_EXPLAINED_BYTES: Final = 1 << 20
#: Errors that may end a stream, and the data of the event that ends every stream of events.
_FAILURES: Final = (ErrorBody, StreamFailure)
_DONE: Final = "[DONE]"


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: Annotated[int, Meta(ge=0, description="When it was registered, in Unix seconds.")]
    owned_by: str = _OWNER
    engine: EngineInfo | msgspec.UnsetType = msgspec.UNSET  # not OpenAI's


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
        if operation == MODELS:
            infos = [_info(model) for model in reversed(served.values())]
            return Answer(200, encode_json(ModelList(data=infos)))
        name = "/".join(path_values[part] for part in ("owner", "model") if part in path_values)
        if name not in served:
            loaded = ", ".join(sorted(served)) or "none"
            raise ModelNotFoundError(f"The model `{name}` does not exist; loaded: {loaded}")
        return Answer(200, encode_json(_info(served[name])))

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
        model=model.name,
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
    parsed = read_completion(body, model)
    most = model.option.max_client_batch_size
    if model.option.tgi_compat and len(parsed.requests) > most:
        raise ParameterError(f"Number of prompts exceeds the maximum allowed batch size of {most}", "prompt")
    formatter = CompletionFormatter(
        _framing(parsed.fields),
        parsed,
        model=model.name,
        system_fingerprint=SYSTEM_FINGERPRINT,
        finish_reasons=FINISH_REASONS,
        tgi=model.option.tgi_compat,
        headers=ignored_header(parsed.ignored),
    )
    return Parsed(parsed.requests, formatter)


def _framing(fields: GenerationFields, jsonlines: bool = False) -> str:
    """The answer's framing; the request decides whether to stream."""
    if not fields.stream:
        return "json"
    return "jsonlines" if jsonlines else "sse"


def _info(model: ModelStatus) -> ModelInfo:
    return ModelInfo(id=model.config.name, created=int(model.registered_s), engine=model.engine or msgspec.UNSET)
