"""Structured output: the fields of OpenAI's requests that constrain the text, and their grammars.

Runs in the worker. Sources: OpenAI's API reference, TGI 2.3.2's OpenAPI document, and the fields that clients of vLLM,
SGLang and llama.cpp send.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from ....core import budgets
from ....core.errors import ParameterError
from ....core.types import Grammar
from ....formats.json_framing import encode_json
from ....formats.json_schema import check, closed
from ..request_body import shown
from .word_lists import excess

#: Other servers' fields with unsupported constraints -> the supported ones. They are refused, because ignoring them
#: would leave the text unconstrained.
_RESTRICTIONS: Final = {
    "allowed_token_ids": "logit_bias",  # vLLM's
    "structural_tag": "json_schema or regex",  # SGLang's
}

Flag = bool | None
Text = Annotated[str, Meta(min_length=1)]
Choices = Annotated[list[Text], Meta(min_length=1, description="The text is one of these.")]


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
    """vLLM's constraints on the text; one of these."""

    json: dict[str, Any] | str | None = None
    regex: Text | None = None
    choice: Choices | None = None
    grammar: Text | None = None
    json_object: Flag = None


ResponseFormat = TextFormat | JsonSchemaFormat | JsonObjectFormat | JsonFormat | RegexFormat


class StructuredOutputFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that constrain the text; at most one of them. None: not given, or given as null."""

    response_format: Annotated[ResponseFormat, Meta(description="Text, JSON, or an instance of a schema.")] | None = (
        None
    )
    guided_json: Annotated[dict[str, Any] | str, Meta(description="vLLM's: a JSON schema for the text.")] | None = None
    guided_regex: Annotated[Text, Meta(description="vLLM's: a regular expression for the text.")] | None = None
    guided_choice: Choices | None = None
    structured_outputs: StructuredOutputs | None = None
    json_schema: (
        Annotated[dict[str, Any] | str, Meta(description="SGLang's and llama.cpp's: a JSON schema for the text.")]
        | None
    ) = None
    regex: Annotated[Text, Meta(description="SGLang's: a regular expression for the text.")] | None = None
    grammar: Annotated[Text, Meta(description="llama.cpp's: a grammar for the text, in GBNF.")] | None = None
    ebnf: Annotated[Text, Meta(description="SGLang's: the same.")] | None = None
    guided_grammar: Annotated[Text, Meta(description="vLLM's: the same.")] | None = None


def refuse_restrictions(body: Mapping[str, Any], path: str = "") -> None:
    """Refuse unsupported constraints.

    Args:
        path: what comes before the fields' names.

    Raises:
        ParameterError: there is one.
    """
    for name, expected in _RESTRICTIONS.items():
        if body.get(name) is not None:
            raise ParameterError(f"{path}{name}: not served, expected {expected}", f"{path}{name}")


def refuse_constraints(
    body: Mapping[str, Any], path: str = "", *, expected: str = "a request to /v1/completions", served: str = ""
) -> None:
    """Refuse every field that restricts the text, whoever's: for places where an API takes none, or one.

    Args:
        path: what comes before the fields' names.
        expected: what restricts the text instead.
        served: the field that the API takes.

    Raises:
        ParameterError: there is one.
    """
    for name in (*StructuredOutputFields.__struct_fields__, *_RESTRICTIONS):
        if name != served and body.get(name) is not None:
            raise ParameterError(f"{path}{name}: not served here, expected {expected}", f"{path}{name}")


def grammar_of(fields: StructuredOutputFields) -> Grammar | None:
    """The grammar that the answer must match, or None.

    Raises:
        ParameterError: a schema is invalid, or several fields ask for a grammar.
    """
    grammars = grammars_of(fields)
    if len(grammars) > 1:
        first, second = list(grammars)[:2]
        raise ParameterError(f"{second}: not together with {first}", second)
    return next(iter(grammars.values()), None)


def grammars_of(fields: StructuredOutputFields) -> dict[str, Grammar]:
    """The grammars that fields ask for, by the field's name.

    Raises:
        ParameterError: a schema is invalid.
    """
    outputs = fields.structured_outputs or StructuredOutputs()
    asked = {
        "response_format": _format_grammar(fields.response_format),
        "guided_json": schema_grammar(fields.guided_json, "guided_json"),
        "guided_regex": _regex_grammar(fields.guided_regex, "guided_regex"),
        "guided_choice": _choice_grammar(fields.guided_choice, "guided_choice"),
        "structured_outputs.json": schema_grammar(outputs.json, "structured_outputs.json"),
        "structured_outputs.regex": _regex_grammar(outputs.regex, "structured_outputs.regex"),
        "structured_outputs.choice": _choice_grammar(outputs.choice, "structured_outputs.choice"),
        "structured_outputs.grammar": _gbnf_grammar(outputs.grammar, "structured_outputs.grammar"),
        "structured_outputs.json_object": Grammar("json_object") if outputs.json_object else None,
        "json_schema": schema_grammar(fields.json_schema, "json_schema"),
        "regex": _regex_grammar(fields.regex, "regex"),
        "grammar": _gbnf_grammar(fields.grammar, "grammar"),
        "ebnf": _gbnf_grammar(fields.ebnf, "ebnf"),
        "guided_grammar": _gbnf_grammar(fields.guided_grammar, "guided_grammar"),
    }
    grammars = {name: grammar for name, grammar in asked.items() if grammar is not None}
    if fields.structured_outputs is not None and not any(name.startswith("structured_outputs") for name in grammars):
        # vLLM has other forms: ignored like an unknown field, they would leave the text unconstrained.
        raise ParameterError(
            "structured_outputs: expected json, regex, choice, grammar or json_object", "structured_outputs"
        )
    return grammars


def _format_grammar(format_: ResponseFormat | None) -> Grammar | None:
    match format_:
        case None | TextFormat():
            return None
        case RegexFormat(value=regex):
            return _regex_grammar(regex, "response_format.value")
        case JsonObjectFormat(value=None, schema=dict(schema)):
            return schema_grammar(schema, "response_format.schema")
        case JsonObjectFormat(value=None):
            return Grammar("json_object")
        case JsonSchemaFormat(json_schema=None, value=None):
            field = "response_format.json_schema"
            raise ParameterError(f"{field}: required, expected an object", field)
        case JsonSchemaFormat(json_schema=NamedSchema(schema=schema)):
            return schema_grammar(schema or {}, "response_format.json_schema.schema")
        case JsonSchemaFormat(value=dict(value)):
            # TGI's newer form wraps the schema as OpenAI's does.
            wrapped = value.get("schema")
            return schema_grammar(wrapped if isinstance(wrapped, dict) else value, "response_format.value")
        case JsonObjectFormat(value=dict() | str() as value) | JsonFormat(value=value):
            return schema_grammar(value, "response_format.value")
    raise AssertionError(f"{format_} is not a response format")


def _regex_grammar(regex: str | None, field: str) -> Grammar | None:
    if regex is None:
        return None
    if wrong := budgets.REGEX_CHARS.excess(len(regex)):
        raise ParameterError(f"{field}: {wrong}", field)
    return Grammar("regex", regex, field)


def _gbnf_grammar(gbnf: str | None, field: str) -> Grammar | None:
    if gbnf is None:
        return None
    if wrong := budgets.GBNF_CHARS.excess(len(gbnf)):
        raise ParameterError(f"{field}: {wrong}", field)
    return Grammar("gbnf", gbnf, field)


def _choice_grammar(choices: list[str] | None, field: str) -> Grammar | None:
    if choices is None:
        return None
    if wrong := excess(choices):
        raise ParameterError(f"{field}: {wrong}", field)
    return Grammar("regex", "|".join("".join(map(_literal, choice)) for choice in choices), field)


def _literal(character: str) -> str:
    """A character in a regular expression."""
    return character if character.isalnum() or not character.isascii() else f"\\x{ord(character):02x}"


def schema_grammar(schema: dict[str, Any] | str | None, field: str) -> Grammar | None:
    """The grammar of a JSON schema, which may be written as a string.

    Args:
        field: the path of the request's field that has it, for errors.

    Raises:
        ParameterError: it is no schema that can be followed, or too large.
    """
    if schema is None:
        return None
    if isinstance(schema, str):
        if wrong := budgets.SCHEMA_CHARS.excess(len(schema)):
            raise ParameterError(f"{field}: {wrong}", field)
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
