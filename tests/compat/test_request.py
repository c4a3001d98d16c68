"""A request's tokens through its formatter: DJL's own, by name, and the user's."""

from __future__ import annotations

import json

from djl_python.output_formatter import RequestOutput
from djl_python.request import Request
from djl_python.request_io import TextInput, Token


def test_tokens_since_the_last_reset() -> None:
    request = Request(TextInput(3, parameters={"stream": True}, input_text="Hi"))
    assert request.get_content_type() == "application/jsonlines"
    request.set_next_token(Token(1, "a", -0.5))
    request.set_next_token("b")
    first = request.get_next_token()
    assert [json.loads(line)["token"]["id"] for line in first.splitlines()] == [1, -1]
    assert request.get_next_token() == first
    request.reset_next_token()
    assert request.get_next_token() == ""
    request.set_next_token(Token(2, "c"), last_token=True, finish_reason="length")
    assert json.loads(request.get_next_token())["generated_text"] == "abc"
    assert request.is_last_token()
    assert request.request_output.finished


def test_functions_of_the_users() -> None:
    def new(request_output: RequestOutput) -> str:
        token, _, last = request_output.sequences[0].get_next_token()  # type: ignore[attr-defined]
        return f"{token.text}{'.' if last else ','}"

    def old(token, first_token, last_token, details, generated_text, id):  # type: ignore[no-untyped-def]
        return f"{token.text}{'.' if last_token else ','}"

    for function in (new, old):
        request = Request(TextInput(0, output_formatter=function, input_text="Hi"))
        request.set_next_token(Token(1, "a"))
        request.set_next_token(Token(2, "b"), last_token=True)
        assert request.get_next_token() == "a,b."
        assert request.get_content_type() is None


def test_a_function_that_never_advances_is_called_once_for_each_token() -> None:
    request = Request(TextInput(0, output_formatter=lambda request_output: "x", input_text="Hi"))
    request.set_next_token("a")
    request.set_next_token("b")
    assert request.get_next_token() == "xx"


def test_a_request_carries_its_id_adapter_and_error() -> None:
    request = Request(TextInput(7, server_parameters={"request_id": "r"}, input_text="Hi", adapters=["a"]))
    assert (request.id, request.input_text, request.adapter) == (7, "Hi", ["a"])
    assert request.get_client_request_id() == "r"
    assert (request.get_error_message(), request.get_error_code()) == (None, None)
    request.set_error_message("no")
    request.set_error_code(424)
    assert (request.get_error_message(), request.get_error_code()) == ("no", 424)
    assert "Request 7: 'Hi'" in repr(request)
