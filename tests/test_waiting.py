from __future__ import annotations

from tests.waiting import TOLD_AT_S, Waiting


def test_a_test_that_takes_long_is_named_while_it_runs() -> None:
    clock_s, lines = [0.0], list[str]()
    suite = Waiting(lines.append, lambda: clock_s[-1])
    suite.pytest_runtest_logstart("a.py::quick")
    suite.pytest_runtest_logstart("b.py::slow")
    clock_s.append(9.0)
    suite.tell()
    assert lines == []
    suite.pytest_runtest_logfinish("a.py::quick")
    for at_s in (10.0, 11.0, 60.0, 300.0, 400.0):
        clock_s.append(at_s)
        suite.tell()
    assert [line.rpartition(" ")[0] for line in lines] == [
        f"waiting for b.py::slow, with what it starts: {at_s}" for at_s in TOLD_AT_S
    ]
    suite.pytest_runtest_logfinish("b.py::slow")
    clock_s.append(10_000.0)
    suite.tell()
    assert len(lines) == len(TOLD_AT_S)
