"""The generation fields of OpenAI's requests and of those modelled on them, whatever their prompt.

Runs in the worker. Sources: OpenAI's API reference (chat completions, completions), LMI's chat schema 0.31, TGI 2.3.2's
OpenAPI document, and, below "extensions", the fields that vLLM's clients send.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from ....config import ModelConfig
from ....core.errors import ParameterError
from ....core.types import Grammar, SamplingParams, TextOptions
from ....formats.json_framing import encode_json
from ....formats.json_schema import check, closed
from ..request_body import shown
from .sampling import DrawFields
from .seeds import engine_seed, is_seed
from .sequence_limits import MAX_CHOICES
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

#: vLLM's fields that restrict the text in ways that are not served. Ignored like other unknown fields, they would leave
#: it just any text.
_RESTRICTIONS: Final = ("guided_grammar", "allowed_token_ids")

Flag = bool | None
OneOrMore = Annotated[int, Meta(ge=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Share = Annotated[float, Meta(gt=0, le=1)]
TokenId = Annotated[int, Meta(ge=0)]
Text = Annotated[str, Meta(min_length=1)]
Alternatives = Annotated[int, Meta(ge=0, le=MAX_ALTERNATIVES)]
Choices = Annotated[list[Text], Meta(min_length=1, description="The text is one of these.")]


# ------------------------------------------------------------------------------------------------ structured output


class TextFormat(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """Any text."""


class NamedSchema(msgspec.Struct, frozen=True):
    """A JSON schema and its name. It is always enforced, `strict` or not."""

    name: str = ""
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class JsonSchemaFormat(msgspec.Struct, frozen=True, tag_field="type", tag="json_schema"):
    """JSON that is an instance of a schema; `value` is TGI's name for it."""

    json_schema: NamedSchema | None = None
    value: dict[str, Any] | None = None


class JsonObjectFormat(msgspec.Struct, frozen=True, tag_field="type", tag="json_object"):
    """A JSON object; with TGI's `value`, or with `schema`, which LangChain sends, one that is an instance of that."""

    value: dict[str, Any] | str | None = None
    schema: dict[str, Any] | None = None


class JsonFormat(msgspec.Struct, frozen=True, tag_field="type", tag="json"):
    """TGI's: JSON that is an instance of a schema, which may be written as a string."""

    value: dict[str, Any] | str


class RegexFormat(msgspec.Struct, frozen=True, tag_field="type", tag="regex"):
    """TGI's: text that matches a regular expression."""

    value: Text


class StructuredOutputs(msgspec.Struct, frozen=True):
    """vLLM's: what the text has to be; one of these."""

    json: dict[str, Any] | str | None = None
    regex: Text | None = None
    choice: Choices | None = None
    json_object: Flag = None


ResponseFormat = TextFormat | JsonSchemaFormat | JsonObjectFormat | JsonFormat | RegexFormat


class StreamOptions(msgspec.Struct, frozen=True):
    """`include_usage` adds a last chunk with the token counts. `include_obfuscation` has no effect."""

    include_usage: Flag = None
    include_obfuscation: Flag = None


# ------------------------------------------------------------------------------------------------ the fields


class GenerationFields(msgspec.Struct, frozen=True, kw_only=True):
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
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES, description="Answers to give.")] | None = None
    stop: Annotated[Text | list[Text], Meta(description="The answer ends before such a text.")] | None = None
    seed: Annotated[int, Meta(description="Of the random numbers, 64 bits; drawn if absent.")] | None = None
    logit_bias: (
        Annotated[
            dict[TokenId, Annotated[float, Meta(ge=-100, le=100)]],
            Meta(description="Added to the logits of these token ids, -100 to 100."),
        ]
        | None
    ) = None
    presence_penalty: Annotated[Penalty, Meta(description="Lowers logits of generated tokens.")] | None = None
    frequency_penalty: Annotated[Penalty, Meta(description="The same, times the token's count.")] | None = None
    stream: Annotated[bool, Meta(description="Send the answer in pieces, as server-sent events.")] | None = None
    stream_options: StreamOptions | None = None
    response_format: Annotated[ResponseFormat, Meta(description="Text, JSON, or an instance of a schema.")] | None = (
        None
    )

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
    truncate_prompt_tokens: (
        Annotated[OneOrMore, Meta(description="Keep this many tokens of the prompt's end.")] | None
    ) = None
    guided_json: Annotated[dict[str, Any] | str, Meta(description="vLLM's: a JSON schema for the text.")] | None = None
    guided_regex: Annotated[Text, Meta(description="vLLM's: a regular expression for the text.")] | None = None
    guided_choice: Choices | None = None
    structured_outputs: StructuredOutputs | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with its token counts."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def stop_sequences(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


def refuse_restrictions(body: Mapping[str, Any], path: str = "") -> None:
    """Refuse fields that restrict the text as nothing here can. `path` is what comes before their names.

    Raises:
        ParameterError: there is one.
    """
    for name in _RESTRICTIONS:
        if body.get(name) is not None:
            expected = "guided_json, guided_regex or guided_choice" if name.startswith("guided") else "logit_bias"
            raise ParameterError(f"{path}{name}: not served, expected {expected}", f"{path}{name}")


def check_fields(fields: GenerationFields, max_new_tokens: int) -> None:
    """Check what the types and bounds do not cover.

    Raises:
        ParameterError: a field is wrong; the error names it.
    """
    if fields.seed is not None and not is_seed(fields.seed):
        raise ParameterError(f"seed: expected a 64-bit integer, got {fields.seed}", "seed")
    for name, words in (("stop", fields.stop_sequences), ("bad_words", fields.bad_words or ())):
        if wrong := excess(words):
            raise ParameterError(f"{name}: {wrong}", name)
    for name, token_ids in (("stop_token_ids", fields.stop_token_ids), ("logit_bias", fields.logit_bias)):
        if wrong := excess_ids(token_ids or ()):
            raise ParameterError(f"{name}: {wrong}", name)
    if (fields.min_tokens or 0) > max_new_tokens:
        raise ParameterError(
            f"min_tokens: expected at most max_tokens ({max_new_tokens}), got {fields.min_tokens}", "min_tokens"
        )
    if fields.stream_options is not None and not fields.stream:
        raise ParameterError("stream_options: only with stream=true", "stream_options")


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


# ------------------------------------------------------------------------------------------------ grammar


def grammar_of(fields: GenerationFields) -> Grammar | None:
    """The grammar that the answer must match, or None.

    Raises:
        ParameterError: a schema is invalid, or several fields ask for a grammar.
    """
    found = grammars_of(fields)
    if len(found) > 1:
        first, second = list(found)[:2]
        raise ParameterError(f"{second}: not together with {first}", second)
    return next(iter(found.values()), None)


def grammars_of(fields: GenerationFields) -> dict[str, Grammar]:
    """The grammars that fields ask for, by the field's name.

    Raises:
        ParameterError: a schema is invalid.
    """
    outputs = fields.structured_outputs or StructuredOutputs()
    asked = {
        "response_format": _format_grammar(fields.response_format),
        "guided_json": _schema_grammar(fields.guided_json, "guided_json"),
        "guided_regex": _regex_grammar(fields.guided_regex, "guided_regex"),
        "guided_choice": _choice_grammar(fields.guided_choice, "guided_choice"),
        "structured_outputs.json": _schema_grammar(outputs.json, "structured_outputs.json"),
        "structured_outputs.regex": _regex_grammar(outputs.regex, "structured_outputs.regex"),
        "structured_outputs.choice": _choice_grammar(outputs.choice, "structured_outputs.choice"),
        "structured_outputs.json_object": Grammar("json_object") if outputs.json_object else None,
    }
    found = {name: grammar for name, grammar in asked.items() if grammar is not None}
    if fields.structured_outputs is not None and not any(name.startswith("structured_outputs") for name in found):
        # vLLM has other forms, which would be ignored like any unknown field, and the text would be just any.
        raise ParameterError("structured_outputs: expected json, regex, choice or json_object", "structured_outputs")
    return found


def _format_grammar(format_: ResponseFormat | None) -> Grammar | None:
    match format_:
        case None | TextFormat():
            return None
        case RegexFormat(value=regex):
            return _regex_grammar(regex, "response_format.value")
        case JsonObjectFormat(value=None, schema=dict(schema)):
            return _schema_grammar(schema, "response_format.schema")
        case JsonObjectFormat(value=None):
            return Grammar("json_object")
        case JsonSchemaFormat(json_schema=None, value=None):
            field = "response_format.json_schema"
            raise ParameterError(f"{field}: required, expected an object", field)
        case JsonSchemaFormat(json_schema=NamedSchema(schema=schema)):
            return _schema_grammar(schema or {}, "response_format.json_schema.schema")
        case JsonSchemaFormat(value=dict(value)):
            # TGI's newer form wraps the schema as OpenAI's does.
            wrapped = value.get("schema")
            return _schema_grammar(wrapped if isinstance(wrapped, dict) else value, "response_format.value")
        case JsonObjectFormat(value=dict() | str() as value) | JsonFormat(value=value):
            return _schema_grammar(value, "response_format.value")
    raise AssertionError(f"{format_} is not a response format")


def _regex_grammar(regex: str | None, field: str) -> Grammar | None:
    return None if regex is None else Grammar("regex", regex, field)


def _choice_grammar(choices: list[str] | None, field: str) -> Grammar | None:
    if choices is None:
        return None
    if wrong := excess(choices):
        raise ParameterError(f"{field}: {wrong}", field)
    return Grammar("regex", "|".join("".join(map(_literal, choice)) for choice in choices), field)


def _literal(character: str) -> str:
    """A character in a regular expression."""
    return character if character.isalnum() or not character.isascii() else f"\\x{ord(character):02x}"


def _schema_grammar(schema: dict[str, Any] | str | None, field: str) -> Grammar | None:
    if schema is None:
        return None
    if isinstance(schema, str):
        try:
            parsed = msgspec.json.decode(schema)
        except (msgspec.DecodeError, RecursionError) as exc:
            why = "nested too deeply" if isinstance(exc, RecursionError) else f"not JSON: {exc}"
            raise ParameterError(f"{field}: expected a JSON schema, got a string that is {why}", field) from exc
        if not isinstance(parsed, dict):
            raise ParameterError(f"{field}: expected a JSON schema, got {shown(parsed)}", field)
        schema = parsed
    check(schema, field)
    return Grammar("json_schema", encode_json(closed(schema)).decode(), field=field)
