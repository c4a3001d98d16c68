from __future__ import annotations

from typing import Any

import pytest

from djl_python import Input
from djl_python.core.errors import HandlerError, ModelLoadError, PayloadError
from djl_python.input_parser import adapt_input_formatter, input_formatter
from djl_python.request_io import RequestInput, TextInput


def inputs(data: bytes) -> Input:
    made = Input()
    made.properties["content-type"] = "application/json"
    made.content.add("data", data)
    return made


def test_documented_example_with_a_class_of_its_own() -> None:
    class MyInput(TextInput):
        mine: Any

    @input_formatter
    def custom(input_item: Input, **kwargs: Any) -> RequestInput:
        made = MyInput()
        made.input_text, made.mine = input_item.get_as_json()["q"], sorted(kwargs)
        return made

    result = adapt_input_formatter(custom)(inputs(b'{"q": "hi"}'), Input.get_data, tokenizer=1, configs=2)
    assert isinstance(result, MyInput)
    assert (result.input_text, result.mine) == ("hi", ["configs", "tokenizer"])


def test_payload_form_gets_the_decoded_body_and_only_what_it_takes() -> None:
    @input_formatter
    def custom(decoded_payload: dict, tokenizer: Any = None) -> dict:  # type: ignore[type-arg]
        return {"inputs": decoded_payload["q"], "t": tokenizer}

    call = adapt_input_formatter(custom)
    assert call(inputs(b'{"q": "hi"}'), Input.get_data, tokenizer="T", configs=1) == {"inputs": "hi", "t": "T"}
    with pytest.raises(PayloadError, match="expected a JSON object, found list"):
        call(inputs(b"[]"), Input.get_data)


def test_payload_form_by_name_alone() -> None:
    assert adapt_input_formatter(lambda decoded_payload: decoded_payload)(inputs(b'{"a":1}'), Input.get_data) == {
        "a": 1
    }


def test_wrong_forms_and_results() -> None:
    with pytest.raises(ModelLoadError, match="expected a first parameter"):
        adapt_input_formatter(lambda **kwargs: kwargs)
    with pytest.raises(HandlerError, match="returned str"):
        adapt_input_formatter(lambda item: "x")(inputs(b"{}"), Input.get_data)
