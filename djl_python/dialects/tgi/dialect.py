"""Text Generation Inference's API: /, /generate, /generate_stream, /tokenize, /chat_tokenize, /info, /health.

Routes, pages and errors run in the front end, parsing and queries in the worker. Source: TGI 2.3.2's OpenAPI document,
and its router where that is silent. Its clients rely on this: a prompt without `parameters` samples, `POST /` without
`stream` answers with a list, and every refusal is `{"error", "error_type"}`.

For a model with option.tgi_dialect=mindie, MindIE's dialect answers /generate_stream. OpenAI's answers vLLM's bodies at
/tokenize.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, TypeVar

from ... import __version__
from ...config import ModelConfig, device_id, has_gpu, workers_of
from ...core.access.scopes import Scope
from ...core.errors import ParameterError, ServingError, UnavailableError
from ...core.text_tasks import TEXT_TASKS
from ...core.types import Chat, GenerateRequest, TextOptions
from ...formats.json_framing import JSON, SSE, encode_json
from ...inputs import Input
from ..shared.adapters import adapter_named, field_before_parsing
from ..shared.base import Answer, Bodies, Dialect, Formatter, Kind, Parsed, Route
from ..shared.chat.request import ChatRequest, read_chat
from ..shared.fields.named_model import named_model
from ..shared.fields.structured_output import refuse_constraints
from ..shared.fields.telling_fields import has_fields
from ..shared.request_body import ignored_header, json_object
from ..shared.typed_body import read_body, unknown_fields
from ..shared.typed_errors import ErrorResponse, documented_errors, typed_answer, typed_stream_error
from ..shared.views import QueriedModel, ServerView, TokenSpan
from . import parameters as rules
from .format import Shape, StreamFormatter, WholeFormatter
from .types import (
    ChatTokenizeResponse,
    CompatGenerateRequest,
    GenerateParameters,
    GenerateResponse,
    Info,
    SimpleToken,
    StreamResponse,
    TokenizeRequest,
)
from .types import GenerateRequest as GenerateBody

COMPAT, GENERATE, STREAM = "compat_generate", "generate", "generate_stream"
TOKENIZE, CHAT_TOKENIZE, INFO, HEALTH = "tokenize", "chat_tokenize", "info", "health"

#: Operations that Text Embeddings Inference has at the same paths.
_OF_TEI: Final = frozenset({COMPAT, TOKENIZE, INFO})
#: The fields of vLLM's bodies for /tokenize, of which each has one.
_VLLM_PROMPTS: Final = ("prompt", "messages")
#: One token of a stream, or the error that ends it early.
_ADAPTER_FIELD: Final = "parameters.adapter_id"
_EVENT: Final = (StreamResponse, ErrorResponse)
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
BodyT = TypeVar("BodyT", bound=TokenizeRequest)


class TgiDialect(Dialect):
    """TGI's own routes; /v1 belongs to another dialect."""

    name = "tgi"
    summary = "The API of Hugging Face's Text Generation Inference."
    errors: ClassVar[Mapping[int, Bodies]] = documented_errors(JSON)
    model_field = "model"
    routes = (
        Route(
            "POST",
            "/",
            COMPAT,
            summary="Generate, streamed or not as the body says.",
            request=CompatGenerateRequest,
            example={"inputs": "What is deep learning?"},
            responses={200: {JSON: list[GenerateResponse], SSE: _EVENT}},
        ),
        Route(
            "POST",
            "/generate",
            GENERATE,
            summary="Generate.",
            request=GenerateBody,
            example={"inputs": "What is deep learning?"},
            responses={200: {JSON: GenerateResponse}},
        ),
        Route(
            "POST",
            "/generate_stream",
            STREAM,
            summary="Generate, with an event for each token.",
            request=GenerateBody,
            example={"inputs": "What is deep learning?"},
            responses={200: {SSE: _EVENT}, **documented_errors(SSE)},
        ),
        Route(
            "POST",
            "/tokenize",
            TOKENIZE,
            Kind.QUERY,
            summary="The tokens of a text.",
            request=TokenizeRequest,
            example={"inputs": "What is deep learning?"},
            responses={200: {JSON: list[SimpleToken]}},
        ),
        Route(
            "POST",
            "/chat_tokenize",
            CHAT_TOKENIZE,
            Kind.QUERY,
            summary="The tokens of a chat, as the model's template writes it.",
            request=ChatRequest,
            example={"messages": [{"role": "user", "content": "What is deep learning?"}]},
            responses={200: {JSON: ChatTokenizeResponse}},
        ),
        Route(
            "GET", "/info", INFO, Kind.QUERY, summary="The served model and its limits.", responses={200: {JSON: Info}}
        ),
        *(
            Route(
                *("GET", path, HEALTH, Kind.PAGE),
                summary="Whether every model can answer.",
                responses={200: {}},
                scope=Scope.PROBE,
            )
            for path in ("/health", "/")
        ),
    )

    def parse(self, inputs: Input, model: ModelConfig) -> Parsed:
        """Read a request of one prompt. Names that have no effect go into x-ignored-parameters."""
        stream = inputs.operation == STREAM
        request, ignored = _read(inputs, model, CompatGenerateRequest if inputs.operation == COMPAT else GenerateBody)
        if isinstance(request, CompatGenerateRequest):
            stream = bool(request.stream)
        # As in TGI's router: a request without `parameters` samples.
        parameters = GenerateParameters(do_sample=True) if request.parameters is None else request.parameters
        rules.check(parameters, model.option, stream=stream)
        if not request.inputs:
            raise ParameterError("`inputs` cannot be empty", "inputs")
        details = bool(parameters.details or parameters.decoder_input_details)
        ignored += _without_effect(parameters, model, details=details, stream=stream)
        sampling = rules.sampling_params(parameters)
        names = tuple(sorted(set(ignored)))
        shape = Shape(
            details=details,
            full_text=request.inputs if parameters.return_full_text else "",
            alternatives=sampling.top_logprobs > 0,
            headers={
                "x-compute-type": model.option.compute_type or _compute_type(model),
                "x-compute-characters": str(len(request.inputs)),
                **ignored_header(names),
            },
        )
        formatter: Formatter = (
            StreamFormatter(shape) if stream else WholeFormatter(shape, wrap=inputs.operation == COMPAT)
        )
        wanted = GenerateRequest(
            prompt=request.inputs,
            sampling=sampling,
            branching=rules.branching(parameters),
            text=TextOptions(stop_sequences=tuple(parameters.stop or ())),
            truncate=parameters.truncate,
            must_fit=True,
            adapter=adapter_named(parameters.adapter_id, model, _ADAPTER_FIELD),
            ignored=names,
        )
        return Parsed((wanted,), formatter)

    def adapters_of(self, inputs: Input, model: ModelConfig) -> Sequence[str]:
        named = field_before_parsing(inputs, model, "parameters", "adapter_id")
        return [adapter_named(named, model, _ADAPTER_FIELD)]

    def query(self, inputs: Input, model: QueriedModel) -> Answer:
        """/info, and the tokens of a text or a chat."""
        if inputs.operation == INFO:
            return Answer(200, encode_json(_info(model)))
        if inputs.operation == CHAT_TOKENIZE:
            chat = read_chat(json_object(inputs, model.config), model.config, must_fit=False).request
            assert isinstance(chat.prompt, Chat)
            text = model.render(chat.prompt)
            tokens = _simple_tokens(model.tokenize(text, add_special_tokens=False))  # the template has added them
            headers = {"content-type": JSON, **ignored_header(chat.ignored)}
            return Answer(200, encode_json(ChatTokenizeResponse(tokens, text)), headers)
        request, ignored = _read(inputs, model.config, TokenizeRequest)
        truncate = None if request.parameters is None else request.parameters.truncate
        rules.check_truncate(truncate, model.config.option)
        spans = model.tokenize(request.inputs)
        return Answer(
            200,
            encode_json(_simple_tokens(spans[-truncate:] if truncate else spans)),
            {"content-type": JSON, **ignored_header(sorted(set(ignored)))},
        )

    def page(self, operation: str, server: ServerView, path_values: Mapping[str, str], body: bytes) -> Answer:
        """200 without a body, or 503."""
        if server.ready:
            return Answer(200, b"", {})
        return typed_answer(UnavailableError("unhealthy"))

    def answering_dialect(self, operation: str, model: ModelConfig, task: str, body: bytes) -> str:
        """At /generate_stream, the dialect that option.tgi_dialect names; OpenAI's, for vLLM's bodies at /tokenize;
        TEI's, at the paths that it has too, where the model is for one of its tasks."""
        if operation == TOKENIZE and has_fields(body, _VLLM_PROMPTS, ("inputs",)):
            return "openai"
        if task in TEXT_TASKS and operation in _OF_TEI:
            return "tei"
        return model.option.tgi_dialect if operation == STREAM else self.name

    def model_of(self, body: bytes) -> str | None:
        return named_model(body) if body else None  # a page's has none

    def error(
        self,
        error: ServingError,
        model: ModelConfig | None = None,
        *,
        operation: str = "",
        inputs: Input | None = None,
    ) -> Answer:
        """A JSON body; at /generate_stream, which always streams, a server-sent event."""
        return typed_answer(error, as_event=operation == STREAM)

    def waiting_stream(self, operation: str, body: bytes, model: ModelConfig) -> Mapping[str, str] | None:
        return {"content-type": SSE} if operation == STREAM else None

    def stream_error(self, error: ServingError, headers: Mapping[str, str], model: ModelConfig | None = None) -> bytes:
        return typed_stream_error(error, headers)


def _read(inputs: Input, model: ModelConfig, into: type[BodyT]) -> tuple[BodyT, list[str]]:
    """The body, and the names of its unknown fields."""
    body = json_object(inputs, model)
    if isinstance(given := body.get("parameters"), dict):
        refuse_constraints(given, "parameters.", expected="grammar", served="grammar")
    refuse_constraints(body, expected="parameters.grammar")
    try:
        request = read_body(body, into, payload=("inputs",))
    except ParameterError as error:
        raise rules.as_router_error(error, body.get("parameters")) from error
    return request, [name.removeprefix("parameters.") for name in unknown_fields(body, into, model)]


def _without_effect(parameters: GenerateParameters, model: ModelConfig, *, details: bool, stream: bool) -> list[str]:
    """Names that are accepted without effect; those that never have one are refused under
    option.unknown_parameters=error."""
    if parameters.watermark and model.option.unknown_parameters == "error":
        field = "parameters.watermark"
        raise ParameterError(f"{field}: not supported (option.unknown_parameters=error)", field)
    return rules.without_effect(parameters, details=details, stream=stream)


def _compute_type(model: ModelConfig) -> str:
    """The kind of device that runs the model."""
    return "cpu" if device_id(model.option.device, gpu=has_gpu()) == "-1" else "gpu"


def _simple_tokens(spans: list[TokenSpan]) -> list[SimpleToken]:
    return [SimpleToken(span.id, span.text, span.start, span.stop) for span in spans]


def _info(model: QueriedModel) -> Info:
    config, option = model.config, model.config.option
    longest = rules.longest_prompt(option, model.max_model_len)
    assert longest is not None  # the context is known
    return Info(
        model_id=model.model_id,
        model_sha=option.revision if _COMMIT.fullmatch(option.revision) else None,
        model_pipeline_tag=option.task or "text-generation",
        max_concurrent_requests=config.serving.job_queue_size + workers_of(config) * model.capacity,
        max_best_of=option.max_best_of,
        max_stop_sequences=option.max_stop_sequences,
        max_input_tokens=longest,
        max_total_tokens=model.max_model_len,
        validation_workers=1,  # each worker process tokenizes for itself
        max_client_batch_size=option.max_client_batch_size,
        router="djl-serving",
        version=__version__,
        engine=model.engine,
    )
