"""Triton's generate extension: its body as a request, and its answers.

Runs in the worker. `generate` always answers with one JSON object, `generate_stream` with an event for each piece of
text. The prompt is not repeated unless `exclude_input_in_output` is false.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from ...config import ModelConfig
from ...core import budgets
from ...core.errors import ParameterError, PayloadError, ServingError
from ...core.types import Delta, GenerateRequest, SamplingParams, TextOptions
from ...formats.json_framing import JSON
from ...formats.json_size import refuse_excess
from ...inputs import Input
from ..shared.base import Parsed
from ..shared.fields.sampling import DrawFields
from ..shared.fields.seeds import engine_seed, is_seed
from ..shared.fields.structured_output import refuse_constraints
from ..shared.fields.word_lists import excess
from ..shared.framing import FramedFormatter
from ..shared.request_body import ignored_header, shown
from ..shared.typed_body import read_body
from .types import (
    DEFAULT_MAX_TOKENS,
    DEFAULT_VERSION,
    TEXT_INPUT,
    TritonError,
    TritonParameters,
    TritonRequest,
    TritonResponse,
)

EVENTS: Final = "text/event-stream; charset=utf-8"

_FIELDS: Final = frozenset(TritonRequest.__struct_fields__)
_KNOWN: Final = frozenset(TritonParameters.__struct_fields__)
#: Parameters that are a text or an array of texts.
_WORDS: Final = frozenset({"stop", "stop_words", "bad_words"})
#: Alias -> parameter. The aliases are another backend's names.
_ALIASES: Final = {
    "max_new_tokens": "max_tokens",
    "min_length": "min_tokens",
    "random_seed": "seed",
    "stop_words": "stop",
}
_DRAW: Final = DrawFields(
    {"temperature": (0.0,), "top_k": (-1, 0, 1), "top_p": (1.0,), "min_p": (0.0,)}, seeds=("seed", "random_seed")
)
#: Parameters that the engine and the detokenizer have under the same name.
_SAMPLING: Final = ("ignore_eos", "repetition_penalty", "presence_penalty", "frequency_penalty")
_TEXT: Final = ("skip_special_tokens", "include_stop_str_in_output")


def parse_generate(inputs: Input, model: ModelConfig, *, stream: bool) -> Parsed:
    """Read a body of `generate` or `generate_stream`.

    Raises:
        PayloadError, ParameterError: with the field's path.
    """
    body = json_object(inputs.body, model.option.max_request_values)
    _refuse_two_prompts(inputs.body)
    given = scalars(body.get("parameters"), lists=_WORDS)
    beside = {name: value for name, value in body.items() if name not in _FIELDS}
    request = read_body(body, TritonRequest, payload=("text_input", "id"))
    parameters, ignored = read_parameters(given, beside, model)
    if not stream and parameters.stream:
        ignored.append("stream")
    (prompt,) = [request.text_input] if isinstance(request.text_input, str) else request.text_input
    generation = generation_of(prompt, parameters, ignored)
    formatter = GenerateFormatter(
        model,
        request.id,
        prompt=prompt if parameters.exclude_input_in_output is False else "",
        events=stream,
        pieces=stream and parameters.stream is not False,
        headers=ignored_header(generation.ignored),
    )
    return Parsed((generation,), formatter)


def json_object(data: bytes, most_values: int) -> dict[str, Any]:
    """A JSON object, whatever the content-type says: Triton does not look at it, and its examples send none.

    Raises:
        TooLargeError: it has more values than `most_values`.
        PayloadError: it is something else.
    """
    if not data.strip():
        raise PayloadError("the request body is empty, expected a JSON object")
    refuse_excess(data, most_values)
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise PayloadError(f"the request body is not valid JSON: {exc}") from exc
    if not isinstance(body, dict):
        raise PayloadError(f"the request body: expected a JSON object, got {shown(body)}")
    return body


def _refuse_two_prompts(data: bytes) -> None:
    """Triton adds an input for each `text_input` that it finds, and refuses a second one; a parser keeps the last.

    Raises:
        PayloadError: an object of the body has the key twice.
    """
    name = f'"{TEXT_INPUT}"'.encode()
    if data.count(name) > 1:  # elsewhere it may be a value
        json.loads(data, object_pairs_hook=_with_one_prompt)


def _with_one_prompt(pairs: list[tuple[str, Any]]) -> None:
    if sum(name == TEXT_INPUT for name, _ in pairs) > 1:
        raise PayloadError(f"{TEXT_INPUT}: given twice", TEXT_INPUT)


def scalars(parameters: Any, lists: Collection[str] = ()) -> dict[str, Any]:
    """A `parameters` object without its nulls.

    Args:
        lists: names of parameters that may be arrays, whose items are not checked here.

    Raises:
        PayloadError: it is not an object, or a value is neither string, number nor boolean.
    """
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise PayloadError(f"parameters: expected an object, got {shown(parameters)}", "parameters")
    for name, value in parameters.items():
        if isinstance(value, dict) or (isinstance(value, list) and name not in lists):
            field = f"parameters.{name}"
            raise PayloadError(f"{field}: expected a string, a number or a boolean, got {shown(value)}", field)
    return {name: value for name, value in parameters.items() if value is not None}


def is_parameter(name: str) -> bool:
    """Whether there is a generation parameter of this name."""
    return name in _KNOWN


def takes_no_text(name: str) -> bool:
    """Whether a parameter is a number or a flag."""
    return is_parameter(name) and name not in _WORDS


def read_parameters(
    given: Mapping[str, Any], beside: Mapping[str, Any], model: ModelConfig
) -> tuple[TritonParameters, list[str]]:
    """The parameters, and the names that have no effect: unknown ones, and those overridden under another name.

    Args:
        given: the values of `parameters`.
        beside: values from elsewhere in the request; `given` overrides them, under either of a parameter's names.

    Raises:
        ParameterError: one has a wrong type, is out of range, or is unknown under option.unknown_parameters=error.
    """
    decided = {_ALIASES.get(name, name) for name in given}
    lost = [name for name, value in beside.items() if value is not None and _ALIASES.get(name, name) in decided]
    values = {**{name: value for name, value in beside.items() if name not in lost}, **given}
    unknown = unknown_parameters(values, model)
    parameters = read_body({name: value for name, value in values.items() if name in _KNOWN}, TritonParameters)
    return parameters, unknown + [name for name in lost if name not in given]


def unknown_parameters(values: Mapping[str, Any], model: ModelConfig) -> list[str]:
    """The unknown names, at most `IGNORED_NAMES`. Nulls don't count.

    Raises:
        ParameterError: there is one, under option.unknown_parameters=error, or one that restricts the text.
    """
    refuse_constraints(values)
    unknown = (name for name, value in values.items() if name not in _KNOWN and value is not None)
    names = list(itertools.islice(unknown, budgets.IGNORED_NAMES))
    if names and model.option.unknown_parameters == "error":
        raise ParameterError(f"{names[0]}: no such parameter (option.unknown_parameters=error)", names[0])
    return names


def generation_of(prompt: str, parameters: TritonParameters, ignored: list[str]) -> GenerateRequest:
    """The request as a GenerateRequest. `ignored` are the names known to have no effect, to which more may be added.

    Raises:
        ParameterError: parameters contradict each other, a seed has too many bits, or a list of words is too long.
    """
    max_tokens = _either(parameters, "max_new_tokens") or DEFAULT_MAX_TOKENS
    min_tokens = _either(parameters, "min_length") or 0
    if min_tokens > max_tokens:
        raise ParameterError(f"min_tokens: expected at most max_tokens ({max_tokens}), got {min_tokens}", "min_tokens")
    seed = seed_of(parameters)
    if seed is not None and not is_seed(seed):
        raise ParameterError(f"seed: expected a 64-bit integer, got {seed}", "seed")
    sampling: dict[str, Any] = {name: value for name in _SAMPLING if (value := getattr(parameters, name)) is not None}
    if _draws(parameters):
        sampling |= _DRAW.given(parameters) | {"seed": engine_seed(seed), "do_sample": True}
    else:
        ignored = [*ignored, *_without_effect(parameters)]
    return GenerateRequest(
        prompt=prompt,
        sampling=SamplingParams(max_new_tokens=max_tokens, min_new_tokens=min_tokens, **sampling),
        text=TextOptions(
            stop_sequences=_words("stop", _either(parameters, "stop_words")),
            **{name: value for name in _TEXT if (value := getattr(parameters, name)) is not None},
        ),
        truncate=parameters.truncate,
        priority=parameters.priority,
        bad_sequences=_words("bad_words", parameters.bad_words),
        ignored=tuple(sorted(set(ignored))),
    )


def seed_of(parameters: TritonParameters) -> int | None:
    """The seed that the client sent, under either name."""
    seed: int | None = _either(parameters, "random_seed")
    return seed


def version_of(model: ModelConfig) -> str:
    """A model's version as Triton's clients see it."""
    return model.version or DEFAULT_VERSION


def _either(parameters: TritonParameters, alias: str) -> Any:
    """The value of a parameter that has an alias, given under either name."""
    name = _ALIASES[alias]
    value, other = getattr(parameters, name), getattr(parameters, alias)
    if value is not None and other is not None and value != other:
        raise ParameterError(f"{alias}: the same as {name}, and they differ", alias)
    return other if value is None else value


def _draws(parameters: TritonParameters) -> bool:
    """Whether to sample: as `do_sample` says, else if any parameter asks for it; never at temperature 0."""
    if parameters.temperature == 0 or parameters.do_sample is not None:
        return bool(parameters.do_sample) and parameters.temperature != 0
    return bool(_DRAW.asked(parameters))


def _without_effect(parameters: TritonParameters) -> list[str]:
    """The given parameters that have no effect in greedy decoding."""
    names = _DRAW.ignored(parameters)
    return [*names, "do_sample"] if parameters.do_sample else names


def _words(name: str, words: str | list[str] | None) -> tuple[str, ...]:
    """The given words without empty strings, which ask for nothing, as in TensorRT-LLM's examples."""
    kept = tuple(word for word in ([words] if isinstance(words, str) else words or ()) if word)
    if wrong := excess(kept):
        raise ParameterError(f"{name}: {wrong}", name)
    return kept


class GenerateFormatter(FramedFormatter):
    """Triton's answers.

    Args:
        prompt: a prefix for the text: the prompt, or nothing.
        events: whether the answer is server-sent events; else one JSON object.
        pieces: whether text is sent as it is generated.
    """

    shows_logprobs = False

    def __init__(
        self,
        model: ModelConfig,
        request_id: str | None,
        *,
        prompt: str,
        events: bool,
        pieces: bool,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__("sse" if events else "json", {"content-type": EVENTS if events else JSON, **headers})
        self.stream = pieces
        self._answer = TritonResponse(
            model_name=model.name,
            model_version=version_of(model),
            text_output="",
            id=request_id or msgspec.UNSET,
        )
        self._held = prompt  # text that has not been written yet
        self._silent = True

    def push(self, delta: Delta) -> bytes:
        self._held += delta.text
        if not self.stream or not self._held:
            return b""
        return self._write()

    def end(self) -> bytes:
        return self._write() if self._held or self._silent else b""

    def error(self, error: ServingError) -> bytes:
        return self._encode(TritonError(error.message))

    def _write(self) -> bytes:
        text, self._held, self._silent = self._held, "", False
        return self._encode(msgspec.structs.replace(self._answer, text_output=text))
