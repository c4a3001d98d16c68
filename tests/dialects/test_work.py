"""What a dialect does for a request is in proportion to what the request has: lists that belong to all prompts are read
once, not once for each."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable
from typing import Any

import pytest

from djl_python.core.errors import ServingError
from djl_python.dialects import dialect
from tests.dialects.exchange import inputs, model
from tests.dialects.test_refusals import CASES, path, places
from tests.work import copied, grows_in_proportion, work

SIZE = 40
#: What has several prompts: case -> makes so many of them.
PROMPTS: dict[str, Callable[[dict[str, Any], int], None]] = {
    "completion": lambda body, count: body.update(prompt=["a"] * count, n=1, best_of=1),
    "LMI batch": lambda body, count: body.update(inputs=["a"] * count),
    "Triton infer": lambda body, count: body["inputs"].__setitem__(
        slice(None), [{"name": "text_input", "shape": [count], "datatype": "BYTES", "data": ["a"] * count}]
    ),
}


def value_at(body: Any, at: tuple[Any, ...]) -> Any:
    for key in at:
        body = body[key]
    return body


def grown(value: Any, size: int) -> Any:
    """A value of the same kind, and of a size."""
    if isinstance(value, str):
        return value * size
    if isinstance(value, list):
        return [one for _ in range(size) for one in value]
    return value | {f"name{i}": 1 for i in range(size)}


def parse_with(name: str, at: tuple[Any, ...], size: int, prompts: int = 0) -> Callable[[], Any]:
    kind, operation, body, options = CASES[name]
    changed = json.loads(json.dumps(body))
    if prompts:
        PROMPTS[name](changed, prompts)
    holder = changed
    for key in at[:-1]:
        holder = holder[key]
    holder[at[-1]] = grown(holder[at[-1]], size)
    call, config = inputs(operation, changed, kind), model(**options)

    def parse() -> None:
        with contextlib.suppress(ServingError):  # too much for some fields; to find that out is work all the same
            dialect(kind).parse(call, config)

    parse()  # what is made once for all requests
    return parse


@pytest.mark.parametrize("name", CASES)
def test_no_field_takes_more_work_than_it_is_long(name: str) -> None:
    body = CASES[name][2]
    long = [at for at in places(body) if isinstance(value_at(body, at), str | list | dict)]
    assert [path(at) for at in long if not grows_in_proportion(functools.partial(parse_with, name, at), SIZE)] == []


TEXT = "a" * 3000
#: What has a text in many pieces that a template gets as one: API, operation, and the body with so many of them.
PIECES: dict[str, tuple[str, str, Callable[[int], dict[str, Any]]]] = {
    "OpenAI, parts": ("openai", "chat", lambda size: _said("user", [{"type": "text", "text": TEXT}] * size)),
    "OpenAI, messages": ("openai", "chat", lambda size: _repeated(_said("user", TEXT), size)),
    "Ollama, messages": ("ollama", "ollama_chat", lambda size: _repeated(_said("user", TEXT), size)),
    "Anthropic, user": ("anthropic", "messages", lambda size: _said("user", [{"type": "text", "text": TEXT}] * size)),
    "Anthropic, system": (
        *("anthropic", "messages"),
        lambda size: _said("user", "a") | {"system": [{"type": "text", "text": TEXT}] * size},
    ),
    "Anthropic, assistant": (
        *("anthropic", "messages"),
        lambda size: _said("assistant", [{"type": "text", "text": TEXT}] * size),
    ),
    "Anthropic, thoughts": (
        *("anthropic", "messages"),
        lambda size: _said("assistant", [{"type": "thinking", "thinking": TEXT}] * size),
    ),
    "Anthropic, results": (
        *("anthropic", "messages"),
        lambda size: _said(
            "user", [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": TEXT}] * size}]
        ),
    ),
    "responses, user": ("responses", "create_response", lambda size: _item(role="user", content=TEXT, size=size)),
    "responses, assistant": (
        *("responses", "create_response"),
        lambda size: _item(role="assistant", content=TEXT, size=size),
    ),
    "responses, thoughts": (
        *("responses", "create_response"),
        lambda size: _item(type="reasoning", content=[{"type": "reasoning_text", "text": TEXT}], size=size),
    ),
}


def _said(role: str, content: Any) -> dict[str, Any]:
    return {"model": "served", "max_tokens": 1, "messages": [{"role": role, "content": content}]}


def _repeated(body: dict[str, Any], size: int) -> dict[str, Any]:
    return body | {"messages": body["messages"] * size}


def _item(*, size: int, **fields: Any) -> dict[str, Any]:
    return {"input": [fields] * size}


@pytest.mark.parametrize("name", PIECES)
def test_a_text_of_many_pieces_is_not_copied_for_each(name: str) -> None:
    kind, operation, body = PIECES[name]

    def parse(size: int) -> Callable[[], Any]:
        call = inputs(operation, body(size), kind)
        dialect(kind).parse(call, model())  # what is made once for all requests, and that it is taken
        return lambda: dialect(kind).parse(call, model())

    assert grows_in_proportion(parse, SIZE, copied)


def parameters_of(name: str) -> list[tuple[Any, ...]]:
    """The places of what is said for all prompts."""
    body = CASES[name][2]
    own = ("prompt", "inputs", "outputs")  # these belong to one prompt, or to the answer
    fields: list[tuple[Any, ...]] = [(key,) for key in body if key not in own]
    fields += [("parameters", key) for key in body.get("parameters", ())]
    return [at for at in fields if isinstance(value_at(body, at), list | dict)]


@pytest.mark.parametrize("name", PROMPTS)
def test_parameters_of_all_prompts_are_read_once(name: str) -> None:
    wrong = []
    for at in parameters_of(name):
        one, more = (
            work(parse_with(name, at, 4 * SIZE, prompts)) - work(parse_with(name, at, 1, prompts))
            for prompts in (2, 60)
        )
        if more > 2 * one + 2_000:
            wrong.append((path(at), one, more))
    assert wrong == []


@pytest.mark.parametrize(
    ("operation", "field", "options"),
    [("completion", "prompt", {}), ("predict", "inputs", {"rolling_batch": "disable"}), ("predict", "prompt", {})],
)
def test_a_schema_for_all_prompts_is_read_once(operation: str, field: str, options: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {f"a{i}": {"type": "string"} for i in range(100)}}

    def parse(prompts: int, grammar: dict[str, Any]) -> Callable[[], Any]:
        said = {"parameters": grammar} if field == "inputs" else grammar
        call = inputs(operation, {field: ["a"] * prompts, **said}, kind)
        return lambda: dialect(kind).parse(call, model(**options))

    kind = "openai" if operation == "completion" else "lmi"
    few, many = (
        work(parse(prompts, {"guided_json": schema})) - work(parse(prompts, {"guided_json": {}})) for prompts in (2, 50)
    )
    assert many <= 1.5 * few


@pytest.mark.parametrize("what", ["unknown", "deep", "stop"])
def test_a_tensor_for_all_prompts_is_read_once(what: str) -> None:
    """KServe's tensor of JSON, given once for any number of prompts."""
    texts = {
        "unknown": json.dumps({f"name{i}": i for i in range(300)}),
        "deep": json.dumps({"x": [[i] for i in range(300)]}),
        "stop": json.dumps({"stop": [f"{i}" for i in range(300)]}),
    }

    def parse(prompts: int, text: str) -> Callable[[], Any]:
        body = {
            "inputs": [
                {"name": "text_input", "shape": [prompts], "datatype": "BYTES", "data": ["a"] * prompts},
                {"name": "sampling_parameters", "shape": [1], "datatype": "BYTES", "data": [text]},
            ]
        }
        call = inputs("infer", body, "triton")
        return lambda: dialect("triton").parse(call, model())

    few, many = (work(parse(prompts, texts[what])) - work(parse(prompts, "{}")) for prompts in (2, 200))
    assert many <= 2 * few + 2_000
