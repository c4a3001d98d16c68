from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest

from djl_python.core.errors import HandlerError, ModelLoadError
from djl_python.input_parser import input_formatter
from djl_python.output_formatter import (
    RequestOutput,
    TextGenerationOutput,
    TextInput,
    Token,
    adapt_legacy_output_formatter,
    adapt_output_formatter,
    adapt_response_formatter,
    find_decorated,
    get_output_formatter,
    output_formatter,
    takes_responses,
)


def output(**parameters: Any) -> TextGenerationOutput:
    return TextGenerationOutput(request_id=7, input=TextInput(7, parameters=parameters, input_text="Say:"))


def test_new_style_is_called_with_the_request_output() -> None:
    @output_formatter
    def custom(request_output: RequestOutput) -> str:
        assert isinstance(request_output, TextGenerationOutput)
        sequence = request_output.sequences[request_output.best_sequence_index]
        token, first, last = sequence.get_next_token()
        assert token is not None
        return json.dumps([token.text, first, last, sequence.finish_reason if last else None]) + "\n"

    call, out = adapt_output_formatter(custom), output()
    out.set_next_token(Token(1, "a", -0.5))
    assert call(out) == b'["a", true, false, null]\n'
    out.set_next_token(Token(2, "b", -0.5), is_last_token=True, finish_reason="length")
    assert call(out) == b'["b", false, true, "length"]\n'


def test_legacy_style_gets_six_arguments_per_token() -> None:
    seen: list[tuple[Any, ...]] = []

    @output_formatter
    def custom(token, first_token, last_token, details, generated_text, id):  # type: ignore[no-untyped-def]
        seen.append((token.as_dict(), first_token, last_token, details, generated_text, id))
        return token.text + ";"

    call, out = adapt_output_formatter(custom), output(details=True, return_full_text=True)
    out.set_next_token(Token(1, "a", -0.5))
    assert call(out) == b"a;"
    out.set_next_token(Token(2, "b", None))
    out.set_next_token(Token(3, "c", -1.0, special_token=True), is_last_token=True, finish_reason="eos_token")
    assert call(out) == b"b;c;"
    assert [entry[1:3] for entry in seen] == [(True, False), (False, False), (False, True)]
    token, _, _, details, text, request_id = seen[-1]
    assert token == {"id": 3, "text": "c", "log_prob": -1.0, "special_token": True}
    assert (text, request_id, seen[0][4]) == ("Say:abc", 7, "")
    assert (details["finish_reason"], details["generated_tokens"], details["inputs"]) == ("eos_token", 3, "Say:")
    assert [one["id"] for one in details["tokens"]] == [1, 2, 3]


def test_wrong_forms_and_wrong_results() -> None:
    with pytest.raises(ModelLoadError, match=r"expected one parameter .* found 2"):
        adapt_output_formatter(lambda a, b: "")
    for result in (None, {"a": 1}):
        with pytest.raises(HandlerError, match="expected str"):
            adapt_output_formatter(lambda _, result=result: result)(output())


def test_find_decorated() -> None:
    module = ModuleType("model")

    def one(request_output: RequestOutput) -> str:
        return ""

    def two(request_output: RequestOutput) -> str:
        return ""

    module.one, module.alias, module.number = output_formatter(one), one, 3  # type: ignore[attr-defined]
    module.reads = input_formatter(lambda item: item)  # type: ignore[attr-defined]
    assert find_decorated(module, "output_formatter") is one
    assert find_decorated(module, "input_formatter") is module.reads
    module.two = output_formatter(two)  # type: ignore[attr-defined]
    with pytest.raises(ModelLoadError, match="several functions have @output_formatter: one, two"):
        find_decorated(module, "output_formatter")


def test_functions_are_given_whole_responses_by_their_annotations() -> None:
    def dict_in(response_data: dict[str, Any]) -> dict[str, Any]:
        return response_data

    def dict_out(output) -> dict[str, Any]:  # type: ignore[no-untyped-def]
        return {}

    def as_text(output: "typing.Dict[str, Any]"):  # type: ignore[no-untyped-def, name-defined]  # noqa: F821, UP037
        return output

    def named(response):  # type: ignore[no-untyped-def]
        return response

    def tokens(request_output: TextGenerationOutput) -> str:
        return ""

    def plain(output):  # type: ignore[no-untyped-def]
        return ""

    def legacy(token, first_token, last_token, details, generated_text, id):  # type: ignore[no-untyped-def]
        return ""

    assert [takes_responses(one) for one in (dict_in, dict_out, as_text, named)] == [True] * 4
    assert [takes_responses(one, unless_annotated=True) for one in (tokens, legacy)] == [False] * 2
    assert [takes_responses(plain, unless_annotated=given) for given in (False, True)] == [False, True]


def test_a_response_formatter_returns_an_object_or_text() -> None:
    assert adapt_response_formatter(lambda response: response | {"b": 2})({"a": 1}) == {"a": 1, "b": 2}
    assert adapt_response_formatter(lambda response: "x")({}) == "x"
    with pytest.raises(HandlerError, match="returned NoneType, expected dict"):
        adapt_response_formatter(lambda response: None)({})


def test_djls_formatters_by_name(caplog: pytest.LogCaptureFixture) -> None:
    kinds = {
        ("json", False): "application/json",
        ("jsonlines", False): "application/jsonlines",
        ("sse", False): "text/event-stream",
        ("jsonlines_chat", True): "application/jsonlines",
        (None, True): "application/jsonlines",
        (None, False): "application/json",
    }
    assert {key: get_output_formatter(*key, tgi_compat=False)[1] for key in kinds} == kinds
    assert get_output_formatter(None, True, tgi_compat=True)[1] == "text/event-stream"
    assert get_output_formatter("steam", False, tgi_compat=False)[1] == "application/json"
    assert "no output formatter 'steam'" in caplog.text
    assert get_output_formatter(len, True, tgi_compat=False) == (len, None)


def test_the_oldest_form_needs_a_function() -> None:
    with pytest.raises(TypeError, match="expected a function"):
        adapt_legacy_output_formatter(output())
