"""LMI's schema: /invocations, /predictions/{model}, for the clients of SageMaker and DJL Serving.

Routes and errors run in the front end, parsing in the worker. Source: LMI's inference schema 0.31.

How an answer is framed: `parameters.output_formatter`, else an explicit `stream`, else `option.output_formatter`, else
JSON. `stream: true` turns json into jsonlines (into sse under option.tgi_compat); jsonlines and sse stream by
themselves. With option.rolling_batch=disable the shapes are those of `batch`. A body with `messages` is a chat
(`chat`), and one with `prompt` a completion (`completion`): these stream only if their `stream` is true, as jsonlines
unless the option says sse.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from ...config import ModelConfig
from ...core import budgets
from ...core.errors import (
    GenerationError,
    HandlerError,
    OverloadedError,
    ParameterError,
    PayloadError,
    RateLimitError,
    ServingError,
)
from ...core.types import Branching, GenerateRequest
from ...formats.forms import media_type
from ...formats.json_framing import FORMATTERS, JSON, SSE, encode_json, encode_jsonlines, encode_sse
from ...inputs import Input
from ..shared.base import Answer, Dialect, Parsed, Route, retry_header
from ..shared.djl_errors import djl_error
from ..shared.fields.seeds import with_seed
from ..shared.fields.sequence_limits import excess_sequences
from ..shared.fields.structured_output import refuse_constraints
from ..shared.framing import SSE_DONE
from ..shared.request_body import ignored_header
from ..shared.typed_errors import typed_error
from .adapters import ADAPTER_FIELDS, adapters_named, with_adapters
from .batch import BatchFormatter, batches_dynamically, failure, read_prompts, without_details
from .body import FIELDS, PLAIN, fields_of, kind
from .chat import COMPLETION_ID, error_chunk, parse_chat
from .completion import parse_completion
from .format import (
    ERROR_STATUS,
    ArrayFormatter,
    LmiFormatter,
    TgiCompatFormatter,
    error_fields,
    error_line,
    error_object,
)
from .parameters import (
    FLAG_WORDS,
    LmiParameters,
    branching,
    prompt_logprobs,
    read_parameters,
    sampling_params,
    text_options,
    translation,
    wants_several,
)
from .schema import ERRORS, REQUEST, RESPONSES, SESSION_ID, TgiRefusal
from .tasks import PREDICT, TASK_PARSERS

_NULL: Final = msgspec.Raw(b"null")


class _AskedParameters(msgspec.Struct, frozen=True):
    """The parameters that choose the framing."""

    output_formatter: str | float | bool | None = None


class _Asked(msgspec.Struct, frozen=True):
    """The fields of a body that choose the framing. Reading only these of a refused body takes little time and
    memory.
    """

    stream: bool | str | None = None
    messages: msgspec.Raw = _NULL
    prompt: msgspec.Raw = _NULL
    parameters: _AskedParameters | None = None


class LmiDialect(Dialect):
    """LMI's schemas for rolling and for dynamic batches, and TGI's shapes under option.tgi_compat."""

    name = "lmi"
    summary = "DJL Serving's and SageMaker's API, in LMI's shapes; custom handlers answer here too."
    defers = True
    has_sessions = True
    routes = tuple(
        Route(
            *("POST", path, PREDICT),
            summary="Generate text or answer a chat; or run another task of the model.",
            request=REQUEST,
            responses=RESPONSES,
            headers={SESSION_ID: "The session that the request is in, or closes."},
            example={"inputs": "What is deep learning?"},
        )
        for path in (
            "/invocations",
            "/predictions/{model}",
            "/predictions/{model}/{version}",
            "/models/{model}/invoke",
        )
    )
    errors = ERRORS
    task_parsers: ClassVar = TASK_PARSERS

    def parse(self, inputs: Input, model: ModelConfig) -> Parsed:
        """Read `inputs`, `parameters` and `stream`, a completion or a chat. Names without effect go into
        x-ignored-parameters."""
        body = fields_of(inputs, model.option.max_request_values)
        adapters = adapters_named(inputs, {name: body.pop(name, None) for name in ADAPTER_FIELDS}, model)
        body["stream"] = _stream(body.get("stream"))
        if body.get("messages") is not None:
            chat = parse_chat(body, _openai_framing(body, model), model)
            return with_adapters(chat, adapters)
        if body.get("prompt") is not None:
            if body.get("inputs") is not None:
                raise PayloadError(
                    "inputs: not together with prompt; send inputs (and parameters) or prompt (a completion)",
                    "inputs",
                )
            completion = parse_completion(body, _openai_framing(body, model), model)
            return with_adapters(completion, adapters)
        parse = _parse_batch if batches_dynamically(model) else _parse_rolling
        return with_adapters(parse(body, model), adapters)

    def adapters_of(self, inputs: Input, model: ModelConfig) -> Sequence[str]:
        try:
            body = fields_of(inputs, model.option.max_request_values)
        except PayloadError:  # the formatter may read other bodies; what it makes of them is parsed
            body = {}
        return adapters_named(inputs, {name: body.get(name) for name in ADAPTER_FIELDS}, model)

    def payload(self, inputs: Input) -> Any:
        """The body as a value; text and forms become the JSON fields that they stand for."""
        content_type = media_type(inputs.get_property("content-type") or "")
        return fields_of(inputs, budgets.VALUES.most) if content_type in PLAIN else super().payload(inputs)

    def error(
        self,
        error: ServingError,
        model: ModelConfig | None = None,
        *,
        operation: str = "",
        inputs: Input | None = None,
    ) -> Answer:
        """LMI's bodies for refusals by the worker (`inputs` is given) and for failures, DJL's for all other errors."""
        tgi = model is not None and model.option.tgi_compat
        refused = isinstance(error, ParameterError | PayloadError) and inputs is not None
        failed = refused or isinstance(error, GenerationError)
        by_handler = isinstance(error, HandlerError) or (isinstance(error, GenerationError) and error.by_handler)
        if by_handler or (failed and _is_dynamic(model)):
            return Answer(ERROR_STATUS, encode_json(failure(error)))
        if isinstance(error, GenerationError) or (isinstance(error, ParameterError) and inputs is not None):
            streams = inputs is not None and model is not None and _streams(inputs, model)
            return Answer(ERROR_STATUS, encode_json((error_line if streams else error_object)(error, tgi=tgi)))
        if isinstance(error, PayloadError) and inputs is not None:
            return Answer(ERROR_STATUS, encode_json(error_fields(error, tgi=tgi)))
        return _djl_error(error, model)

    def stream_error(self, error: ServingError, headers: Mapping[str, str], model: ModelConfig | None = None) -> bytes:
        tgi = model is not None and model.option.tgi_compat
        sse = headers.get("content-type", "").startswith(SSE)
        encode = encode_sse if sse else encode_jsonlines
        if (chat := headers.get(COMPLETION_ID)) is None:
            if _is_dynamic(model):
                return encode(failure(error))
            return encode(error_line(error, tgi=tgi))
        return encode(error_chunk(chat, error, tgi=tgi)) + (SSE_DONE if sse else b"")


def _parse_rolling(body: dict[str, Any], model: ModelConfig) -> Parsed:
    """Read a request in LMI's rolling-batch schema. An array of prompts has an array of answers, as in the
    dynamic-batch schema: clients of LMI's other handlers send arrays to any model.
    """
    several = isinstance(body.get("inputs"), list)
    prompts = read_prompts(body["inputs"]) if several else [_prompt(body)]
    parameters, ignored = read_parameters(_parameters(body), model)
    framing = _framing(parameters, body, model)
    if several and framing != "json":
        raise PayloadError("inputs: an array can't be streamed; send one request for each prompt", "inputs")
    tgi = model.option.tgi_compat
    details = parameters.details if parameters.details is not None else tgi
    # Only details have a place for prompt tokens and further sequences: asking for those implies details.
    details = details or prompt_logprobs(parameters) is not None or wants_several(parameters)
    alternatives = sampling_params(parameters, model).top_logprobs > 0
    if alternatives and framing == "json" and not details:
        ignored += [name for name in ("logprobs", "top_n_tokens") if getattr(parameters, name)]
    ignored += _unknown_fields(body, model)
    names = tuple(sorted(set(ignored)))
    branches = branching(parameters, details=details, stream=framing != "json")
    requests = _requests(prompts, parameters, branches, names, model)
    formatters = [
        (TgiCompatFormatter if tgi else LmiFormatter)(
            framing,
            details=details,
            return_full_text=bool(parameters.return_full_text),
            alternatives=alternatives,
            headers=ignored_header(names),
        )
        for _ in prompts
    ]
    if not several:
        return Parsed(requests, formatters[0])
    return Parsed(requests, ArrayFormatter(formatters, branches.n, tgi=tgi, headers=ignored_header(names)))


def _parse_batch(body: dict[str, Any], model: ModelConfig) -> Parsed:
    """Read a request in LMI's dynamic-batch schema."""
    prompts = read_prompts(body["inputs"]) if isinstance(body.get("inputs"), list) else [_prompt(body)]
    parameters, ignored = read_parameters(_parameters(body), model)
    framing = _framing(parameters, body, model)
    parameters, without_place = without_details(parameters)
    names = tuple(sorted({*ignored, *without_place, *_unknown_fields(body, model)}))
    branches = branching(parameters, details=False, stream=framing != "json")
    requests = _requests(prompts, parameters, branches, names, model)
    formatter = BatchFormatter(
        framing,
        len(prompts),
        return_full_text=bool(parameters.return_full_text),
        headers=ignored_header(names),
    )
    return Parsed(requests, formatter)


def _requests(
    prompts: Sequence[str], parameters: LmiParameters, branches: Branching, ignored: tuple[str, ...], model: ModelConfig
) -> tuple[GenerateRequest, ...]:
    """A request for each prompt. A seed that is drawn differs from prompt to prompt.

    Raises:
        PayloadError: together they have too many sequences.
        ParameterError: about a parameter.
    """
    if len(prompts) > 1 and (wrong := excess_sequences(len(prompts), branches.best_of, beams=branches.num_beams > 1)):
        raise PayloadError(f"inputs: {wrong}", "inputs")
    first = GenerateRequest(
        prompt=prompts[0],
        sampling=sampling_params(parameters, model),
        branching=branches,
        text=text_options(parameters),
        truncate=parameters.truncate,
        priority=parameters.priority,
        cache_salt=parameters.cache_salt or "",
        bad_sequences=tuple(parameters.bad_sequences or ()),
        ignored=ignored,
        translation=translation(parameters),
    )
    others = (
        msgspec.structs.replace(first, prompt=prompt, sampling=with_seed(first.sampling, parameters.seed))
        for prompt in prompts[1:]
    )
    return (first, *others)


def _is_dynamic(model: ModelConfig | None) -> bool:
    return model is not None and batches_dynamically(model)


def _djl_error(error: ServingError, model: ModelConfig | None) -> Answer:
    status = error.status
    if isinstance(error, OverloadedError) and not isinstance(error, RateLimitError) and model is not None:
        status = model.option.throttle_error_http_code or status
    body = djl_error(error, status)
    if model is not None and model.option.tgi_compat:
        body = TgiRefusal(body.code, body.type, body.message, error.message, typed_error(error)[1].error_type)
    return Answer(status, encode_json(body), {"content-type": JSON, **retry_header(error)})


# ------------------------------------------------------------------------------------------------ reading the body


def _prompt(body: dict[str, Any]) -> str:
    prompt = body.get("inputs")
    if isinstance(prompt, str) and prompt:
        return prompt
    if prompt is None:
        raise PayloadError(
            "inputs: required, expected a string (or prompt, for a completion, or messages, for a chat)", "inputs"
        )
    got = "an empty one" if prompt == "" else kind(prompt)
    raise PayloadError(f"inputs: expected a non-empty string or an array of them, got {got}", "inputs")


def _parameters(body: dict[str, Any]) -> dict[str, Any]:
    parameters = body.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise PayloadError(f"parameters: expected an object, got {kind(parameters)}", "parameters")
    return parameters


def _unknown_fields(body: dict[str, Any], model: ModelConfig) -> list[str]:
    refuse_constraints(body, expected="it in parameters")
    given = (key for key, value in body.items() if key not in FIELDS and value is not None)
    names = list(itertools.islice(given, budgets.IGNORED_NAMES))
    if names and model.option.unknown_parameters == "error":
        raise ParameterError(f"{names[0]}: no such field (option.unknown_parameters=error)", names[0])
    return names


def _stream(value: Any) -> bool | None:
    """`stream`, which clients that send text write as a word."""
    value = FLAG_WORDS.get(value.lower(), value) if isinstance(value, str) else value
    if value is not None and not isinstance(value, bool):
        raise PayloadError(f"stream: expected true or false, got {kind(value)}", "stream")
    return value


def _framing(parameters: LmiParameters, body: dict[str, Any], model: ModelConfig) -> str:
    """How to frame the answer to a prompt."""
    stream = _stream(body.get("stream"))
    asked = parameters.output_formatter
    if asked is not None and asked not in FORMATTERS:
        field = "parameters.output_formatter"
        raise ParameterError(f'{field}: expected {", ".join(sorted(FORMATTERS))}, got "{asked}"', field)
    lines = "jsonlines" if model.option.enable_streaming and batches_dynamically(model) else "json"
    chosen = FORMATTERS[asked or ("json" if stream is False else model.option.output_formatter or lines)]
    if chosen == "json" and stream:
        return "sse" if model.option.tgi_compat else "jsonlines"
    return chosen


def _is_openai(body: dict[str, Any]) -> bool:
    """Whether it is a chat or a completion, whose answers have OpenAI's shape."""
    return body.get("messages") is not None or body.get("prompt") is not None


def _openai_framing(body: dict[str, Any], model: ModelConfig) -> str:
    """How to frame the answer to a chat or a completion: the request says whether it is a stream, the option how."""
    if not _stream(body.get("stream")):
        return "json"
    return "sse" if FORMATTERS[model.option.output_formatter or "jsonlines"] == "sse" else "jsonlines"


def _streams(inputs: Input, model: ModelConfig) -> bool:
    """Whether a failed request asked for a stream; False if it can't be read."""
    try:
        if media_type(inputs.get_property("content-type") or "") in PLAIN:
            body = fields_of(inputs, model.option.max_request_values)
        else:
            body = _asked(inputs.get_as_bytes() or b"")
        if _is_openai(body):
            return _openai_framing(body, model) != "json"
        asked = _parameters(body).get("output_formatter")
        return _framing(LmiParameters(output_formatter=asked if asked in FORMATTERS else None), body, model) != "json"
    except (ServingError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError):
        return False


def _asked(data: bytes) -> dict[str, Any]:
    """The part of a JSON body that says how to frame the answer."""
    asked = msgspec.json.decode(data, type=_Asked)
    given = {name: True for name in ("messages", "prompt") if bytes(getattr(asked, name)) != bytes(_NULL)}
    parameters = None if asked.parameters is None else msgspec.structs.asdict(asked.parameters)
    return {"stream": asked.stream, "parameters": parameters, **given}
