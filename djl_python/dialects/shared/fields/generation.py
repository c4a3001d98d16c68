"""The generation fields of OpenAI's requests and of those modelled on them, whatever their prompt.

Runs in the worker. Sources: OpenAI's API reference (chat completions, completions), LMI's chat schema 0.31, TGI 2.3.2's
OpenAPI document, and, below "extensions", the fields that vLLM's clients send.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from ....config import ModelConfig
from ....core import budgets
from ....core.errors import ParameterError
from ....core.turns.precedence import MAX_PRIORITY
from ....core.types import Grammar, SamplingParams, TextOptions
from .sampling import DrawFields
from .seeds import engine_seed, is_seed
from .structured_output import Flag, StructuredOutputFields, Text
from .word_lists import excess, excess_ids

MAX_ALTERNATIVES: Final = 20
#: More tokens than any context has: the context ends the answer.
UNBOUNDED: Final = 2**31 - 1
#: Temperature 0 and top_p 0 have an effect: they make a request greedy.
_DRAW: Final = DrawFields(
    {"temperature": (0.0, 1.0), "top_k": (-1, 0), "top_p": (0.0, 1.0), "min_p": (0.0,), "typical_p": (1.0,)}
)
#: Fields that never have an effect here, with the values that ask for the default behaviour.
_NEVER: Final[Mapping[str, tuple[str, ...]]] = {
    "service_tier": ("auto", "default"),
    "prompt_cache_key": (),
    "prompt_cache_retention": (),
    "prediction": (),
}

OneOrMore = Annotated[int, Meta(ge=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Share = Annotated[float, Meta(gt=0, le=1)]
Priority = Annotated[
    int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY, description="Lower goes first, among requests of one tenant.")
]
Salt = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=budgets.SALT_CHARS.most,
        description="Only requests with the same one reuse what this one's prompt has put into the prefix cache.",
    ),
]
TokenId = Annotated[int, Meta(ge=0)]
Alternatives = Annotated[int, Meta(ge=0, le=MAX_ALTERNATIVES)]


class StreamOptions(msgspec.Struct, frozen=True):
    """Options of a stream: `include_usage` adds a last chunk with the token counts; with vLLM's
    `continuous_usage_stats` too, every chunk has the counts so far. `include_obfuscation` has no effect.
    """

    include_usage: Flag = None
    continuous_usage_stats: Flag = None
    include_obfuscation: Flag = None


class GenerationFields(StructuredOutputFields, frozen=True, kw_only=True):
    """The fields that chats and completions share. None: not given, or given as null."""

    model: (
        Annotated[
            str,
            Meta(description="Which of several loaded models, or which LoRA adapter; other names mean the only model."),
        ]
        | None
    ) = None
    max_tokens: (
        Annotated[int, Meta(ge=0, description="Tokens to generate at most; 0 only where a prompt is echoed.")] | None
    ) = None
    temperature: (
        Annotated[float, Meta(ge=0, le=2, description="0: greedy. Unset: the checkpoint's, else 1.")] | None
    ) = None
    top_p: Annotated[float, Meta(ge=0, le=1, description="Draw from the most likely tokens of this mass.")] | None = (
        None
    )
    n: Annotated[int, Meta(ge=1, le=budgets.CHOICES.most, description="Answers to give.")] | None = None
    stop: Annotated[Text | list[Text], Meta(description="The answer ends before such a text.")] | None = None
    seed: Annotated[int, Meta(description="Of the random numbers, 64 bits; drawn if absent.")] | None = None
    logit_bias: (
        Annotated[
            dict[TokenId, Annotated[float, Meta(ge=-100, le=100)]],
            Meta(
                description="Added to the logits of these token ids, -100 to 100.",
                extra_json_schema={"propertyNames": {"pattern": "^[0-9]+$"}},
            ),
        ]
        | None
    ) = None
    presence_penalty: Annotated[Penalty, Meta(description="Lowers logits of generated tokens.")] | None = None
    frequency_penalty: Annotated[Penalty, Meta(description="The same, times the token's count.")] | None = None
    stream: Annotated[bool, Meta(description="Send the answer in pieces, as server-sent events.")] | None = None
    stream_options: StreamOptions | None = None

    # Labels for the client's own records, without effect on the answer.
    user: Any = None
    metadata: Any = None
    store: Any = None
    safety_identifier: Any = None

    # Hints about the speed of OpenAI's service, without effect here.
    service_tier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    prediction: Any = None

    # Extensions.
    top_k: Annotated[int, Meta(ge=-1, description="-1 and 0: off.")] | None = None
    min_p: (
        Annotated[
            float, Meta(ge=0, le=1, description="Draw from tokens this likely, relative to the likeliest; 0: off.")
        ]
        | None
    ) = None
    typical_p: Annotated[Share, Meta(description="Typical decoding's mass; 1: off.")] | None = None
    repetition_penalty: (
        Annotated[float, Meta(gt=0, description="Above 1, makes tokens of the prompt and the answer less likely.")]
        | None
    ) = None
    min_tokens: Annotated[int, Meta(ge=0, description="Tokens before which the answer does not end.")] | None = None
    ignore_eos: Annotated[bool, Meta(description="Go on behind an end-of-sequence token.")] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(description="The answer ends at one of these tokens.")] | None = None
    bad_words: Annotated[list[Text], Meta(description="Texts that are not generated.")] | None = None
    include_stop_str_in_output: Annotated[bool, Meta(description="End the text with what `stop` found.")] | None = None
    skip_special_tokens: Annotated[bool, Meta(description="Leave special tokens out; true if absent.")] | None = None
    spaces_between_special_tokens: Annotated[bool, Meta(description="Spaces between them; true if absent.")] | None = (
        None
    )
    priority: Priority | None = None
    cache_salt: Salt | None = None
    truncate_prompt_tokens: (
        Annotated[OneOrMore, Meta(description="Keep this many tokens of the prompt's end.")] | None
    ) = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with its token counts."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """Whether every chunk of a stream has the token counts so far."""
        return self.include_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)

    @property
    def stop_sequences(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


def check_fields(fields: GenerationFields, max_new_tokens: int, called: Callable[[str], str] = str) -> None:
    """Check what the types and bounds do not cover.

    Args:
        called: gives the path that the API has for one of these fields.

    Raises:
        ParameterError: a field is wrong; the error names it.
    """
    if fields.seed is not None and not is_seed(fields.seed):
        raise ParameterError(f"{called('seed')}: expected a 64-bit integer, got {fields.seed}", called("seed"))
    for name, words in (("stop", fields.stop_sequences), ("bad_words", fields.bad_words or ())):
        if wrong := excess(words):
            raise ParameterError(f"{called(name)}: {wrong}", called(name))
    for name, token_ids in (("stop_token_ids", fields.stop_token_ids), ("logit_bias", fields.logit_bias)):
        if wrong := excess_ids(token_ids or ()):
            raise ParameterError(f"{called(name)}: {wrong}", called(name))
    if (fields.min_tokens or 0) > max_new_tokens:
        raise ParameterError(
            f"{called('min_tokens')}: expected at most max_tokens ({max_new_tokens}), got {fields.min_tokens}",
            called("min_tokens"),
        )
    if fields.stream_options is not None and not fields.stream:
        raise ParameterError(f"{called('stream_options')}: only with stream=true", called("stream_options"))


def sampling_params(
    fields: GenerationFields,
    model: ModelConfig,
    *,
    max_new_tokens: int,
    grammar: Grammar | None = None,
    top_logprobs: int = 0,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """The engine's sampling parameters. The checkpoint's generation_config fills in what the client leaves open.

    Decoding is greedy with temperature 0 (or top_p 0, which leaves one token to draw from), and without a temperature
    if the generation_config says `"do_sample": false`. Parameters of the draw stay neutral for greedy requests.
    """
    defaults = model.checkpoint.generation_config
    draws = samples(fields, model)
    given: dict[str, Any] = {
        "min_new_tokens": fields.min_tokens,
        "repetition_penalty": _open(fields.repetition_penalty, defaults, "repetition_penalty"),
        "presence_penalty": fields.presence_penalty,
        "frequency_penalty": fields.frequency_penalty,
        "ignore_eos": fields.ignore_eos,
        "logit_bias": fields.logit_bias,
    }
    if draws:
        given |= {name: _open(None, defaults, name) for name in _DRAW.neutral} | _DRAW.given(fields)
        given["top_k"] = int(given["top_k"] or 0)
        given["seed"] = engine_seed(fields.seed)
    return SamplingParams(
        **{name: value for name, value in given.items() if value is not None},
        max_new_tokens=max_new_tokens,
        do_sample=draws,
        stop_token_ids=tuple(dict.fromkeys(fields.stop_token_ids or ())),
        grammar=grammar,
        top_logprobs=top_logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def samples(fields: GenerationFields, model: ModelConfig) -> bool:
    """Whether to sample; if not, decoding is greedy."""
    if fields.temperature == 0 or fields.top_p == 0:
        return False
    return fields.temperature is not None or model.checkpoint.generation_config.get("do_sample") is not False


def _open(given: float | None, defaults: dict[str, Any], name: str) -> float | None:
    """The client's value, else the checkpoint's if it is a positive, finite number, else None."""
    if given is not None:
        return given
    value = defaults.get(name)
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
    return value if usable else None


def without_effect(fields: GenerationFields, model: ModelConfig) -> list[str]:
    """The fields that were given and have no effect, never or only because decoding is greedy."""
    never = [name for name, neutral in _NEVER.items() if getattr(fields, name) not in (None, *neutral)]
    return never if samples(fields, model) else never + _DRAW.ignored(fields)


def text_options(fields: GenerationFields) -> TextOptions:
    """The detokenizer's options."""
    names = ("include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens")
    given = {name: value for name in names if (value := getattr(fields, name)) is not None}
    return TextOptions(**given, stop_sequences=fields.stop_sequences)
