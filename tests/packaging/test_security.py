"""docs/security.md says who may do what, and which tests show it."""

from __future__ import annotations

import ast
import functools
import re

import pytest

from tests.packaging.documents import DOCS, ROOT

_MODEL = (DOCS / "security.md").read_text(encoding="utf-8").partition("\n## Who may do what\n")[2]
#: The rows of its tables: what somebody may or may not do, and the tests that show it.
ROWS = [
    (said, shown)
    for said, shown in re.findall(r"^\| (.+?) \| (.+?) \|$", _MODEL, re.MULTILINE)
    if shown != "shown by" and not said.startswith("|")
]
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_TEST = re.compile(r"`(tests/(?:\w+/)*test_\w+\.py)::(\w+(?:::\w+)?)`")


@functools.cache
def named_in(path: str) -> frozenset[str]:
    """The names of a file's tests, as pytest has them."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    names = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            names |= {f"{node.name}::{one.name}" for one in node.body if isinstance(one, _FUNCTIONS)}
        elif isinstance(node, _FUNCTIONS):
            names.add(node.name)
    return frozenset(name for name in names if name.rpartition("::")[2].startswith("test_"))


def test_there_is_a_model() -> None:
    assert len(ROWS) > 40
    lines = [line for line in _MODEL.splitlines() if line.startswith("|")]
    assert len(ROWS) == len([line for line in lines if line not in ("| | shown by |", "|---|---|")])


@pytest.mark.parametrize(("said", "shown"), ROWS, ids=[said for said, _ in ROWS])
def test_every_security_claim_has_its_tests(said: str, shown: str) -> None:
    named = _TEST.findall(shown)
    assert named and _TEST.sub("", shown).strip(", ") == "", f"{said}: expected tests, got {shown}"
    assert [f"{path}::{name}" for path, name in named if name not in named_in(path)] == []
