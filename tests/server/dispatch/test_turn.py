"""A request's turn, from its headers and its body."""

from __future__ import annotations

import pytest

from djl_python.core.errors import ParameterError
from djl_python.core.turns.precedence import ANY, MAX_PRIORITY, Precedence, TenantWeights
from djl_python.server.dispatch.turn import precedence_of


def priority(headers: dict[str, str], body: bytes) -> int:
    return precedence_of(ANY, headers, body, background=False).priority


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"prompt":"x","priority":3}', 3),
        (b'{"inputs":"x","parameters":{"priority":-2}}', -2),
        (b'{"text_input":"x","priority":7,"parameters":{}}', 7),
        (b'{"prompt":"the word \\"priority\\" is text"}', 0),
        (b'{"priority":"high"}', 0),
        (b'{"priority":1e99}', 0),
        (b'"priority"', 0),
        (b'\xff"priority"', 0),
        (b"", 0),
    ],
)
def test_a_body_has_its_priority_where_its_dialect_has_it(body: bytes, expected: int) -> None:
    assert priority({}, body) == expected


def test_the_header_goes_before_the_body() -> None:
    assert priority({"x-request-priority": "-4"}, b'{"priority":3}') == -4


def test_tenant_weight_and_batch_are_passed_on() -> None:
    assert precedence_of(Precedence("gold", 4.0), {}, b"{}", background=True) == Precedence("gold", 4.0, 0, True)


@pytest.mark.parametrize("value", ["high", "", "1.5", str(MAX_PRIORITY + 1), str(-MAX_PRIORITY - 1), "9" * 5000])
def test_a_wrong_priority_is_refused_by_name(value: str) -> None:
    with pytest.raises(ParameterError, match="x-request-priority: expected an integer from"):
        priority({"x-request-priority": value}, b"{}")


def test_weights_are_read_from_pairs() -> None:
    weights = TenantWeights.parse(" gold=4,  team=a=0.5 ")
    assert (weights.of("gold"), weights.of("team=a"), weights.of("other")) == (4.0, 0.5, 1.0)
    assert TenantWeights.parse(str(weights)) == weights


@pytest.mark.parametrize("text", ["gold", "gold=", "=2", "gold=0", "gold=-1", "gold=nan", "gold=1e9"])
def test_a_wrong_weight_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(ValueError, match="expected NAME=WEIGHT"):
        TenantWeights.parse(text)
