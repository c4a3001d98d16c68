"""No request costs more than its share: the work of reading one grows about as its body does, whichever fields grow.

Work is counted, not timed: lines of Python that run while a body is read, and the calls that they make.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from djl_python.core.errors import ServingError
from djl_python.dialects import dialect
from tests.dialects.exchange import inputs, model
from tests.dialects.test_refusals import CASES, places

#: A field in three sizes. Work that grows as the square of the body is four times as much a byte in the last.
SMALL, MEDIUM, LARGE = 8, 32, 128
#: How much more a byte may cost in the large body than in the medium one; and lines that say nothing.
SLACK, NOISE_LINES = 1.6, 4000


def _deep(value: Any, size: int) -> Any:
    for _ in range(size):
        value = [value]
    return value


def _properties(value: Any, size: int) -> Any:
    """A schema of the object kind with many properties, each of which names one definition."""
    names = {f"p{number}": {"$ref": "#/$defs/one"} for number in range(size)}
    return {"type": "object", "properties": names, "$defs": {"one": {"enum": [1, 2]}}}


def _spelled(value: Any, size: int) -> Any:
    """As `_properties`, but each spells its reference in another way: characters as they are, or percent-encoded."""
    name = "definition"

    def spelled(number: int) -> str:
        return "#/$defs/" + "".join(f"%{ord(c):02x}" if number >> at & 1 else c for at, c in enumerate(name))

    names = {f"p{number}": {"$ref": spelled(number)} for number in range(size)}
    return {"$ref": spelled(0), "$defs": {name: {"type": "object", "properties": names}}}


#: How a value grows: each takes the value that the case has and a size.
GROWN: dict[str, Callable[[Any, int], Any]] = {
    "longer text": lambda value, size: "ab" * size,
    "more of the same": lambda value, size: (value if isinstance(value, list) and value else [value]) * size,
    "more numbers": lambda value, size: list(range(size)),
    "more texts": lambda value, size: [f"t{number}" for number in range(size)],
    "more names": lambda value, size: (value if isinstance(value, dict) else {}) | {f"n{i}": 1 for i in range(size)},
    "deeper": _deep,
    "JSON within text": lambda value, size: json.dumps({f"n{number}": 1 for number in range(size)}),
    "an enum": lambda value, size: {"enum": [f"v{number}" for number in range(size)]},
    "references": _properties,
    "spelled references": _spelled,
    "alternatives": lambda value, size: {
        "oneOf": [{"properties": {"a": {"const": number}}, "required": ["a"]} for number in range(size)]
    },
}


def grown(name: str, changes: dict[tuple[Any, ...], str], size: int) -> bytes:
    """A case's body in which some values have grown to a size."""
    body = json.loads(json.dumps(CASES[name][2]))
    for at, how in changes.items():
        holder = body
        for key in at[:-1]:
            holder = holder[key]
        holder[at[-1]] = GROWN[how](holder[at[-1]], size)
    return json.dumps(body).encode()


def work(kind: str, operation: str, body: bytes, **options: Any) -> int:
    """Lines and calls of Python code that reading a body runs; a refusal is an answer as any other."""
    given, config = inputs(operation, body, kind), model(**options)
    lines = 0

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += 1
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        dialect(kind).parse(given, config)
    except ServingError:
        pass
    finally:
        sys.settrace(before)
    return lines


def check(read: Callable[[bytes], int], body: Callable[[int], bytes]) -> None:
    """A byte of the large body costs no more than one of the medium body, by `read`, which counts lines."""
    bodies = [body(size) for size in (SMALL, MEDIUM, LARGE)]
    read(bodies[0])  # what is read once for all requests
    low, middle, high = map(read, bodies)
    medium = (middle - low) / max(len(bodies[1]) - len(bodies[0]), 1)
    large = (high - middle) / max(len(bodies[2]) - len(bodies[1]), 1)
    assert large <= SLACK * max(medium, 1.0) or high < NOISE_LINES, (medium, large, high)


def _completion(**fields: Any) -> bytes:
    return json.dumps({"prompt": "x", "max_tokens": 1, **fields}).encode()


def _infer(size: int, sampling: str) -> bytes:
    """Prompts, and a tensor with one value that is given for all of them."""
    prompts = {"name": "text_input", "shape": [size], "datatype": "BYTES", "data": ["a"] * size}
    shared = {"name": "sampling_parameters", "shape": [1], "datatype": "BYTES", "data": [sampling]}
    return json.dumps({"inputs": [prompts, shared]}).encode()


def _names(size: int) -> dict[str, int]:
    return {f"n{number}": 1 for number in range(size)}


#: Requests whose parts have to agree, which nothing at random would: API, operation, and the body of a size.
MADE: dict[str, tuple[str, str, Callable[[int], bytes]]] = {
    "spelled references": ("openai", "completion", lambda size: _completion(guided_json=_spelled(None, size))),
    "references": ("openai", "completion", lambda size: _completion(guided_json=_properties(None, size))),
    "infer, names for all": ("triton", "infer", lambda size: _infer(size, json.dumps(_names(size)))),
    "messages": (
        "openai",
        "chat",
        lambda size: json.dumps({"messages": [{"role": "user", "content": "x"}] * size}).encode(),
    ),
    "token ids": ("openai", "completion", lambda size: _completion(prompt=[1] * size)),
    "names": ("openai", "completion", lambda size: _completion(**_names(size))),
}


@pytest.mark.parametrize("name", MADE)
def test_parts_that_grow_together(name: str) -> None:
    kind, operation, body = MADE[name]
    check(lambda data: work(kind, operation, data), body)


@pytest.mark.parametrize("name", CASES)
def test_fields_that_grow_together(name: str) -> None:
    """One to three fields at once, anywhere, of any kind: what one amplifies may be in another.

    Places lie beside one another, so that no change removes another's place.
    """
    kind, operation, body, options = CASES[name]
    paths = sorted(places(body), key=str)

    @settings(max_examples=25, suppress_health_check=list(HealthCheck))
    @given(st.dictionaries(st.sampled_from(paths), st.sampled_from(sorted(GROWN)), min_size=1, max_size=3))
    def run(changes: dict[tuple[Any, ...], str]) -> None:
        apart = {at: how for at, how in changes.items() if not any(at != o and at[: len(o)] == o for o in changes)}
        check(lambda data: work(kind, operation, data, **options), lambda size: grown(name, apart, size))

    run()
