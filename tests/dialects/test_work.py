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
from tests.work import grows_in_proportion, work

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
