"""What the text of an LMI request has to be: parameters -> grammar, or an error that names them."""

from __future__ import annotations

from typing import Any

import pytest

from djl_python.core.errors import ParameterError
from djl_python.core.types import Grammar
from djl_python.dialects.lmi.dialect import LmiDialect
from tests.dialects.exchange import inputs, model

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
TEXT = '{"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":false}'


def grammar(parameters: dict[str, Any], **options: Any) -> Grammar | None:
    body = {"inputs": "x", "parameters": parameters}
    (request,) = LmiDialect().parse(inputs("predict", body, "lmi"), model(**options)).requests
    return request.sampling.grammar


@pytest.mark.parametrize("options", [{}, {"rolling_batch": "disable"}, {"tgi_compat": True}])
@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, None),
        ({"grammar": None}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"guided_json": SCHEMA}, Grammar("json_schema", TEXT, "parameters.guided_json")),
        ({"guided_json": TEXT}, Grammar("json_schema", TEXT, "parameters.guided_json")),
        ({"guided_regex": "a+"}, Grammar("regex", "a+", "parameters.guided_regex")),
        ({"guided_choice": ["a", "b"]}, Grammar("regex", "a|b", "parameters.guided_choice")),
        ({"structured_outputs": {"regex": "a+"}}, Grammar("regex", "a+", "parameters.structured_outputs.regex")),
        ({"json_schema": SCHEMA}, Grammar("json_schema", TEXT, "parameters.json_schema")),
        ({"json_schema": TEXT}, Grammar("json_schema", TEXT, "parameters.json_schema")),
        ({"regex": "a+"}, Grammar("regex", "a+", "parameters.regex")),
        ({"grammar": {"type": "json", "value": SCHEMA}}, Grammar("json_schema", TEXT, "parameters.grammar.value")),
        ({"grammar": {"type": "regex", "value": "a+"}}, Grammar("regex", "a+", "parameters.grammar.value")),
        ({"ebnf": "root ::= a"}, Grammar("gbnf", "root ::= a", "parameters.ebnf")),
        ({"guided_grammar": "root ::= a"}, Grammar("gbnf", "root ::= a", "parameters.guided_grammar")),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            Grammar("json_schema", TEXT, "parameters.response_format.json_schema.schema"),
        ),
    ],
)
def test_fields_for_structured_output_become_a_grammar(
    parameters: dict[str, Any], expected: Grammar | None, options: dict[str, Any]
) -> None:
    assert grammar(parameters, **options) == expected


@pytest.mark.parametrize(
    ("parameters", "field", "message"),
    [
        ({"guided_json": "{"}, "guided_json", "expected a JSON schema, got a string that is not JSON"),
        ({"guided_choice": []}, "guided_choice", "expected a non-empty list of strings, none of them empty, got []"),
        ({"grammar": {"type": "json", "value": "{"}}, "grammar.value", "expected a JSON schema"),
        ({"grammar": "a"}, "grammar", "expected an object with a type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "required, expected an object"),
        ({"guided_regex": "a", "guided_json": SCHEMA}, "guided_regex", "not together with guided_json"),
        (
            {"grammar": {"type": "regex", "value": "a"}, "response_format": {"type": "text"}},
            "grammar",
            "not together with parameters.response_format",
        ),
        (
            {"structured_outputs": {"x": "a"}},
            "structured_outputs",
            "expected json, regex, choice, grammar or json_object",
        ),
        ({"structural_tag": "a"}, "structural_tag", "not served, expected json_schema or regex"),
        ({"allowed_token_ids": [1]}, "allowed_token_ids", "not served, expected logit_bias"),
        ({"ebnf": ""}, "ebnf", "expected a grammar in GBNF"),
        ({"regex": "a", "json_schema": SCHEMA}, "regex", "not together with json_schema"),
    ],
)
def test_a_wrong_field_for_structured_output_is_named_in_the_error(
    parameters: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(ParameterError) as caught:
        grammar(parameters)
    assert caught.value.field == f"parameters.{field}"
    assert caught.value.message.startswith(f"parameters.{field}: {message}")
