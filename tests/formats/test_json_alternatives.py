"""Whether alternatives have instances in common."""

from __future__ import annotations

from typing import Any

import pytest

from djl_python.core.budgets import SCHEMA_COMPARISONS
from djl_python.formats.json_alternatives import Alternatives
from djl_python.formats.json_instances import Instances


def kind(*values: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"kind": {"enum": list(values)}}, "required": ["kind"], **more}


@pytest.mark.parametrize(
    ("parts", "overlap"),
    [
        ([], False),
        ([5], False),
        ([kind(1), kind(2), kind(3)], False),
        ([kind(1, 2), kind(3, 4), kind(5, 1.0)], True),
        ([kind("1"), kind(1)], False),
        ([kind(1), {"type": "string"}, {"enum": [7, 8]}], False),
        ([{"type": "integer"}, {"type": "number"}], True),
        ([kind(1), 5], True),
        ([kind(1), {"$ref": "#/$defs/two"}], False),
        ([kind(1), {"$ref": "#/$defs/none"}], True),
        ([kind(*range(50), i + 100) for i in range(100)], True),
        ([kind(i) for i in range(101)], True),
    ],
)
def test_alternatives(parts: list[Any], overlap: bool) -> None:
    instances = Instances({"$defs": {"two": kind(2)}, "oneOf": parts})
    assert Alternatives(instances, closing=True).overlap(parts) is overlap


def test_comparisons_are_limited() -> None:
    """Beyond the limit, alternatives are as good as not apart."""
    parts = [*(kind(i) for i in range(99)), {"type": "string"}]
    compared = Alternatives(Instances({}), closing=True)
    while compared.left > 0:
        assert not compared.overlap(parts) or compared.left < 0
    assert compared.left < 0 < SCHEMA_COMPARISONS.most
    assert compared.overlap(parts[-2:])
