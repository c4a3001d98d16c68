from __future__ import annotations

import argparse

import pytest

from djl_python.core.help_text import HelpFormatter


def test_prose_is_filled_and_examples_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    prose, examples = "one two three four five six seven eight nine ten eleven twelve", "examples:\n  a" + " b" * 30
    made = argparse.ArgumentParser(prog="x", description=f"{prose}\n\n{examples}", formatter_class=HelpFormatter)
    lines = made.format_help().splitlines()
    assert lines[2:4] == ["one two three four five six seven", "eight nine ten eleven twelve"]
    assert lines[5:7] == examples.splitlines()
