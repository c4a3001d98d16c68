from __future__ import annotations

import pytest

from tests.failures import FailuresAtOnce


def report(outcome: str, error: str | None = None) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid="a.py::test_b",
        location=("a.py", 1, "test_b"),
        keywords={},
        outcome=outcome,  # type: ignore[arg-type]  # A literal, which a parameter is not.
        longrepr=error,
        when="call",
    )


def test_a_failure_is_named_with_its_error() -> None:
    lines = list[str]()
    failures = FailuresAtOnce(lines.append)
    failures.pytest_runtest_logreport(report("passed"))
    failures.pytest_runtest_logreport(report("failed", "    assert 1 == 2\n\na.py:3: AssertionError"))
    assert lines == ["failed: a.py::test_b (call): a.py:3: AssertionError"]


def test_a_failure_that_is_tried_again_is_named_too() -> None:
    lines = list[str]()
    FailuresAtOnce(lines.append).pytest_runtest_logreport(report("rerun", "a.py:3: AssertionError"))
    assert lines == ["failed, tried again: a.py::test_b (call): a.py:3: AssertionError"]
