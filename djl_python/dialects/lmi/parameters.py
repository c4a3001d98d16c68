"""LMI's generation parameters: every name of the schema's tables, with its type, bounds and aliases.

Runs in the worker. Source: LMI's inference schema 0.31 (common, LMI-Dist, vLLM and TensorRT-LLM tables).
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from ...config import ModelConfig
from ...core import budgets
from ...core.errors import ParameterError
from ...core.turns.precedence import MAX_PRIORITY
from ...core.types import Branching, SamplingParams, TextOptions, Translation
from ..shared.fields.sampling import DrawFields
from ..shared.fields.seeds import engine_seed, is_seed
from ..shared.fields.structured_output import (
    ResponseFormat,
    StructuredOutputFields,
    StructuredOutputs,
    refuse_restrictions,
)
from ..shared.fields.word_lists import excess, excess_ids
from ..shared.request_body import shown
from .structured_output import grammar_asked

DEFAULT_MAX_NEW_TOKENS: Final = 30
MAX_ALTERNATIVES: Final = 20
#: Beam scores are divided by the length to this power; with a higher one they would leave the range of a float.
MAX_LENGTH_PENALTY: Final = 40

#: Alias -> parameter. Both may be given if they agree.
ALIASES: Final = {
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "min_length": "min_new_tokens",
    "ignore_eos_token": "ignore_eos",
    "stop": "stop_sequences",
}

Flag = Annotated[bool, Meta(description="true or false")]
AboveZero = Annotated[float, Meta(gt=0, description="a number > 0")]
Temperature = Annotated[float, Meta(ge=0, description="a number >= 0 (0: greedy)")]
Nucleus = Annotated[float, Meta(ge=0, le=1, description="a number >= 0 and <= 1 (0: greedy)")]
Share = Annotated[float, Meta(gt=0, le=1, description="a number > 0 and <= 1")]
Penalty = Annotated[float, Meta(ge=-2, le=2, description="a number >= -2 and <= 2")]
OneOrMore = Annotated[int, Meta(ge=1, description="an integer >= 1")]
Sequences = Annotated[
    int, Meta(ge=1, le=budgets.CHOICES.most, description=f"an integer >= 1 and <= {budgets.CHOICES.most}")
]
Priority = Annotated[
    int,
    Meta(
        ge=-MAX_PRIORITY,
        le=MAX_PRIORITY,
        description=f"an integer >= -{MAX_PRIORITY} and <= {MAX_PRIORITY}, lower first",
    ),
]
Salt = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=budgets.SALT_CHARS.most,
        description=f"a string of 1 to {budgets.SALT_CHARS.most} characters",
    ),
]
ZeroOrMore = Annotated[int, Meta(ge=0, description="an integer >= 0")]
Alternatives = Annotated[int, Meta(ge=0, le=MAX_ALTERNATIVES)]
Text = Annotated[str, Meta(min_length=1)]
Language = Annotated[Text, Meta(description="a language as the tokenizer names it")]
Form = Annotated[
    ResponseFormat,
    Meta(description="an object with a type (json_schema, json_object, json, regex or text) and its value"),
]


class LmiParameters(msgspec.Struct, frozen=True, kw_only=True):
    """`parameters` of an LMI request. None: not given, or given as null."""

    details: Flag | None = None
    return_full_text: Flag | None = None
    decoder_input_details: Flag | None = None
    output_formatter: Annotated[str, Meta(description="json, jsonlines or sse")] | None = None

    max_new_tokens: OneOrMore | None = None
    min_new_tokens: ZeroOrMore | None = None
    truncate: OneOrMore | None = None
    priority: Priority | None = None
    cache_salt: Salt | None = None
    ignore_eos: Flag | None = None
    stop_sequences: (
        Annotated[bool | Text | list[Text], Meta(description="a string or a list of strings, none of them empty")]
        | None
    ) = None
    stop_token_ids: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(description="a list of integers >= 0")] | None = (
        None
    )
    include_stop_str_in_output: Flag | None = None
    skip_special_tokens: Flag | None = None
    spaces_between_special_tokens: Flag | None = None
    bad_sequences: Annotated[list[Text], Meta(description="a list of strings, none of them empty")] | None = None

    do_sample: Flag | None = None
    seed: Annotated[int, Meta(description="a 64-bit integer")] | None = None
    temperature: Temperature | None = None
    top_k: Annotated[int, Meta(ge=-1, description="an integer >= -1 (-1 and 0: off)")] | None = None
    top_p: Nucleus | None = None
    min_p: Annotated[float, Meta(ge=0, le=1, description="a number >= 0 and <= 1")] | None = None
    typical_p: Share | None = None
    repetition_penalty: AboveZero | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None

    logprobs: (
        Annotated[bool | Alternatives, Meta(description=f"an integer >= 0 and <= {MAX_ALTERNATIVES}, or true or false")]
        | None
    ) = None
    prompt_logprobs: (
        Annotated[bool | Alternatives, Meta(description=f"an integer >= 0 and <= {MAX_ALTERNATIVES}, or true or false")]
        | None
    ) = None
    top_n_tokens: Annotated[Alternatives, Meta(description=f"an integer >= 0 and <= {MAX_ALTERNATIVES}")] | None = None

    n: Sequences | None = None
    best_of: Sequences | None = None
    num_beams: Sequences | None = None
    length_penalty: (
        Annotated[
            float,
            Meta(
                ge=-MAX_LENGTH_PENALTY,
                le=MAX_LENGTH_PENALTY,
                description=f"a number >= -{MAX_LENGTH_PENALTY} and <= {MAX_LENGTH_PENALTY}",
            ),
        ]
        | None
    ) = None
    early_stopping: Flag | None = None

    src_lang: Language | None = None
    tgt_lang: Language | None = None
    forced_bos_token_id: ZeroOrMore | None = None

    response_format: Form | None = None
    grammar: Form | None = None
    guided_json: Annotated[dict[str, Any] | str, Meta(description="a JSON schema")] | None = None
    guided_regex: Annotated[Text, Meta(description="a regular expression")] | None = None
    guided_choice: (
        Annotated[list[Text], Meta(min_length=1, description="a non-empty list of strings, none of them empty")] | None
    ) = None
    structured_outputs: (
        Annotated[StructuredOutputs, Meta(description="an object with json, regex, choice, grammar, json_object")]
        | None
    ) = None
    json_schema: Annotated[dict[str, Any] | str, Meta(description="a JSON schema")] | None = None
    regex: Annotated[Text, Meta(description="a regular expression")] | None = None
    ebnf: Annotated[Text, Meta(description="a grammar in GBNF")] | None = None
    guided_grammar: Annotated[Text, Meta(description="a grammar in GBNF")] | None = None


_HINTS: Final = typing.get_type_hints(LmiParameters, include_extras=True)
_DRAW: Final = DrawFields(
    {"temperature": (0.0, 1.0), "top_k": (-1, 0), "top_p": (0.0, 1.0), "min_p": (0.0,), "typical_p": (1.0,)}
)
#: The defaults of requests that sample, by option.rolling_batch: the schema's table of each engine.
_DRAW_DEFAULTS: Final[dict[str, dict[str, Any]]] = {"trtllm": {"top_k": 5, "top_p": 0.85}}
_FLAGS: Final = frozenset(name for name, hint in _HINTS.items() if Flag in typing.get_args(hint))
_INTEGERS: Final = frozenset(
    name for name, hint in _HINTS.items() if any(typing.get_args(part)[:1] == (int,) for part in typing.get_args(hint))
)
#: Flags as clients that send text write them, in any case.
FLAG_WORDS: Final = {"true": True, "false": False}
#: Parameters that constrain the text.
_GRAMMARS: Final = StructuredOutputFields.__struct_fields__
_BEAMS_ONLY: Final = ("length_penalty", "early_stopping")


def read_parameters(given: Mapping[str, Any], model: ModelConfig) -> tuple[LmiParameters, list[str]]:
    """The checked `parameters`, and the names that have no effect, for x-ignored-parameters.

    Raises:
        ParameterError: one has a wrong type, is out of range, contradicts another, or is unknown under
            option.unknown_parameters=error.
    """
    refuse_restrictions(given, "parameters.")
    known: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    unknown: list[str] = []
    for key, value in given.items():
        if value is None:
            continue
        name = ALIASES.get(key, key)
        if name in _FLAGS and isinstance(value, str):
            value = FLAG_WORDS.get(value.lower(), value)
        if name in _INTEGERS and isinstance(value, float) and value.is_integer():  # as some JSON libraries write them
            value = int(value)
        if name not in _HINTS:
            if len(unknown) < budgets.IGNORED_NAMES:
                unknown.append(key)
        elif name in known and known[name] != value:
            raise ParameterError(
                f"parameters.{key}: the same as parameters.{spelled[name]}, and they differ", f"parameters.{key}"
            )
        else:
            known[name], spelled[name] = value, key
    if unknown and model.option.unknown_parameters == "error":
        field = f"parameters.{unknown[0]}"
        raise ParameterError(f"{field}: no such parameter (option.unknown_parameters=error)", field)
    try:
        parameters = msgspec.convert(known, LmiParameters)
    except msgspec.ValidationError as exc:
        raise _explained(known, spelled, exc) from exc
    _check(parameters, spelled)
    return parameters, unknown + _without_effect(parameters, spelled, model)


def _explained(known: dict[str, Any], spelled: dict[str, str], cause: msgspec.ValidationError) -> ParameterError:
    """`cause` in the client's terms: the path, the expected and the given value."""
    for name, value in known.items():
        try:
            msgspec.convert(value, _HINTS[name])
        except msgspec.ValidationError:
            return _error(spelled[name], f"expected {_expected(name)}, got {shown(value)}")
    return ParameterError(f"parameters: {cause}", "parameters")


def _error(name: str, what: str) -> ParameterError:
    field = f"parameters.{name}"
    return ParameterError(f"{field}: {what}", field)


def _expected(name: str) -> str:
    for part in typing.get_args(_HINTS[name]):
        for meta in getattr(part, "__metadata__", ()):
            if meta.description:
                return str(meta.description)
    raise AssertionError(f"{name} has no description")


def _check(parameters: LmiParameters, spelled: Mapping[str, str]) -> None:
    """Check what the types and bounds do not cover."""
    if parameters.seed is not None and not is_seed(parameters.seed):
        raise _error("seed", f"expected {_expected('seed')}, got {parameters.seed}")
    for name in ("stop_sequences", "bad_sequences"):
        given = getattr(parameters, name)
        if wrong := excess([given] if isinstance(given, str) else [] if isinstance(given, bool) else given or []):
            raise _error(spelled[name], wrong)
    if wrong := excess_ids(parameters.stop_token_ids or ()):
        raise _error("stop_token_ids", wrong)
    longest = max_new_tokens(parameters)
    if (parameters.min_new_tokens or 0) > longest:
        raise _error(
            spelled["min_new_tokens"], f"expected at most max_new_tokens ({longest}), got {parameters.min_new_tokens}"
        )
    _check_sequences(parameters)


def _check_sequences(parameters: LmiParameters) -> None:
    """Check that `n`, `best_of` and `num_beams` agree."""
    n, best_of, num_beams = parameters.n or 1, parameters.best_of, parameters.num_beams or 1
    if num_beams > 1:
        if best_of not in (None, 1, num_beams):
            raise _error("best_of", f"expected num_beams ({num_beams}): beams are the sequences, got {best_of}")
        if n > num_beams:
            raise _error("n", f"expected at most num_beams ({num_beams}), got {n}")
    elif best_of is not None and n > best_of:
        raise _error("n", f"expected at most best_of ({best_of}), got {n}")


def _without_effect(parameters: LmiParameters, spelled: Mapping[str, str], model: ModelConfig) -> list[str]:
    beams = (parameters.num_beams or 1) > 1
    names = [name for name in _BEAMS_ONLY if getattr(parameters, name) is not None and not beams]
    if isinstance(parameters.stop_sequences, bool):
        # In TensorRT-LLM's table `stop` is a flag; the schema does not say what it stops.
        names.append(spelled["stop_sequences"])
    if not samples(parameters, model):
        names += _DRAW.ignored(parameters)
    return names


def samples(parameters: LmiParameters, model: ModelConfig) -> bool:
    """Whether to sample: as `do_sample` says; without it, under option.infer_do_sample, if another parameter asks for
    it. With a temperature or a top_p of 0 there is nothing to draw."""
    if 0.0 in (parameters.temperature, parameters.top_p):
        return False
    if parameters.do_sample is not None or not model.option.infer_do_sample:
        return bool(parameters.do_sample)
    return bool(_DRAW.asked(parameters))


def max_new_tokens(parameters: LmiParameters) -> int:
    """The most tokens to generate."""
    return DEFAULT_MAX_NEW_TOKENS if parameters.max_new_tokens is None else parameters.max_new_tokens


def sampling_params(parameters: LmiParameters, model: ModelConfig) -> SamplingParams:
    """The engine's sampling parameters. Parameters of the draw stay neutral for greedy requests."""
    draws = samples(parameters, model)
    given = {
        name: value
        for name in ("min_new_tokens", "repetition_penalty", "presence_penalty", "frequency_penalty", "ignore_eos")
        if (value := getattr(parameters, name)) is not None
    }
    if draws:
        given |= _DRAW_DEFAULTS.get(model.option.rolling_batch, {}) | _DRAW.given(parameters)
        given["seed"] = engine_seed(parameters.seed)
    return SamplingParams(
        **given,
        max_new_tokens=max_new_tokens(parameters),
        do_sample=draws,
        stop_token_ids=tuple(dict.fromkeys(parameters.stop_token_ids or ())),
        grammar=grammar_asked(**{name: getattr(parameters, name) for name in _GRAMMARS}),
        top_logprobs=max(_count(parameters.logprobs), parameters.top_n_tokens or 0),
        prompt_logprobs=prompt_logprobs(parameters),
    )


def translation(parameters: LmiParameters) -> Translation | None:
    """The languages of the prompt and of the answer; None: the request says nothing of them."""
    given = {name: getattr(parameters, name) for name in Translation.__struct_fields__}
    return Translation(**given) if any(value is not None for value in given.values()) else None


def wants_several(parameters: LmiParameters) -> bool:
    """Whether `n` explicitly asks for more than one sequence."""
    return (parameters.n or 1) > 1


def branching(parameters: LmiParameters, *, details: bool, stream: bool) -> Branching:
    """How many sequences to generate and to return. Without `n`, all are returned if there are details to hold them.

    Raises:
        ParameterError: several sequences in a stream: the best is not known before the end.
    """
    drawn = {name: getattr(parameters, name) or 1 for name in ("n", "best_of", "num_beams")}
    for name, count in drawn.items():
        if stream and count > 1:
            raise _error(name, f"expected 1 where the answer is streamed, got {count}")
    most = max(drawn.values())
    beams: dict[str, Any] = {}
    if drawn["num_beams"] > 1:
        given = {name: getattr(parameters, name) for name in _BEAMS_ONLY}
        beams = {name: value for name, value in given.items() if value is not None}
    return Branching(
        n=parameters.n or (most if details else 1),
        best_of=most,
        ranked=most > 1,
        num_beams=drawn["num_beams"],
        **beams,
    )


def prompt_logprobs(parameters: LmiParameters) -> int | None:
    """How many alternatives to report with each prompt token; None: report no prompt tokens."""
    if parameters.prompt_logprobs is None or parameters.prompt_logprobs is False:
        return 0 if parameters.decoder_input_details else None
    return _count(parameters.prompt_logprobs)


def _count(value: bool | int | None) -> int:
    # true asks for the tokens' own log probabilities, which are always there.
    return 0 if value is None or isinstance(value, bool) else value


def text_options(parameters: LmiParameters) -> TextOptions:
    """The detokenizer's options."""
    stop = parameters.stop_sequences
    given = {
        name: value
        for name in ("include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens")
        if (value := getattr(parameters, name)) is not None
    }
    if stop is None or isinstance(stop, bool):
        return TextOptions(**given)
    return TextOptions(**given, stop_sequences=(stop,) if isinstance(stop, str) else tuple(stop))
