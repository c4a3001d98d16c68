"""Requests and answers of one's own around the built-in handler, which generates as ever."""

from djl_python.input_parser import input_formatter
from djl_python.inputs import Input
from djl_python.output_formatter import output_formatter


@input_formatter
def read(inputs: Input, **kwargs: object) -> dict[str, object]:
    """{"question", "words"} in place of LMI's {"inputs", "parameters"}."""
    asked = inputs.get_as_json()
    return {
        "inputs": asked["question"],
        "parameters": {"max_new_tokens": asked.get("words", 10), "details": True},
        "stream": asked.get("stream", False),
    }


@output_formatter
def write(response: dict[str, object]) -> dict[str, object]:
    """The whole answer, or one piece of a stream, in a shape of one's own."""
    if "token" in response:
        return {"piece": response["token"]["text"]}
    return {"answer": response["generated_text"].strip(), "why_it_ended": response["details"]["finish_reason"]}
