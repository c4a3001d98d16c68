from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from djl_python import Input
from djl_python.core.errors import HandlerError, ModelLoadError, PayloadError
from djl_python.input_parser import (
    adapt_input_formatter,
    init_handler,
    input_formatter,
    parse_adapters,
    parse_input_with_formatter,
    prediction_handler,
)
from djl_python.output_formatter import find_decorated
from djl_python.properties_manager.properties import Properties
from djl_python.request_io import RequestInput, TextInput
from djl_python.test_model import create_concurrent_batch_request


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


def test_steps_of_a_tables_handler_are_marked() -> None:
    module = ModuleType("model")
    module.load, module.predict = init_handler(lambda model_dir: 1), prediction_handler(lambda rows, model: 2)  # type: ignore[attr-defined]
    assert find_decorated(module, "init_handler") is module.load
    assert find_decorated(module, "prediction_handler") is module.predict


class Bytes:
    """A tokenizer of bytes."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


def test_a_batch_of_requests_to_generate() -> None:
    bodies = [
        {"inputs": "ab", "parameters": {"top_k": 2, "output_formatter": "sse"}, "stream": True},
        {"inputs": "cd", "parameters": 5},
        {"prompt": "no inputs"},
    ]
    batch = create_concurrent_batch_request(bodies)
    parsed = parse_input_with_formatter(batch, configs=Properties(model_id="m"), tokenizer=Bytes())
    assert [request.id for request in parsed.requests] == [0, 2]
    assert len(parsed.batch) == 3
    assert parsed.errors.keys() == {1}
    assert parsed.errors[1].startswith("Input Parsing failed")
    first, last = (request.request_input for request in parsed.requests)
    assert (first.input_text, first.input_ids) == ("ab", [97, 98])
    assert first.server_parameters == {"top_k": 2, "output_formatter": "sse"}
    assert parsed.requests[0].get_content_type() == "text/event-stream"
    assert last.input_text == {"prompt": "no inputs"}  # type: ignore[comparison-overlap]


def test_numbers_and_streams_of_a_rolling_batch() -> None:
    from djl_python.utils import IdCounter

    counter = IdCounter()
    attributes = {
        "configs": Properties(model_id="m", rolling_batch="auto"),
        "rolling_batch": SimpleNamespace(req_id_counter=counter),
    }
    batch = create_concurrent_batch_request([{"inputs": "a", "stream": True}, {"inputs": "b"}])
    counter.next_id()
    first, second = parse_input_with_formatter(batch, **attributes).requests
    assert (first.id, second.id) == (1, 2)
    assert first.parameters == {"stream": True}
    assert (first.content_type, second.content_type) == ("application/jsonlines", "application/json")


def test_adapters_that_are_registered() -> None:
    attributes = {"configs": Properties(model_id="m"), "adapter_registry": {"ada": "A", "bob": "B"}}
    bodies = [
        {"inputs": "x", "adapters": "ada"},
        {"inputs": "x"},
        {"inputs": ["x", "y"], "adapters": ["ada", "bob"]},
        {"inputs": ["x", "y"], "adapters": ["ada", ""]},
        {"inputs": "x", "adapters": ["eve"]},
        {"inputs": ["x", "y"], "adapters": ["ada"]},
        {"inputs": "x", "adapters": "ada"},
    ]
    batch = create_concurrent_batch_request(bodies, [*[{}] * 6, {"adapter": "bob"}])
    parsed = parse_input_with_formatter(batch, **attributes)
    assert [request.request_input.adapters for request in parsed.requests] == ["A", None, ["A", "B"], ["A", None], "B"]
    assert "Adapter eve is not registered" in parsed.errors[4]
    assert "adapters: expected as many as there are inputs, 2, got 1" in parsed.errors[5]
    request = TextInput(input_text="x")
    parse_adapters(request, Input(), {"adapters": "eve"})
    assert request.adapters is None


def test_a_function_of_the_users_reads_a_request() -> None:
    def read(input_item: Input, **attributes: Any) -> TextInput:
        assert attributes["tokenizer"] == "mine"
        return TextInput(input_text=input_item.get_as_json()["q"], parameters={"top_k": 1})

    batch = create_concurrent_batch_request([{"q": "x"}, {"other": 1}])
    configs = Properties(model_id="m", input_formatter=read)
    parsed = parse_input_with_formatter(batch, configs=configs, tokenizer="mine")
    (request,) = parsed.requests
    assert (request.input_text, request.parameters) == ("x", {"top_k": 1})
    assert "no 'q'" in parsed.errors[1]
