from __future__ import annotations

import os
from pathlib import Path

import pytest

from djl_python.core.cpu_limit import available_cpus


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 64 processors."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)))


def v2(path: Path, limit: str) -> Path:
    (path / "cpu.max").write_text(f"{limit}\n")
    return path


def v1(path: Path, quota: int, period: int) -> Path:
    (path / "cpu").mkdir()
    (path / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (path / "cpu" / "cpu.cfs_period_us").write_text(f"{period}\n")
    return path


@pytest.mark.parametrize(("quota", "cpus"), [(200000, 2), (150000, 2), (1000, 1), (10_000_000, 64)])
def test_a_container_has_the_processors_that_its_time_is_worth(tmp_path: Path, quota: int, cpus: int) -> None:
    assert available_cpus(v2(tmp_path, f"{quota} 100000")) == cpus
    (tmp_path / "cpu.max").unlink()
    assert available_cpus(v1(tmp_path, quota, 100000)) == cpus


def test_no_limit_is_the_machine(tmp_path: Path) -> None:
    assert available_cpus(tmp_path) == 64
    assert available_cpus(v1(tmp_path, -1, 100000)) == 64
    assert available_cpus(v2(tmp_path, "max 100000")) == 64
