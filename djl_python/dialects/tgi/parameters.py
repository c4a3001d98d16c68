"""TGI's generation parameters: the router's rules and messages, and their translation for the engine.

Runs in the worker. Source: TGI 2.3.2's OpenAPI document and its router's validation. top_p and typical_p of exactly
1.0 switch the rule off and are accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ...config import Options
from ...core.errors import ParameterError
from ...core.types import MAX_SEED, Branching, Grammar, SamplingParams
from ..shared.fields.sampling import DrawFields
from ..shared.fields.seeds import engine_seed
from ..shared.fields.structured_output import StructuredOutputFields, grammar_of
from ..shared.fields.word_lists import excess
from .types import GenerateParameters

DEFAULT_MAX_NEW_TOKENS: Final = 100

#: The router's messages for numbers that are out of their type's range.
_REFUSALS: Final = {
    "frequency_penalty": "`frequency_penalty` must be >= -2.0 and <= 2.0",
    "max_new_tokens": "`max_new_tokens` must be strictly positive",
    "repetition_penalty": "`repetition_penalty` must be strictly positive",
    "temperature": "`temperature` must be strictly positive",
    "top_k": "`top_k` must be strictly positive",
    "top_p": "`top_p` must be > 0.0 and < 1.0",
    "typical_p": "`typical_p` must be > 0.0 and < 1.0",
}
_WHOLE: Final = ("max_new_tokens", "top_k")
_DRAW: Final = DrawFields({"temperature": (1.0,), "top_k": (), "top_p": (1.0,), "typical_p": (1.0,)})


def as_router_error(error: ParameterError, parameters: Any) -> ParameterError:
    """An error about a type's bounds in the router's words; other errors unchanged."""
    name = (error.field or "").removeprefix("parameters.")
    value = parameters.get(name) if isinstance(parameters, Mapping) else None
    numbers = int if name in _WHOLE else (int, float)
    if name in _REFUSALS and isinstance(value, numbers) and not isinstance(value, bool):
        return ParameterError(_REFUSALS[name], error.field)
    return error


def check(parameters: GenerateParameters, option: Options, *, stream: bool) -> None:
    """Check the rules that the types do not cover.

    Raises:
        ParameterError: a rule is broken; the first in the router's order is reported.
    """
    best_of = 1 if parameters.best_of is None else parameters.best_of
    if stream and best_of > 1:
        raise _refusal("best_of", "`best_of` != 1 is not supported when streaming tokens")
    if stream and parameters.decoder_input_details:
        raise _refusal(
            "decoder_input_details", "`decoder_input_details` == true is not supported when streaming tokens"
        )
    _check_best_of(parameters, best_of, option)
    stops = len(parameters.stop or ())
    if stops > option.max_stop_sequences:
        raise _refusal("stop", f"`stop` supports up to {option.max_stop_sequences} stop sequences. Given: {stops}")
    if wrong := excess(parameters.stop or ()):
        raise _refusal("stop", f"`stop`: {wrong}")
    if parameters.seed is not None and not 0 <= parameters.seed <= MAX_SEED:
        raise _refusal("seed", f"`seed` must be >= 0 and <= 2^64-1. Given: {parameters.seed}")
    top_n = parameters.top_n_tokens or 0
    if not 0 <= top_n <= option.max_top_n_tokens:
        raise _refusal("top_n_tokens", f"`top_n_tokens` must be >= 0 and <= {option.max_top_n_tokens}. Given: {top_n}")
    check_truncate(parameters.truncate, option)


def _check_best_of(parameters: GenerateParameters, best_of: int, option: Options) -> None:
    if option.max_best_of == 1 and best_of != 1:
        raise _refusal("best_of", "`best_of` != 1 is not allowed for this endpoint")
    if not 0 < best_of <= option.max_best_of:
        raise _refusal("best_of", f"`best_of` must be > 0 and <= {option.max_best_of}. Given: {best_of}")
    if best_of == 1:
        return
    if not parameters.do_sample and not _DRAW.given(parameters):
        raise _refusal("best_of", "you must use sampling when `best_of` is > 1")
    if parameters.seed is not None:
        raise _refusal("seed", "`seed` must not be set when `best_of` > 1")


def check_truncate(truncate: int | None, option: Options) -> None:
    """Check `truncate`. Its upper limit is only known here if an option sets it; the prompt is checked later anyway.

    Raises:
        ParameterError: it is out of range.
    """
    longest = longest_prompt(option)
    if truncate is None or (truncate > 0 and (longest is None or truncate <= longest)):
        return
    less = "" if longest is None else f" and less than {longest}"
    raise _refusal("truncate", f"`truncate` must be strictly positive{less}. Given: {truncate}")


def longest_prompt(option: Options, max_model_len: int | None = None) -> int | None:
    """The most tokens of a prompt: option.max_input_tokens or one less than the context, whichever is less; None if
    neither is known."""
    context = option.max_model_len if max_model_len is None else max_model_len
    limits = [option.max_input_tokens, None if context is None else context - 1]
    return min((limit for limit in limits if limit is not None), default=None)


def _refusal(name: str, message: str) -> ParameterError:
    return ParameterError(message, f"parameters.{name}")


def without_effect(parameters: GenerateParameters, *, details: bool, stream: bool) -> list[str]:
    """Names of the parameters that are accepted and have no effect in this request."""
    names = []
    if parameters.watermark:
        names.append("watermark")
    if not samples(parameters):
        names += _DRAW.ignored(parameters)
    if parameters.top_n_tokens and not details and not stream:
        names.append("top_n_tokens")
    return names


def samples(parameters: GenerateParameters) -> bool:
    """Whether to sample; if not, decoding is greedy."""
    return bool(parameters.do_sample or (parameters.best_of or 1) > 1 or _DRAW.asked(parameters))


def sampling_params(parameters: GenerateParameters) -> SamplingParams:
    """The engine's sampling parameters.

    Raises:
        ParameterError: the grammar is invalid.
    """
    draws = samples(parameters)
    given = {
        name: value
        for name in ("repetition_penalty", "frequency_penalty")
        if (value := getattr(parameters, name)) is not None
    }
    if draws:
        given |= _DRAW.given(parameters)
    return SamplingParams(
        **given,
        max_new_tokens=DEFAULT_MAX_NEW_TOKENS if parameters.max_new_tokens is None else parameters.max_new_tokens,
        do_sample=draws,
        seed=engine_seed(parameters.seed) if draws else 0,
        grammar=_grammar(parameters),
        top_logprobs=parameters.top_n_tokens or 0,
        prompt_logprobs=0 if parameters.decoder_input_details else None,
    )


def branching(parameters: GenerateParameters) -> Branching:
    """All `best_of` sequences are returned: the best as the answer, the others in its details."""
    count = parameters.best_of or 1
    return Branching(n=count, best_of=count, ranked=count > 1)


def _grammar(parameters: GenerateParameters) -> Grammar | None:
    """The engine's grammar; the parameter has the forms of a chat's response_format."""
    try:
        grammar = grammar_of(StructuredOutputFields(response_format=parameters.grammar))
    except ParameterError as error:
        cause = error.message.removeprefix(f"{error.field}: ")
        raise _refusal("grammar", f"grammar is not valid: {cause}") from error
    # Without a field, the engine's message about an invalid grammar is passed on as it is: it is the router's.
    return None if grammar is None else msgspec.structs.replace(grammar, field="")
