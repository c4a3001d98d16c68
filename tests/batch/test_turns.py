"""A thread that works on a long file lets others run, and not for each line."""

from __future__ import annotations

import time

import pytest

from djl_python.batch.turns import Turns


def test_work_yields_to_other_threads_after_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    turns = Turns()
    for _ in range(1000):
        turns.worked(1000)
    assert 10 <= len(slept) <= 20 and set(slept) == {0}
    turns.worked(1 << 20)
    assert len(slept) <= 21
