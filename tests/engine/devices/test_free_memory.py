"""What memory a cache may count on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from djl_python.engine.devices import free_memory
from djl_python.engine.devices.free_memory import available_bytes, cpu_cache_bytes
from djl_python.engine.settings import BuiltInSettings

MIB = 1 << 20


def version_2(path: Path, most: str, used: int, of_files: int) -> Path:
    (path / "memory.max").write_text(f"{most}\n")
    (path / "memory.current").write_text(f"{used}\n")
    (path / "memory.stat").write_text(f"anon 1\nfile 9\ninactive_file {of_files}\nactive_file 3\n")
    return path


def version_1(path: Path, most: str, used: int, of_files: int) -> Path:
    (path / "memory").mkdir()
    (path / "memory" / "memory.limit_in_bytes").write_text(f"{most}\n")
    (path / "memory" / "memory.usage_in_bytes").write_text(f"{used}\n")
    (path / "memory" / "memory.stat").write_text(f"cache 1\ninactive_file 2\ntotal_inactive_file {of_files}\n")
    return path


Container = Callable[[Path, str, int, int], Path]
versions = pytest.mark.parametrize("container", [version_1, version_2])


@versions
def test_a_container_may_take_what_its_limit_leaves_and_what_holds_files(container: Container, tmp_path: Path) -> None:
    assert available_bytes(container(tmp_path, str(100 * MIB), 90 * MIB, 60 * MIB)) == 70 * MIB


@versions
def test_a_container_over_its_limit_has_nothing(container: Container, tmp_path: Path) -> None:
    assert available_bytes(container(tmp_path, str(100 * MIB), 120 * MIB, 0)) == 0


@pytest.mark.parametrize(
    ("container", "most"), [(version_2, "max"), (version_2, str(1 << 60)), (version_1, "9223372036854771712")]
)
def test_no_limit_or_one_above_the_machine_is_the_machine(container: Container, most: str, tmp_path: Path) -> None:
    available = available_bytes(container(tmp_path, most, 0, 0))
    assert available == pytest.approx(psutil.virtual_memory().available, rel=0.2)


def test_a_machine_without_containers(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) == pytest.approx(psutil.virtual_memory().available, rel=0.2)


def test_the_cache_gets_a_share_or_what_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_memory, "available_bytes", lambda: 1000 * MIB)
    assert cpu_cache_bytes(BuiltInSettings(model_path="m")) == 400 * MIB
    assert cpu_cache_bytes(BuiltInSettings(model_path="m", kv_cache_memory_mb=7)) == 7 * MIB


def test_many_workers_reserve_no_more_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_memory, "available_bytes", lambda: 1000 * MIB)
    assert cpu_cache_bytes(BuiltInSettings(model_path="m", workers=2)) == 400 * MIB
    assert cpu_cache_bytes(BuiltInSettings(model_path="m", workers=4)) == 200 * MIB
