"""docs/troubleshooting.md quotes what the source says."""

from __future__ import annotations

import re

import pytest

from tests.packaging.documents import DOCS, ROOT
from tests.packaging.messages import VALUE, is_said, texts

MESSAGES = re.findall(r"^\| `([^`]+)` \|", (DOCS / "troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE)
SOURCES = sorted([*(ROOT / "djl_python").rglob("*.py"), *(ROOT / "handlers").rglob("*.py")])


@pytest.fixture(scope="module")
def source_texts() -> list[str]:
    return [text for path in SOURCES for text in texts(path)]


def test_every_message_is_in_the_source(source_texts: list[str]) -> None:
    assert [message for message in MESSAGES if not any(is_said(message, text) for text in source_texts)] == []


def test_messages_are_looked_up(source_texts: list[str]) -> None:
    assert len(MESSAGES) == len(set(MESSAGES)) > 50
    assert is_said("model ...: no room", f"model {VALUE}: no room for {VALUE}")
    assert not is_said("model ...: no space", f"model {VALUE}: no room for {VALUE}")
    assert not is_said("no such sentence is anywhere", "".join(source_texts))
