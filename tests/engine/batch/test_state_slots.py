"""Places for states, and prefixes that are only found where a state was saved."""

from __future__ import annotations

import random

import pytest

from djl_python.core.types import SamplingParams
from djl_python.engine.batch import kv_cache
from djl_python.engine.batch.chunk import SequenceChunk
from djl_python.engine.batch.kv_cache import BlockManager
from djl_python.engine.batch.sequence import Sequence
from djl_python.engine.batch.state_slots import StateSlots, StateSpan

SIZE = 4


class Cache:
    """A block manager with states, and what the states hold: the tokens before them."""

    def __init__(self, sequences: int = 2, saved: int = 2, *, blocks: int = 100, long_rope: bool = False) -> None:
        self.long_rope = long_rope
        self.states = StateSlots(sequences, saved)
        self.blocks = BlockManager(blocks, SIZE, states=self.states)
        self.held: dict[int, list[int]] = {}
        self.steps: list[list[StateSpan]] = []
        self.admitted: list[Sequence] = []

    def admit(self, number: int, tokens: list[int]) -> Sequence:
        sequence = Sequence(
            number, list(tokens), len(tokens), SamplingParams(max_new_tokens=1), long_rope=self.long_rope
        )
        assert self.blocks.admit(sequence)
        self.admitted.append(sequence)
        return sequence

    def step(self, *chunks: tuple[Sequence, int]) -> None:
        """Compute so many tokens of each, as kernels do: all read before anybody writes."""
        made = [SequenceChunk(sequence, length) for sequence, length in chunks]
        spans = self.states.spans(made)
        self.steps.append(spans)
        begun = [[] if span.source is None else list(self.held[span.source]) for span in spans]
        written: list[int] = []
        for chunk, span, before in zip(made, spans, begun, strict=True):
            first, sequence = chunk.sequence.computed, chunk.sequence
            assert before == sequence.tokens[:first]
            self.blocks.extend(sequence, first + chunk.length)
            for after, slot in [*span.saves, (chunk.length, span.slot)]:
                self.held[slot] = sequence.tokens[: first + after]
                written.append(slot)
            sequence.computed += chunk.length
            self.blocks.seal(sequence)
        others = [span.source for span in spans if span.source not in (span.slot, None)]
        assert len(set(written)) == len(written)
        assert not set(written) & set(others)

    def fail(self, *chunks: tuple[Sequence, int]) -> None:
        """Compute in vain: nobody knows what is left in any slot but those that others go on from."""
        spans = self.states.spans([SequenceChunk(sequence, length) for sequence, length in chunks])
        for sequence, _ in chunks:
            self.blocks.release(sequence)
        written = {slot for span in spans for slot in (span.slot, *(saved for _, saved in span.saves))}
        needed = [each.tokens[: each.computed] for each in self.admitted if each.computed]
        kept = {slot for slot, tokens in self.held.items() if tokens in needed} - written
        self.held = {slot: tokens if slot in kept else [-1] for slot, tokens in self.held.items()}
        self.blocks.forget()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_cache, "WORTH_SAVING", 1)


@pytest.mark.parametrize(("pieces", "saves"), [((5, 6), [[], [3]]), ((8, 3), [[8], []]), ((8, 1, 2), [[8], [], []])])
def test_a_prompt_asked_again_goes_on_where_it_ended(pieces: tuple[int, ...], saves: list[list[int]]) -> None:
    cache = Cache()
    first = cache.admit(1, list(range(11)))
    assert first.stops == (8,)
    for length in pieces:
        cache.step((first, length))
    assert [[after for after, _ in step[0].saves] for step in cache.steps] == saves
    cache.blocks.release(first)
    again = cache.admit(2, list(range(11)))
    assert again.computed == 8
    cache.step((again, 3))


@pytest.mark.parametrize("long_rope", [False, True])
@pytest.mark.parametrize("length", range(12, 18))
def test_a_prompt_that_continues_an_answer_reuses_its_last_state(length: int, long_rope: bool) -> None:
    cache = Cache(saved=3, long_rope=long_rope)
    one = cache.admit(1, list(range(6)))
    cache.step((one, 6))
    for token in range(6, length):
        one.tokens.append(token)
        cache.step((one, 1))
    one.tokens.append(length)  # is drawn, and ends it
    cache.blocks.retire(one)
    two = cache.admit(2, list(range(length + 9)))
    assert two.computed == length
    cache.step((two, two.remaining))
    other = cache.admit(3, [*range(length), 99])  # the state was taken over, but for a whole block's
    assert other.computed == (length if length % SIZE == 0 else 4)
    cache.step((other, other.remaining))


def test_a_cancelled_sequence_leaves_its_saved_state_to_others() -> None:
    cache = Cache()
    say(cache, 1, [1, 2, 3])
    for number in (2, 3):
        asking = cache.admit(number, [1, 2, 3, 99, 7])
        assert asking.computed == 3
        cache.blocks.retire(asking)


def say(cache: Cache, number: int, text: list[int]) -> int:
    """A prompt whose answer is one token, which ends it; how many of its tokens were known."""
    sequence = cache.admit(number, text)
    known = sequence.computed
    cache.step((sequence, sequence.remaining))
    sequence.tokens.append(99)
    cache.blocks.retire(sequence)
    return known


@pytest.mark.parametrize("length", [8, 10])
def test_a_repeated_prompt_saves_its_evicted_state_again(length: int) -> None:
    """Its keys may have stayed: without the state, nobody could go on from them."""
    cache, text = Cache(sequences=1, saved=2), list(range(length))
    for number, asked in enumerate((text, list(range(100, 110)), list(range(200, 210)), text)):
        assert say(cache, number, asked) == 0
    assert say(cache, 4, [*text, 99, 7]) == length


@pytest.mark.parametrize("length", [8, 10])
def test_a_repeated_prompt_evicts_no_other_state(length: int) -> None:
    cache = Cache(sequences=1, saved=3)
    say(cache, 0, list(range(100, 110)))
    for number in range(1, 5):
        say(cache, number, list(range(length)))
    assert say(cache, 5, [*range(100, 110), 99, 7]) == 10


def test_after_a_failed_step_nobody_goes_on_from_its_state() -> None:
    cache = Cache()
    one = cache.admit(1, list(range(6)))
    cache.step((one, 6))
    one.tokens.append(6)
    cache.states.spans([SequenceChunk(one, 1)])  # the kernels may have run
    cache.blocks.retire(one)
    assert cache.admit(2, list(range(9))).computed == 4  # what was saved in the middle of its prompt


def test_short_prefixes_are_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_cache, "WORTH_SAVING", 128)
    cache = Cache()
    assert cache.admit(1, list(range(128))).stops == ()
    assert cache.admit(2, list(range(1000, 1140))).stops == (136,)


def test_where_prompts_part_a_state_is_saved_the_second_time() -> None:
    cache = Cache(sequences=1, saved=4)
    prefix = list(range(12))
    for number, computed, stops in ((1, 0, (16,)), (2, 0, (12, 16)), (3, 12, (16,))):
        sequence = cache.admit(number, [*prefix, *[100 * number + i for i in range(7)]])
        assert (sequence.computed, sequence.stops) == (computed, stops)
        cache.step((sequence, sequence.remaining))
        cache.blocks.release(sequence)


def test_many_at_once_share_a_state_that_nobody_overwrites() -> None:
    cache = Cache(sequences=3, saved=1)
    one = cache.admit(1, list(range(9)))
    cache.step((one, 9))
    cache.blocks.release(one)
    three = [cache.admit(number, [*range(8), number, number]) for number in (2, 3, 4)]
    assert [each.computed for each in three] == [8, 8, 8]
    cache.step(*((each, 2) for each in three[:2]))
    cache.step((three[2], 2))


def test_the_least_recently_used_state_goes_first() -> None:
    cache = Cache(sequences=1, saved=2)

    def ask(start: int) -> int:
        sequence = cache.admit(start, list(range(start, start + 5)))
        cached = sequence.computed
        cache.step((sequence, sequence.remaining))
        cache.blocks.release(sequence)
        return cached

    assert [ask(start) for start in (0, 100, 0, 200, 0, 200, 100)] == [0, 0, 4, 0, 4, 4, 0]


def test_a_state_that_is_saved_again_is_as_good_as_new() -> None:
    cache = Cache(sequences=1, saved=2)
    for number, text in enumerate(([1, 2, 3], [4, 5, 6], [1, 2, 3], [7, 8, 9])):
        assert say(cache, number, text) == 0
    assert say(cache, 4, [1, 2, 3, 99, 7]) == 3


def test_the_keys_of_what_is_said_again_are_as_good_as_new() -> None:
    cache, text = Cache(sequences=1, saved=9, blocks=6), list(range(6))
    for number, said in enumerate((text, list(range(10, 16)), text, list(range(20, 32)))):
        assert say(cache, number, said) in (0, 4)
    assert say(cache, 4, [*text, 99, 7]) == 6


def test_prompt_logprobs_need_every_position_computed() -> None:
    cache = Cache()
    say(cache, 1, [1, 2, 3])
    asking = Sequence(2, [1, 2, 3, 4], 4, SamplingParams(max_new_tokens=1, prompt_logprobs=0))
    assert cache.blocks.admit(asking)
    assert asking.computed == 0


def test_without_room_for_saved_states_nothing_is_shared() -> None:
    cache = Cache(saved=0)
    for number in (1, 2):
        sequence = cache.admit(number, list(range(9)))
        assert sequence.computed == 0
        cache.step((sequence, 9))
        cache.blocks.release(sequence)


def test_forgotten_states_are_not_reused() -> None:
    cache = Cache()
    one = cache.admit(1, list(range(9)))
    cache.step((one, 9))
    cache.blocks.release(one)
    cache.blocks.forget()
    assert cache.admit(2, list(range(9))).computed == 0


@pytest.mark.parametrize("seed", range(20))
def test_states_are_always_those_of_the_tokens_before(seed: int) -> None:
    """Prompts with common beginnings, preempted and ended at random, in steps that may fail; `step` compares."""
    rng = random.Random(seed)
    cache = Cache(sequences=5, saved=rng.randrange(5))
    trunks = [[rng.randrange(2) for _ in range(30)] for _ in range(2)]
    running: list[Sequence] = []
    for number in range(200):
        if len(running) < 5 and rng.random() < 0.7:
            prompt = rng.choice(trunks)[: rng.randrange(30)] + [rng.randrange(2) for _ in range(rng.randrange(1, 6))]
            running.append(cache.admit(number, prompt))
        for sequence in list(running):
            if rng.random() < 0.15:
                rng.choice([cache.blocks.release, cache.blocks.retire])(sequence)
                running.remove(sequence)
        taking_part = [each for each in running if rng.random() < 0.4]
        for each in taking_part:
            if not each.remaining:
                each.tokens.append(rng.randrange(2))
        chunks = [(each, rng.randrange(1, each.remaining + 1)) for each in taking_part]
        if chunks and rng.random() < 0.15:
            cache.fail(*chunks)
            running = [each for each in running if each not in taking_part]
        elif chunks:
            cache.step(*chunks)
    for sequence in running:
        cache.blocks.retire(sequence)
    for number in range(5):  # every slot that isn't a saved state's is free again
        cache.step((cache.admit(1000 + number, [5 + number] * 9), 9))
