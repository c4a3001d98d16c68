"""What a step computes: nobody is left out for long, and no step is empty."""

from __future__ import annotations

import dataclasses
import random

import pytest

from djl_python.core.turns.precedence import Precedence
from djl_python.core.types import SamplingParams
from djl_python.engine.batch import scheduler as scheduler_module
from djl_python.engine.batch.chunk import SequenceChunk
from djl_python.engine.batch.kv_cache import BlockManager
from djl_python.engine.batch.pacing import DECODE_ONLY_EVERY
from djl_python.engine.batch.scheduler import STEPS_TO_TRUST, Scheduler
from djl_python.engine.batch.sequence import Sequence

BLOCK = 16
PROMPT = 200
SIZE = 4


def scheduler(blocks: int = 64) -> Scheduler:
    return Scheduler(BlockManager(blocks, BLOCK), max_sequences=8, max_prefill_tokens=64)


def sequence(number: int, length: int) -> Sequence:
    tokens = [number * 1000 + i for i in range(length)]
    return Sequence(number, tokens, length, SamplingParams(max_new_tokens=500))


def run(made: Scheduler, drafts: int = 0) -> list[SequenceChunk]:
    """One step, in which everybody who generates has that many drafts, all of them wrong."""
    chunks = [
        SequenceChunk(chunk.sequence, chunk.length + drafts, (1,) * drafts) if chunk.sequence.remaining == 1 else chunk
        for chunk in made.schedule()
    ]
    made.learn(chunks, 0.01)
    made.mark_computed(chunks)
    for chunk in chunks:
        if chunk.sequence.remaining == 0:
            chunk.sequence.tokens.append(7)
    return chunks


def test_prompts_are_read_beside_those_whose_every_step_has_drafts() -> None:
    made = scheduler()
    made.add(sequence(1, 10))
    run(made)
    waiting = sequence(2, PROMPT)
    made.add(waiting)
    for _ in range(PROMPT):
        run(made, drafts=3)
    assert waiting.remaining <= 1
    for number in range(3, 3 + DECODE_ONLY_EVERY):
        made.add(late := sequence(number, 20))
        for _ in range(3):
            run(made, drafts=3)
        assert late.computed
        made.remove(late)


@pytest.mark.parametrize("weight", [20.0, 1000.0])
def test_a_light_tenant_begins_within_its_share_and_costs_the_other_one_preemption(weight: float) -> None:
    made, heavy = scheduler(blocks=4000), Precedence("gold", weight)

    def queue(number: int, precedence: Precedence) -> Sequence:
        made.add(queued := dataclasses.replace(sequence(number, PROMPT), precedence=precedence))
        return queued

    for number in range(1, 200):
        queue(number, heavy)
    for _ in range(40):
        run(made)
    assert len(made.running) == made.max_sequences
    light, before, read = queue(900, Precedence("light")), made.preemptions, 0
    while not light.computed:
        read += sum(chunk.length for chunk in run(made) if chunk.sequence.remaining > 1)
        assert read < 3 * (weight + 1), "a token is due to it for each `weight` tokens of others"
    assert made.preemptions <= before + 1


def test_a_step_is_not_empty_because_the_one_that_generates_gives_way() -> None:
    made = scheduler(blocks=6)
    made.add(half_read := sequence(1, 90))
    run(made)
    assert half_read.computed == 64
    decoding = sequence(2, 2 * BLOCK + 1)
    made.blocks.extend(decoding, 2 * BLOCK)
    decoding.computed = 2 * BLOCK
    made.waiting.seat(decoding)
    made.running.append(decoding)
    assert made.blocks.used == 6, "there is none left for its next token"
    assert made.pacer.budget(1) == 0
    assert run(made) == [SequenceChunk(half_read, 26)]
    assert list(made.waiting) == [decoding]


def test_a_prompt_that_must_not_be_split_is_read_in_one_step() -> None:
    made = Scheduler(BlockManager(64, BLOCK), max_sequences=8, max_prefill_tokens=64, whole_prompts=True)
    made.add(decoding := sequence(1, 10))
    for _ in range(3):
        run(made)
    prompts = [sequence(number, PROMPT) for number in (2, 3)]
    for each in prompts:
        made.add(each)
    lengths = {
        each.id: [chunk.length for chunk in chunks if chunk.sequence is each and chunk.length > 1]
        for chunks in [[chunk for _ in range(4) for chunk in run(made)]]
        for each in prompts
    }
    assert lengths == {2: [PROMPT], 3: [PROMPT]}
    assert decoding.generated == 3 + 4, "and who generates goes on in every step"


def test_a_prompt_that_must_not_be_split_is_not_split_when_a_step_is_repeated_one_by_one() -> None:
    made = Scheduler(BlockManager(64, BLOCK), max_sequences=8, max_prefill_tokens=64, whole_prompts=True)
    two = [sequence(number, PROMPT) for number in (1, 2)]
    for each in two:
        made.add(each)
    while not all(each.generated for each in two):
        run(made)
    lengths = [len(each.tokens) for each in two]
    assert made.isolate(made.schedule()) is None
    assert [run(made) for _ in two] == [
        [SequenceChunk(each, length)] for each, length in zip(two, lengths, strict=True)
    ]


def test_an_isolated_step_preempts_sequences_that_were_not_in_it() -> None:
    """Its sequences need room for all their tokens then, and not only for those that the step would have read."""
    made = scheduler(blocks=7)
    other, *two = [sequence(number, blocks * BLOCK - 1) for number, blocks in enumerate((4, 4, 3))]
    for each, held in ((other, 4), (two[0], 1), (two[1], 1)):
        made.blocks.extend(each, held * BLOCK)
        made.waiting.seat(each)
        made.running.append(each)
    assert made.isolate([SequenceChunk(each, BLOCK) for each in two]) is None
    assert [run(made) for _ in two] == [[SequenceChunk(each, each.prompt_length)] for each in two]
    assert list(made.waiting) == [other]


def test_after_memory_ran_out_more_sequences_are_tried_again_by_and_by() -> None:
    made = scheduler(blocks=4 * (STEPS_TO_TRUST + 20) // BLOCK)
    for number in range(4):
        made.add(sequence(number, 10))
    chunks = made.schedule()
    assert made.relieve(chunks, repeatable=True) is None
    assert ([each.id for each in made.running], [each.id for each in made.waiting]) == ([0, 1, 2], [3])
    assert len(run(made)) == 3
    for _ in range(STEPS_TO_TRUST):
        run(made)
    assert len(run(made)) == 4


def test_where_a_step_without_memory_cannot_be_repeated_all_of_it_begins_again_in_its_order() -> None:
    made = scheduler()
    for number in range(4):
        made.add(sequence(number, 10))
    chunks = made.schedule()
    assert made.relieve(chunks, repeatable=False) is None
    assert ([*made.running], [each.id for each in made.waiting]) == ([], [0, 1, 2, 3])
    assert [chunk.sequence.id for chunk in run(made)] == [0, 1, 2]


@pytest.mark.parametrize("repeatable", [True, False])
def test_the_remaining_sequences_of_a_step_without_memory_go_on(repeatable: bool) -> None:
    made = scheduler()
    for number in range(2):
        made.add(sequence(number, 10))
    chunks = made.schedule()
    made.remove(chunks[0].sequence)
    assert made.relieve(chunks, repeatable) is None
    assert [chunk.sequence for chunk in run(made)] == [chunks[1].sequence]


def test_sequences_that_outgrow_the_short_context_together_begin_again_once_and_in_their_order() -> None:
    again: list[int] = []
    made = Scheduler(
        BlockManager(64, BLOCK),
        max_sequences=8,
        max_prefill_tokens=64,
        short_context=20,
        on_preempt=lambda sequence: again.append(sequence.id),
    )
    three = [sequence(number, 20 - 5 * (number == 1)) for number in range(3)]
    for each in three:
        made.add(each)
    run(made)
    assert [chunk.sequence.id for chunk in made.schedule()] == [1]
    assert [(each.id, each.long_rope, each.blocks) for each in made.waiting] == [(0, True, []), (2, True, [])]
    while min(each.generated for each in three) < 9:
        run(made)
    assert again == [2, 0, 1]


def test_a_prompt_beside_others_gets_what_is_due_to_one_prompt_however_many_generate() -> None:
    made = Scheduler(BlockManager(640, BLOCK), max_sequences=8, max_prefill_tokens=2048)
    five = [sequence(number, 10) for number in range(5)]
    for each in five:
        made.add(each)
    while not (all(each.generated for each in five) and made.pacer.budget(5)):
        run(made)
    made.learn([SequenceChunk(sequence(9, 200), 200)], 0.02)  # a prompt's token takes a hundredth of such a step
    made.add(sequence(6, 1000))
    budgets = [made.pacer.budget(5, prompts) for prompts in (1, 6)]
    assert [chunk.length for chunk in made.schedule()] == [1] * 5 + budgets[:1]
    assert budgets[0] < budgets[1]


def test_a_prompt_alone_is_read_at_once_and_several_are_not() -> None:
    lengths = []
    for prompts in (1, 2):
        made = Scheduler(BlockManager(640, BLOCK), max_sequences=8, max_prefill_tokens=2048)
        for number in range(prompts):
            made.add(sequence(number, 1000))
        lengths.append([chunk.length for chunk in made.schedule()])
    assert lengths[0] == [1000]
    assert sum(lengths[1]) < 1000


@pytest.mark.parametrize(
    ("short_context", "blocks", "room"), [(0, 3, 5), (0, 2, 2), (33, 3, 3), (33, 2, 2), (99, 3, 5), (20, 3, 5)]
)
def test_drafts_get_the_room_that_is_to_spare_up_to_the_short_context(
    short_context: int, blocks: int, room: int
) -> None:
    made = Scheduler(BlockManager(blocks, BLOCK), max_sequences=8, max_prefill_tokens=64, short_context=short_context)
    made.add(one := sequence(1, 2 * BLOCK - 3))
    run(made)
    [chunk] = made.schedule()
    assert made.reserve(chunk, 5) == room
    assert made.blocks.used == len(one.blocks) == made.blocks.blocks_for(one.computed + chunk.length + room)


class Cache:
    """A scheduler whose steps are computed here: each place of a block holds all tokens up to it.

    Steps fail as real ones do: before their end, with places written that do not count yet.
    """

    def __init__(self, rng: random.Random, *, blocks: int, short_context: int = 0) -> None:
        self.rng = rng
        self.short_context = short_context
        self.recomputed = self.without_room = 0
        self.made = Scheduler(
            BlockManager(blocks, SIZE),
            max_sequences=4,
            max_prefill_tokens=10,
            short_context=short_context,
            on_preempt=self.preempted,
        )
        self.places: dict[tuple[int, int], object] = {}
        self.started: list[int] = []
        self.cursed: set[int] = set()
        self.ended: list[int] = []

    def preempted(self, sequence: Sequence) -> None:
        assert (sequence.computed, sequence.blocks) == (0, [])
        self.recomputed += 1

    def schedule(self) -> list[SequenceChunk]:
        made, alone = self.made, bool(self.made.suspects)
        recomputed = self.recomputed
        chunks = made.schedule()
        self.without_room += 0 if alone else self.recomputed - recomputed
        taking_part = [chunk.sequence for chunk in chunks]
        assert chunks, "a step computes something"
        assert len(made.running) <= made.fitting <= made.max_sequences or alone
        assert sum(chunk.length for chunk in chunks if chunk.sequence.remaining > 1) <= made.max_prefill_tokens
        assert all(chunk.length > 0 for chunk in chunks)
        assert len(chunks) == 1 or not alone
        waits = [each for each in made.running if each.remaining == 1 and each not in taking_part]
        assert alone or not waits, "who generates takes part in every step"
        for sequence in taking_part:
            assert sequence.long_rope == (0 < self.short_context < len(sequence.tokens))
            if sequence.id not in self.started:
                assert not self.started or sequence.id > max(self.started), "first come, first served"
                self.started.append(sequence.id)
        return [self.with_drafts(chunk) if chunk.sequence.remaining == 1 else chunk for chunk in chunks]

    def with_drafts(self, chunk: SequenceChunk) -> SequenceChunk:
        sequence, tokens = chunk.sequence, list(chunk.sequence.tokens)
        room = self.made.reserve(chunk, min(3, sequence.sampling.max_new_tokens - sequence.generated - 1))
        for _ in range(room):
            tokens.append(following(tokens) if self.rng.random() < 0.7 else -1)
        return SequenceChunk(sequence, 1 + room, tuple(tokens[len(tokens) - room :] if room else ()))

    def compute(self, chunk: SequenceChunk) -> None:
        sequence, text = chunk.sequence, [*chunk.sequence.tokens[: chunk.sequence.computed], *chunk.tokens]
        for position in range(len(text)):
            place, content = (
                (sequence.blocks[position // SIZE], position % SIZE),
                (sequence.long_rope, text[: position + 1]),
            )
            if position >= sequence.computed:
                self.places[place] = content
            assert self.places.get(place) == content, "what was computed of it is still there"

    def step(self, failing: str = "") -> None:
        chunks = self.schedule()
        for chunk in chunks:
            self.compute(chunk)
        if self.cursed.intersection(chunk.sequence.id for chunk in chunks if chunk.completes):
            culprit = self.made.isolate(chunks)
            assert culprit is (chunks[0].sequence if len(chunks) == 1 else None)
            if culprit is not None:
                self.end(culprit)
                return
            # Nobody knows what the step did to blocks, but for those that others are using.
            used = {block for sequence in self.made.running for block in sequence.blocks}
            self.places = {place: content for place, content in self.places.items() if place[0] in used}
        elif failing:
            running = len(self.made.running)
            alone = self.made.relieve(chunks, failing == "repeatable")
            assert alone is (chunks[0].sequence if len(chunks) == 1 else None)
            assert alone is not None or len(self.made.running) <= self.made.fitting == running - 1
        else:
            self.made.learn(chunks, 0.01)
            self.made.mark_computed(chunks)
            for chunk in chunks:
                self.append(chunk)

    def append(self, chunk: SequenceChunk) -> None:
        sequence = chunk.sequence
        if sequence.remaining:
            return
        for draft in [*chunk.drafts, None]:
            sequence.tokens.append(following(sequence.tokens))
            if sequence.generated == sequence.sampling.max_new_tokens:
                self.end(sequence)
                return
            if sequence.tokens[-1] != draft:
                return
            sequence.computed += 1

    def end(self, sequence: Sequence) -> None:
        self.made.remove(sequence)
        self.ended.append(sequence.id)


def following(tokens: list[int]) -> int:
    return (sum(tokens) * 31 + len(tokens)) % 3


@pytest.mark.parametrize("short_context", [0, 20])
@pytest.mark.parametrize("seed", range(8))
def test_random_failures_end_only_their_culprits(
    seed: int, short_context: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts with common beginnings in too few blocks, cancelled, failing, and out of memory at random."""
    monkeypatch.setattr(scheduler_module, "STEPS_TO_TRUST", 20)
    rng = random.Random(seed)
    cache = Cache(rng, blocks=14, short_context=short_context)
    made, coming = cache.made, list(range(60))
    live: dict[int, Sequence] = {}
    steps = 0
    assert made.idle
    while coming or not made.idle:
        while coming and (made.idle or rng.random() < 0.2):
            number = coming.pop(0)
            tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 25))]
            live[number] = Sequence(number, tokens, len(tokens), SamplingParams(max_new_tokens=rng.randrange(1, 25)))
            made.add(live[number])
            if rng.random() < 0.05:
                cache.cursed.add(number)
        assert not made.idle
        cache.step(rng.choice(["", "repeatable", "recompute"]) if rng.random() < 0.02 else "")
        for sequence in list(made.running) + list(made.waiting):
            if rng.random() < 0.002:
                cache.end(sequence)
        steps += 1
        assert steps < 4000
    assert sorted(cache.ended) == list(range(60))
    assert made.blocks.used == 0
    assert short_context or made.preemptions == cache.without_room > 0


class TestShares:
    """What tenants, priorities and batches get of a step."""

    @staticmethod
    def of(number: int, length: int, tenant: str = "", weight: float = 1.0, **turn: int | bool) -> Sequence:
        made = sequence(number, length)
        made.precedence = Precedence(tenant, weight, **turn)  # type: ignore[arg-type]
        return made

    def test_a_single_request_runs_at_once_whatever_another_tenant_has_queued(self) -> None:
        made = scheduler(blocks=512)
        for number in range(100):
            made.add(self.of(number, 5, "flood"))
        for _ in range(10):
            run(made)
        assert len(made.running) == 8
        made.add(single := self.of(100, 5, "single"))
        for _ in range(2):  # one of them may be a step of decode alone
            run(made)
        assert single in made.running and single.generated

    def test_places_are_shared_by_weight_and_then_stay(self) -> None:
        made = scheduler(blocks=512)
        for number in range(20):
            made.add(self.of(number, 5, "a"))
        run(made)
        for number in range(20, 40):
            made.add(self.of(number, 5, "b", weight=3.0))
        for _ in range(10):
            run(made)
        assert sorted(each.precedence.tenant for each in made.running) == ["a"] * 2 + ["b"] * 6
        before = made.preemptions
        for _ in range(20):
            run(made)
        assert made.preemptions == before

    def test_prefill_tokens_are_shared_while_another_tenant_reads_a_long_prompt(self) -> None:
        made = scheduler(blocks=512)
        made.add(self.of(1, 4000, "a"))
        run(made)
        made.add(short := self.of(2, 30, "b"))
        for _ in range(2):
            run(made)
        assert short.generated

    def test_an_urgent_request_takes_the_place_of_the_least_urgent_of_its_tenant(self) -> None:
        made = scheduler(blocks=512)
        for number in range(8):
            made.add(self.of(number, 5, priority=number))
        run(made)
        made.add(urgent := self.of(9, 5, priority=-1))
        for _ in range(2):  # one of them may be a step of decode alone
            run(made)
        assert urgent in made.running
        assert [each.id for each in made.waiting] == [7]

    def test_blocks_that_run_out_are_taken_from_the_least_urgent(self) -> None:
        made = scheduler(blocks=6)
        made.add(patient := self.of(1, 2 * BLOCK - 1, priority=1))
        run(made)
        for number in (2, 3):
            made.add(self.of(number, 2 * BLOCK - 1))
        for _ in range(4):
            run(made)
        assert [*made.waiting] == [patient]

    def test_a_batch_gives_its_place_to_any_other_request(self) -> None:
        made = scheduler(blocks=512)
        for number in range(12):
            made.add(self.of(number, 5, background=True))
        run(made)
        for number in range(12, 20):
            made.add(self.of(number, 5))
        for _ in range(12):
            run(made)
        assert not any(each.precedence.background for each in made.running)

    def test_memory_is_made_for_a_tenant_below_its_share(self) -> None:
        made = Scheduler(BlockManager(8, BLOCK), max_sequences=4, max_prefill_tokens=64)
        for number in range(4):
            made.add(self.of(number, BLOCK + 2, "a"))
        for _ in range(3):
            run(made)
        assert made.blocks.available == 0 and len(made.running) == 4
        made.add(single := self.of(9, BLOCK + 2, "b"))
        for _ in range(3):
            run(made)
        assert single.generated
