"""Memory that is there when it is needed."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from djl_python.engine.native.memory import Arena, Growing, on_huge_pages, touch

MIB = 1 << 20


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
    arena.give_back(parts[0])
    arena.give_back(large)
    assert resident_bytes() <= taken - 2 * MIB
    assert (parts[1] == 1).all()


def test_touching_takes_memory_and_leaves_what_is_there() -> None:
    memory = on_huge_pages(64 * MIB)
    memory[9 * MIB] = 3
    before = resident_bytes()
    touch(memory, 8 * MIB + 100, 40 * MIB + 100)
    assert resident_bytes() - before > 20 * MIB
    assert memory[9 * MIB] == 3


def test_memory_is_taken_ahead_of_its_use_and_no_further() -> None:
    before = resident_bytes()
    growing = Growing(1024 * MIB, ahead=32 * MIB)
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
    growing = Growing(1024 * MIB, ahead=8 * MIB)
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
    growing = Growing(3 * MIB, ahead=32 * MIB)
    growing.used_to(3 * MIB)
    growing.bytes[-1] = 1
    growing.close()
    assert len(growing.bytes) == 3 * MIB
