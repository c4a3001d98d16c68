"""Sentences of comments, docstrings and documents begin with their subject."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tests.packaging.documents import ROOT

#: "Of the workers, one ..." names the thing after what it is a part of; "#: Of a worker." does not name it at all.
PARTITIVE: Final = re.compile(r'(?:^\s*(?:"""|#:? ?|//+ ?)|^|[.;:!?] )Of (?!course)[a-z]')
#: A docstring that is half a sentence: it says neither what the thing is nor what it does.
HALF: Final = re.compile(r'^\s*(?:"""|#: )(?:That|Whose) ')
SOURCES: Final = sorted(
    path
    for folder in ("djl_python", "handlers", "serving_templates", "tests")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".md", ".h", ".cpp") and path != Path(__file__)
)


def wrong_lines(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for number, line in enumerate(lines, 1)
        if PARTITIVE.search(line) or (path.suffix == ".py" and HALF.search(line))
    ]


def test_sentences_begin_with_their_subject() -> None:
    assert len(SOURCES) > 1500
    assert [line for path in SOURCES for line in wrong_lines(path)] == []


@pytest.mark.parametrize(
    "line", ["#: Of a worker.", '    """Of tokens."""', "It is so. Of these, two", '"""That it is so; "" if not."""']
)
def test_a_sentence_without_its_subject_would_be_found(line: str) -> None:
    assert PARTITIVE.search(line) or HALF.search(line)
