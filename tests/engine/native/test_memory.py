"""Memory that is there when it is needed."""

from __future__ import annotations

import itertools
import mmap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from djl_python.engine.devices.pages import give_back, prefault
from djl_python.engine.native import memory
from djl_python.engine.native.memory import Arena, PrefaultedMemory, on_huge_pages

MIB = 1 << 20


@pytest.fixture(autouse=True, scope="module")
def _kernels() -> None:
    """No kernel runs here."""


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_huge_pages_are_zeros_that_cost_nothing_yet() -> None:
    before = resident_bytes()
    memory = on_huge_pages(512 * MIB + 5)
    assert memory.shape == (512 * MIB + 5,)
    assert memory.dtype == torch.uint8
    assert resident_bytes() - before < 64 * MIB
    memory[-1] = 7
    assert memory[-1] == 7
    assert not memory[: 4 * MIB].any()


def test_a_kernel_without_huge_pages_gives_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 1 << 20)  # as such a kernel answers: there is no such advice
    assert not on_huge_pages(MIB).any()


def test_an_arena_holds_many_things_side_by_side() -> None:
    before = resident_bytes()
    arena = Arena()
    parts = [arena.take(300_001) for _ in range(100)]
    for number, part in enumerate(parts):
        assert part.shape == (300_001,)
        assert part.data_ptr() % 64 == 0
        assert not part.any()
        part.fill_(number)
    assert all((part == number).all() for number, part in enumerate(parts))
    assert resident_bytes() - before < 40 * MIB
    large = arena.take(300 * MIB)
    large[-1] = 1
    assert not large[:MIB].any()
    taken = resident_bytes()
    give_back(large.data_ptr(), large.data_ptr() + len(large))
    assert resident_bytes() <= taken - 2 * MIB
    assert (parts[1] == 1).all()


def test_an_arena_begins_with_a_room_and_gives_back_what_it_does_not_need() -> None:
    room = on_huge_pages(64 * MIB)
    room.zero_()
    before = resident_bytes()
    arena = Arena(room)
    first = arena.take(20 * MIB)
    assert first.data_ptr() == room.data_ptr()
    first.fill_(5)
    large = arena.take(60 * MIB)
    assert not large.any()
    assert resident_bytes() <= before - 40 * MIB + 64 * MIB
    arena.close()
    assert (first == 5).all()


def test_touching_takes_memory_and_leaves_what_is_there() -> None:
    memory = on_huge_pages(64 * MIB)
    memory[9 * MIB] = 3
    before = resident_bytes()
    start = memory.data_ptr()
    prefault(start + 8 * MIB + 100, start + 40 * MIB + 100)
    assert resident_bytes() - before > 20 * MIB
    assert memory[9 * MIB] == 3


def test_memory_is_taken_ahead_of_its_use_and_no_further() -> None:
    before = resident_bytes()
    growing = PrefaultedMemory(1024 * MIB, ahead=32 * MIB)
    growing.bytes[: 8 * MIB] = 1
    growing.used_to(8 * MIB)
    time.sleep(0.1)
    assert resident_bytes() - before < 16 * MIB, "nothing is taken while somebody works"
    growing.rest()
    deadline = time.monotonic() + 20
    while resident_bytes() - before < 40 * MIB:
        assert time.monotonic() < deadline, "nothing was taken ahead"
        time.sleep(0.01)
    growing.close()
    assert resident_bytes() - before < 64 * MIB
    assert growing.bytes[8 * MIB - 1] == 1
    assert not growing.bytes[8 * MIB :][: 32 * MIB].any()


def test_as_much_again_as_is_used_is_taken_ahead() -> None:
    growing = PrefaultedMemory(1024 * MIB, ahead=8 * MIB)
    growing.bytes[: 64 * MIB] = 1
    before = resident_bytes()
    growing.used_to(64 * MIB)
    growing.rest()
    deadline = time.monotonic() + 20
    while resident_bytes() - before < 60 * MIB:
        assert time.monotonic() < deadline, "too little was taken ahead"
        time.sleep(0.01)
    growing.close()
    assert resident_bytes() - before < 80 * MIB


def test_memory_ends_where_it_ends() -> None:
    growing = PrefaultedMemory(3 * MIB, ahead=32 * MIB)
    growing.used_to(3 * MIB)
    growing.bytes[-1] = 1
    growing.close()
    assert len(growing.bytes) == 3 * MIB


def between_lines(
    line: int, then: Callable[[PrefaultedMemory], None]
) -> tuple[PrefaultedMemory, threading.Thread, bool]:
    """What a caller does when memory's thread is about to run a line: done before that line, unless a lock keeps it.

    Returns:
        The memory; the caller's thread; whether there was such a line before there was nothing to do.
    """
    reached = threading.Event()
    lines = itertools.count()
    growing = PrefaultedMemory(64 << 10, ahead=16 << 10)
    caller = threading.Thread(target=then, args=(growing,), daemon=True)

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != memory.__file__:
            return None
        if event == "line" and next(lines) == line:
            caller.start()
            caller.join(0.01)
            reached.set()
        return trace

    before = threading.gettrace()
    threading.settrace(trace)
    try:
        growing.used_to(4 << 10)
    finally:
        threading.settrace(before)
    growing.rest()
    return growing, caller, reached.wait(0.2)


def test_the_prefaulting_thread_can_be_closed_at_any_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "QUIET_S", 0.001)
    for line in itertools.count():
        growing, closing, reached = between_lines(line, PrefaultedMemory.close)
        if not reached:
            break
        closing.join(20)
        assert not closing.is_alive(), f"closed before line {line} of its thread's, it never ends"
    growing.close()
    assert line > 10


def test_the_prefaulting_thread_learns_of_growth_at_any_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def use_more(growing: PrefaultedMemory) -> None:
        growing.used_to(32 << 10)
        growing.rest()

    monkeypatch.setattr(memory, "QUIET_S", 0.001)
    for line in itertools.count():
        growing, using, reached = between_lines(line, use_more)
        if not reached:
            break
        using.join(20)
        deadline = time.monotonic() + 2
        while growing.taken < 64 << 10:
            assert time.monotonic() < deadline, f"told before line {line} of its thread's, it doesn't know"
            time.sleep(0.001)
        growing.close()
    growing.close()
    assert line > 10


def test_memory_lies_in_a_room_of_which_the_rest_goes() -> None:
    room = on_huge_pages(64 * MIB)
    room[: 48 * MIB] = 0
    before = resident_bytes()
    growing = PrefaultedMemory(16 * MIB, ahead=8 * MIB, room=(room, 48 * MIB))
    assert growing.bytes.data_ptr() == room.data_ptr()
    assert len(growing.bytes) == 16 * MIB
    assert resident_bytes() <= before - 30 * MIB
    growing.used_to(16 * MIB)
    growing.close()


def test_a_room_that_is_too_small_is_left() -> None:
    room = on_huge_pages(8 * MIB)
    growing = PrefaultedMemory(16 * MIB, ahead=8 * MIB, room=(room, 8 * MIB))
    assert len(growing.bytes) == 16 * MIB
    growing.close()
