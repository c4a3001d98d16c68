"""Memory that is taken before anybody asks for it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from djl_python.engine.native import prefault
from djl_python.engine.native.prefault import PrefaultedRegions, begin_prefault, cache_prefault_bytes
from tests.engine.native.test_memory import MIB, resident_bytes

GIB = 1 << 30


@pytest.fixture(autouse=True, scope="module")
def _kernels() -> None:
    """No kernel runs here."""


def wait_for(resident: int) -> None:
    deadline = time.monotonic() + 20
    while resident_bytes() < resident:
        assert time.monotonic() < deadline, "memory was not taken"
        time.sleep(0.01)


def test_both_rooms_are_taken_and_no_more_of_the_cache_than_is_wanted() -> None:
    before = resident_bytes()
    regions = PrefaultedRegions(24 * MIB, 1024 * MIB, 40 * MIB)
    wait_for(before + 60 * MIB)
    regions.stop()
    assert resident_bytes() < before + 80 * MIB
    assert regions.cache_prefaulted <= 40 * MIB
    assert len(regions.cache) == 1024 * MIB
    regions.weights[:3] = b"abc"
    regions.give_back()
    assert resident_bytes() < before + 10 * MIB


def test_prefaulting_stops_at_once() -> None:
    regions = PrefaultedRegions(2048 * MIB, MIB, MIB)
    regions.stop()
    assert regions.cache_prefaulted == 0
    regions.give_back()


def checkpoint(folder: Path, size: int) -> Path:
    with (folder / "model-00001-of-00002.safetensors").open("wb") as file:
        file.truncate(size)
    return folder


def wait_until_taken() -> None:
    """Wait for the threads that prefault."""
    for thread in threading.enumerate():
        if thread.name == "memory":
            thread.join(60)


def test_how_much_follows_from_the_checkpoint(tmp_path: Path) -> None:
    model = checkpoint(tmp_path, 10 * MIB)
    exact = begin_prefault(model, "none", GIB, 16 * GIB)
    assert exact is not None
    assert 7 * MIB < len(exact.weights) <= 10 * MIB
    rounded = begin_prefault(model, "int4", GIB, 16 * GIB)
    assert rounded is not None
    assert len(rounded.weights) < len(exact.weights)
    for regions in (exact, rounded):
        wait_until_taken()
        assert regions.cache_prefaulted == 20 * MIB, "a small model's cache is small"
        regions.give_back()


def test_at_most_an_eighth_of_the_cache_is_taken(tmp_path: Path) -> None:
    regions = begin_prefault(checkpoint(tmp_path, 10 * MIB), "none", 16 * MIB, 16 * GIB)
    assert regions is not None
    wait_until_taken()
    assert regions.cache_prefaulted == 2 * MIB
    regions.give_back()


def test_nothing_is_taken_where_it_is_not_known_or_not_there(tmp_path: Path) -> None:
    assert begin_prefault(tmp_path, "none", GIB, 16 * GIB) is None, "no checkpoint"
    model = checkpoint(tmp_path, 10 * MIB)
    assert begin_prefault(model, "fp8", GIB, 16 * GIB) is None, "not a format of this engine's"
    assert begin_prefault(model, "none", GIB, 60 * MIB) is None, "too little memory"
    assert cache_prefault_bytes(64 * GIB) < GIB


def test_a_cache_larger_than_the_machine_gets_the_machines_room(tmp_path: Path) -> None:
    regions = begin_prefault(checkpoint(tmp_path, 10 * MIB), "none", 1 << 50, 4 * GIB)
    assert regions is not None
    assert len(regions.cache) == 4 * GIB
    regions.give_back()


def test_where_addresses_are_rationed_nothing_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(size: int) -> None:
        raise OSError("Cannot allocate memory")

    monkeypatch.setattr(prefault, "huge_pages", refuse)
    assert begin_prefault(checkpoint(tmp_path, 10 * MIB), "none", GIB, 16 * GIB) is None


def test_the_door_needs_no_torch() -> None:
    """It begins while torch is imported."""
    code = "import djl_python.engine.builtin.opening, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
