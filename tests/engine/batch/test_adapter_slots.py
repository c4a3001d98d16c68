"""Sequences run with their adapters in slots, and each adapter has its turn."""

from __future__ import annotations

from djl_python.core.types import SamplingParams
from djl_python.engine.batch.adapter_slots import AdapterSlots
from djl_python.engine.batch.kv_cache import BlockManager
from djl_python.engine.batch.scheduler import Scheduler
from djl_python.engine.batch.sequence import Sequence


class Runner:
    """What a runner's slots hold; adapters in `absent` are not in memory."""

    def __init__(self, count: int) -> None:
        self.held: dict[int, int] = {}
        self.loads: list[int] = []
        self.absent: set[int] = set()
        self.failing: set[int] = set()
        self.slots = AdapterSlots(count, lambda number: number not in self.absent, self.load, self.unload)

    def load(self, slot: int, number: int) -> bool:
        self.loads.append(number)
        self.held.pop(slot, None)
        if number in self.failing:
            return False
        self.held[slot] = number
        return True

    def unload(self, slot: int) -> None:
        del self.held[slot]

    def scheduler(self, sequences: int = 8, blocks: int = 64) -> Scheduler:
        return Scheduler(BlockManager(blocks, 4), max_sequences=sequences, max_prefill_tokens=64, adapters=self.slots)


def sequence(number: int, adapter: int, tokens: int = 3, token: int = 5) -> Sequence:
    return Sequence(number, [token] * tokens, tokens, SamplingParams(max_new_tokens=9), adapter_number=adapter)


def added(scheduler: Scheduler, *sequences: Sequence) -> list[Sequence]:
    for one in sequences:
        scheduler.add(one)
    return [*sequences]


def step(scheduler: Scheduler, runner: Runner) -> list[int]:
    """Schedule a step; returns the ids of its sequences, which must have their adapters in their slots."""
    chunks = scheduler.schedule()
    for chunk in chunks:
        own = chunk.sequence
        assert runner.held.get(own.adapter_slot, 0) == own.adapter_number
    scheduler.learn(chunks, 0.01)
    scheduler.mark_computed(chunks)
    for chunk in chunks:
        chunk.sequence.tokens.append(6)
    return [chunk.sequence.id for chunk in chunks]


def two_steps(scheduler: Scheduler, runner: Runner) -> set[int]:
    """The ids of the sequences of two steps: one of them may be of decode alone, which the pacer times."""
    return {*step(scheduler, runner), *step(scheduler, runner)}


def test_sequences_of_any_adapters_and_of_none_share_a_step() -> None:
    runner = Runner(2)
    scheduler = runner.scheduler()
    added(scheduler, sequence(1, 7), sequence(2, 0), sequence(3, 8), sequence(4, 7))
    assert step(scheduler, runner) == [1, 2, 3, 4]
    assert sorted(runner.held.values()) == [7, 8]


def test_a_sequence_without_an_adapter_overtakes_one_that_waits_for_a_slot() -> None:
    runner = Runner(1)
    scheduler = runner.scheduler()
    first, *_ = added(scheduler, sequence(1, 7), sequence(2, 8), sequence(3, 0))
    assert step(scheduler, runner) == [1, 3]
    scheduler.remove(first)
    assert two_steps(scheduler, runner) == {3, 2}
    assert runner.loads == [7, 8]


def test_a_flood_for_an_adapter_does_not_starve_another() -> None:
    """As soon as another one waits, later sequences of the first do too; then they have their turn again."""
    runner = Runner(1)
    scheduler = runner.scheduler(sequences=2)
    flood = added(scheduler, *(sequence(number, 7) for number in (1, 2)))
    assert step(scheduler, runner) == [1, 2]
    (other,) = added(scheduler, sequence(3, 8))
    flood += added(scheduler, sequence(4, 7), sequence(5, 7))
    scheduler.remove(flood[0])
    assert step(scheduler, runner) == [2], "what comes after the other one does not keep the slot"
    scheduler.remove(flood[1])
    assert step(scheduler, runner) == [3]
    scheduler.remove(other)
    assert step(scheduler, runner) == [4, 5]


def test_only_one_of_several_adapters_gives_up_its_slot() -> None:
    runner = Runner(2)
    scheduler = runner.scheduler()
    added(scheduler, sequence(1, 7), sequence(2, 8))
    step(scheduler, runner)
    added(scheduler, sequence(3, 9), sequence(4, 7), sequence(5, 8))
    assert two_steps(scheduler, runner) == {1, 2, 5}, "7 has had its slot for longest"


def test_an_adapter_that_is_being_read_holds_nobody_up() -> None:
    runner = Runner(1)
    runner.absent = {7}
    scheduler = runner.scheduler()
    added(scheduler, sequence(1, 7))
    assert step(scheduler, runner) == []
    added(scheduler, sequence(2, 8))
    assert step(scheduler, runner) == [2]
    runner.absent.clear()
    assert step(scheduler, runner) == [2], "8 has the slot"


def test_a_slot_is_used_again_after_a_failure_and_after_an_end() -> None:
    runner = Runner(1)
    runner.failing = {7}
    scheduler = runner.scheduler()
    broken, _ = added(scheduler, sequence(1, 7), sequence(2, 8))
    assert step(scheduler, runner) == [2]
    scheduler.remove(broken)
    scheduler.remove(scheduler.running[0])
    runner.slots.drop(8)
    assert runner.held == {}
    added(scheduler, sequence(3, 9))
    assert step(scheduler, runner) == [3]


def test_a_pinned_adapter_keeps_its_slot() -> None:
    runner = Runner(2)
    runner.slots.pin(7)
    scheduler = runner.scheduler()
    for number, adapter in enumerate((7, 8, 9, 10), 1):
        (one,) = added(scheduler, sequence(number, adapter))
        assert step(scheduler, runner) == [number]
        scheduler.remove(one)
    assert runner.loads == [7, 8, 9, 10]
    assert 7 in runner.held.values()


def test_an_adapter_that_is_no_longer_pinned_gives_up_its_slot() -> None:
    runner = Runner(2)
    runner.slots.pin(7)
    runner.slots.pin(8)
    scheduler = runner.scheduler()
    added(scheduler, sequence(1, 7), sequence(2, 8), sequence(3, 9))
    assert step(scheduler, runner) == [1, 2]
    scheduler.remove(scheduler.running[0])
    assert two_steps(scheduler, runner) == {2}
    runner.slots.unpin(7)
    assert runner.slots.pinned == {8}
    assert two_steps(scheduler, runner) == {2, 3}


def test_a_preempted_sequence_leaves_its_slot() -> None:
    runner = Runner(1)
    scheduler = runner.scheduler(blocks=4)
    added(scheduler, sequence(1, 7, tokens=7), sequence(2, 7, tokens=7, token=8))
    assert step(scheduler, runner) == [1, 2]
    for _ in range(3):
        step(scheduler, runner)
    [waiting] = scheduler.waiting
    assert (waiting.id, waiting.adapter_slot) == (2, 0)
    scheduler.remove(scheduler.running[0])
    assert step(scheduler, runner) == [2]
    assert runner.loads == [7]


def test_suspects_of_a_failed_step_run_alone_with_their_adapters() -> None:
    runner = Runner(1)
    scheduler = runner.scheduler()
    added(scheduler, sequence(1, 7), sequence(2, 0), sequence(3, 7))
    chunks = scheduler.schedule()
    assert scheduler.isolate(chunks) is None
    assert [step(scheduler, runner) for _ in range(3)] == [[1], [2], [3]]


def test_prefixes_are_shared_by_sequences_of_one_adapter_alone() -> None:
    runner = Runner(2)
    scheduler = runner.scheduler()
    for number, adapter in ((1, 7), (2, 8), (3, 0)):
        (one,) = added(scheduler, sequence(number, adapter, tokens=9))
        step(scheduler, runner)
        assert one.cached == 0
        scheduler.remove(one)
    for number, adapter in ((4, 7), (5, 8), (6, 0)):
        (one,) = added(scheduler, sequence(number, adapter, tokens=9))
        step(scheduler, runner)
        assert one.cached == 8
        scheduler.remove(one)
