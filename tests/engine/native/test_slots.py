"""Places for states: one for each sequence of a batch, also where some were preempted."""

from __future__ import annotations

from djl_python.engine.native.slots import StateSlots
from djl_python.engine.scheduler import Chunk
from djl_python.engine.sequence import Sequence
from djl_python.types import SamplingParams


def sequence(number: int) -> Sequence:
    return Sequence(number, [1] * 9, 9, SamplingParams(max_new_tokens=1))


def test_a_sequence_keeps_its_place_and_begins_once() -> None:
    slots = StateSlots(2)
    one, two = sequence(1), sequence(2)
    first = slots.spans([Chunk(one, 4), Chunk(two, 9)])
    assert first.start.tolist() == [0, 4]
    assert first.begins.tolist() == [1, 1]
    one.computed, two.computed = 4, 9
    second = slots.spans([Chunk(two, 1), Chunk(one, 5)])
    assert second.size.tolist() == [1, 5]
    assert second.begins.tolist() == [0, 0]
    assert second.slot.tolist() == first.slot.tolist()[::-1]
    assert sorted(second.slot.tolist()) == [0, 1]


def test_who_ends_or_was_preempted_makes_room() -> None:
    slots = StateSlots(2)
    one, two, three = sequence(1), sequence(2), sequence(3)
    held = slots.spans([Chunk(one, 9), Chunk(two, 9)]).slot.tolist()
    one.computed, two.computed = 9, 0  # preempted
    assert slots.spans([Chunk(one, 1), Chunk(three, 9)]).slot.tolist() == held
    slots.forget(one)
    again = slots.spans([Chunk(two, 9), Chunk(three, 1)])
    assert again.slot.tolist() == held
    assert again.begins.tolist() == [1, 1]
