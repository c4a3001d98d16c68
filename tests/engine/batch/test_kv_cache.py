"""Blocks: nobody's block is handed out twice, shared content is found, and room is made in the right order."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from typing import Any

import pytest

from djl_python.core.types import Images, SamplingParams
from djl_python.engine.batch import kv_cache
from djl_python.engine.batch.kv_cache import BlockManager, OutOfBlocksError
from djl_python.engine.batch.sequence import Sequence

SIZE = 4


def sequence(tokens: list[int], number: int = 0, **params: Any) -> Sequence:
    return Sequence(number, tokens, len(tokens), SamplingParams(max_new_tokens=9, **params))


def compute(blocks: BlockManager, mine: Sequence) -> None:
    """What a step does: room, tokens, registration."""
    blocks.extend(mine, len(mine.tokens))
    mine.computed = len(mine.tokens)
    blocks.seal(mine)


def test_blocks_are_counted_given_and_taken_back() -> None:
    blocks = BlockManager(5, SIZE)
    mine = sequence([1] * 9)
    assert blocks.admit(mine)
    compute(blocks, mine)
    assert len(set(mine.blocks)) == 3
    assert (blocks.used, blocks.available) == (3, 2)
    assert not blocks.admit(sequence([2] * 9)), "three blocks are not free"
    blocks.release(mine)
    assert (blocks.used, blocks.available, mine.blocks, mine.computed) == (0, 5, [], 0)


def test_running_out_keeps_what_was_given() -> None:
    blocks = BlockManager(2, SIZE)
    mine = sequence([1] * 20)
    with pytest.raises(OutOfBlocksError):
        blocks.extend(mine, 20)
    assert len(mine.blocks) == 2
    blocks.release(mine)
    assert blocks.used == 0


def test_blocks_with_other_images_are_not_shared() -> None:
    blocks = BlockManager(20, SIZE)

    def seeing(*marks: tuple[int, bytes]) -> Sequence:
        with_images = sequence([7] * 17)
        with_images.images = Images({}, marks, 12)
        return with_images

    first = seeing((5, b"cat"), (9, b"dog"))
    blocks.admit(first)
    compute(blocks, first)
    for again, shared in (
        (seeing((5, b"cat"), (9, b"dog")), 4),
        (seeing((5, b"cat"), (9, b"cow")), 2),
        (seeing((5, b"cat"), (10, b"dog")), 2),  # the first image has a token more
        (seeing((6, b"cat"), (9, b"dog")), 1),
        (seeing((5, b"cow")), 1),
        (sequence([7] * 17), 1),
    ):
        assert blocks.admit(again)
        assert again.blocks == first.blocks[:shared]
        blocks.release(again)


def test_blocks_of_another_salt_are_not_shared() -> None:
    blocks = BlockManager(20, SIZE)
    for salt, shared in (("", 0), ("a", 0), ("b", 0), ("", 2), ("a", 2), ("b", 2), ("ab", 0)):
        mine = sequence([1] * 9)
        mine.cache_salt = salt
        assert blocks.admit(mine)
        assert mine.computed == shared * SIZE, salt
        compute(blocks, mine)
        blocks.retire(mine)


def test_a_known_prefix_is_shared_and_one_token_is_left_to_compute() -> None:
    blocks = BlockManager(10, SIZE)
    first, second, third = (
        sequence([1, 2, 3, 4, 5, 6, 7, 8]),
        sequence([1, 2, 3, 4, 5, 6, 7, 8]),
        sequence([1, 2, 3, 4, 9, 9, 9, 9, 9]),
    )
    blocks.admit(first)
    compute(blocks, first)
    assert blocks.admit(second)
    assert second.blocks == first.blocks[:1], "the last block's last token must be computed for its logits"
    assert second.computed == 4
    assert blocks.admit(third)
    assert third.blocks == first.blocks[:1]
    blocks.release(first)
    assert blocks.used == 1
    blocks.release(second)
    blocks.release(third)
    assert blocks.used == 0


def test_the_same_tokens_after_another_beginning_are_not_the_same_content() -> None:
    blocks = BlockManager(10, SIZE)
    first = sequence([1, 1, 1, 1, 2, 2, 2, 2, 3])
    blocks.admit(first)
    compute(blocks, first)
    other = sequence([9, 9, 9, 9, 2, 2, 2, 2, 3])
    blocks.admit(other)
    assert other.computed == 0


def test_a_prefix_computed_twice_at_once_still_serves_what_follows() -> None:
    blocks = BlockManager(10, SIZE)
    first, second = sequence([1, 1, 1, 1, 2, 2, 2, 2, 3]), sequence([1, 1, 1, 1, 4, 4, 4, 4, 3])
    blocks.admit(first)
    blocks.admit(second)
    compute(blocks, first)
    compute(blocks, second)
    blocks.release(second)
    again = sequence([1, 1, 1, 1, 4, 4, 4, 4, 3])
    blocks.admit(again)
    assert again.computed == 8
    assert again.blocks[0] == first.blocks[0]


def test_a_preempted_sequence_does_not_count_its_own_blocks_as_cached() -> None:
    blocks = BlockManager(10, SIZE)
    first = sequence([1, 1, 1, 1, 2, 2, 2, 2, 3])
    assert first.cached is None
    for _ in range(2):  # the second time, it has been preempted
        blocks.admit(first)
        assert first.cached == 0
        compute(blocks, first)
        blocks.release(first)
    later = sequence([1, 1, 1, 1, 2, 2, 2, 2, 3])
    blocks.admit(later)
    assert later.cached == 8
    blocks.release(later)
    blocks.forget()
    blocks.admit(later)
    assert later.cached == 0  # it was computed again after all
    blocks.release(later)
    later.tokens.append(4)
    assert later.append(5, -1.0, (), frozenset(), 100).cached_tokens is None  # told with the first token


@pytest.mark.parametrize(("tokens", "known"), [([1, 1, 1, 1, 2, 2, 2, 2, 3], 4), ([5, 5, 5, 5, 6, 6, 6, 6, 3], 8)])
def test_the_least_recently_used_goes_first_and_of_a_prefix_the_tail(tokens: list[int], known: int) -> None:
    blocks = BlockManager(4, SIZE)
    old, new = sequence([1, 1, 1, 1, 2, 2, 2, 2]), sequence([5, 5, 5, 5, 6, 6, 6, 6])
    for mine in (old, new):
        blocks.admit(mine)
        compute(blocks, mine)
    blocks.release(old)
    blocks.release(new)
    filler = sequence([8] * 4)
    assert blocks.admit(filler)
    compute(blocks, filler)
    probe = sequence(tokens)
    assert blocks.admit(probe)
    assert probe.computed == known


def serve(blocks: BlockManager, tokens: list[int]) -> int:
    """One sequence from beginning to end; how many of its tokens were known."""
    mine = sequence(tokens)
    assert blocks.admit(mine)
    known = mine.computed
    compute(blocks, mine)
    blocks.release(mine)
    return known


class TouchedBlocks(BlockManager):
    """Counts the blocks that have been used at some time: they are given out from the lowest number on."""

    touched = 0

    def extend(self, sequence: Sequence, tokens: int) -> None:
        super().extend(sequence, tokens)
        self.touched = max([self.touched, *(block + 1 for block in sequence.blocks)])


def test_blocks_never_reused_are_evicted_before_memory_grows() -> None:
    blocks = TouchedBlocks(4000, SIZE, resident_blocks=lambda: 0)
    for number in range(500):
        serve(blocks, [number] * (4 * SIZE))
    assert 448 <= blocks.touched < 470
    assert serve(blocks, [499] * (4 * SIZE) + [1]) == 4 * SIZE, "the latest is still there"
    assert serve(blocks, [0] * (4 * SIZE) + [1]) == 0


def test_memory_that_is_there_is_used_first() -> None:
    blocks = TouchedBlocks(4000, SIZE, resident_blocks=lambda: 1000)
    for number in range(500):
        serve(blocks, [number] * (4 * SIZE))
    assert 1000 <= blocks.touched < 1020


@pytest.mark.parametrize("head", [0, 2 * SIZE])
def test_chats_that_come_back_get_the_memory_they_are_worth(head: int) -> None:
    """More of them than are kept at first: what had to go is missed, and from then on it stays.

    Also where all have a beginning in common, which never had to go.
    """
    blocks = TouchedBlocks(8000, SIZE, resident_blocks=lambda: 0)
    history = 20 * SIZE
    known = [
        [serve(blocks, [1000] * head + [number] * (history + turn)) for number in range(100)] for turn in (1, 2, 3)
    ]
    assert sum(known[0]) == 99 * head
    assert sum(known[2]) == 100 * (head + history)
    assert blocks.touched >= 2000


def test_old_hits_do_not_let_the_cache_grow() -> None:
    blocks = TouchedBlocks(20_000, SIZE, resident_blocks=lambda: 0)
    for _ in range(500):
        serve(blocks, [0] * (4 * SIZE + 1))
    for number in range(1, 4001):
        serve(blocks, [number] * (4 * SIZE))
    assert 4000 < blocks.touched < 8000


def test_content_that_had_to_go_is_found_again_once_it_is_computed_again() -> None:
    blocks = BlockManager(6, SIZE)
    serve(blocks, [1] * 2 * SIZE)
    serve(blocks, [2] * 6 * SIZE)
    assert serve(blocks, [1] * (2 * SIZE) + [3]) == 0
    assert serve(blocks, [1] * (2 * SIZE) + [4]) == 2 * SIZE


def test_names_of_evicted_blocks_are_not_kept_for_ever() -> None:
    blocks = BlockManager(20, SIZE)
    tracemalloc.start()
    try:
        taken = []
        for numbers in (range(100), range(100, 1000)):
            for number in numbers:
                serve(blocks, [number] * (2 * SIZE))
            taken.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert taken[1] - taken[0] < 50_000


def test_prompt_logprobs_need_every_position_computed() -> None:
    blocks = BlockManager(10, SIZE)
    first = sequence([1] * 9)
    blocks.admit(first)
    compute(blocks, first)
    asking = sequence([1] * 9, prompt_logprobs=0)
    blocks.admit(asking)
    assert asking.computed == 0


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("resident_blocks", [40, 8])
def test_any_history_keeps_the_books_straight(
    share: bool, resident_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_cache, "FREE_GROWTH", 4)
    monkeypatch.setattr(kv_cache, "DECAY_AFTER", 60)
    rng = random.Random(5)
    blocks = BlockManager(40, SIZE, share=share, resident_blocks=lambda: resident_blocks)
    live: list[Sequence] = []
    for number in range(3000):
        action = rng.random()
        if action < 0.4:
            mine = sequence([rng.choice([1, 2]) for _ in range(rng.randrange(1, 30))], number)
            if blocks.admit(mine):
                compute(blocks, mine)
                live.append(mine)
        elif action < 0.7 and live:
            mine = rng.choice(live)
            mine.tokens.append(rng.choice([1, 2]))
            try:
                compute(blocks, mine)
            except OutOfBlocksError:
                live.remove(mine)
                blocks.release(mine)
        elif live:
            mine = live.pop(rng.randrange(len(live)))
            blocks.release(mine)
        held = {block for mine in live for block in mine.blocks}
        assert blocks.used == len(held)
        contents: dict[int, set[tuple[int, ...]]] = {}
        for mine in live:
            for index, block in enumerate(mine.blocks):
                contents.setdefault(block, set()).add(tuple(mine.tokens[: (index + 1) * SIZE]))
        assert all(len(c) == 1 for c in contents.values()), "two contents in one block"
    for mine in live:
        blocks.release(mine)
    assert blocks.used == 0


class Reference:
    """The same cache, with texts for names, and blocks only counted."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.users: Counter[tuple[int, ...]] = Counter()  # of the blocks that can be found, by the text up to their end
        self.resting: dict[tuple[int, ...], None] = {}  # the oldest first
        self.hidden = 0  # blocks that can't be found: not full, or computed twice
        self.held: dict[int, list[tuple[int, ...] | None]] = {}  # by sequence; None for a hidden block

    @property
    def available(self) -> int:
        return self.total - len(self.users) - self.hidden

    def admit(self, number: int, tokens: list[int]) -> bool:
        known: list[tuple[int, ...] | None] = []
        for end in range(SIZE, len(tokens), SIZE):
            text = tuple(tokens[:end])
            if text not in self.users and text not in self.resting:
                break
            known.append(text)
        resting = [text for text in known if text in self.resting]
        if -(-len(tokens) // SIZE) - len(known) > self.available - len(resting):
            return False
        for text in resting:
            del self.resting[text]
        self.users.update(text for text in known if text is not None)
        self.held[number] = known
        return True

    def extend(self, number: int, tokens: int) -> bool:
        while len(self.held[number]) * SIZE < tokens:
            if self.available == len(self.resting):
                if not self.resting:
                    return False
                del self.resting[next(iter(self.resting))]
            self.hidden += 1
            self.held[number].append(None)
        return True

    def seal(self, number: int, before: int, tokens: list[int]) -> None:
        for index in range(before // SIZE, len(tokens) // SIZE):
            text = tuple(tokens[: (index + 1) * SIZE])
            if text not in self.users and text not in self.resting:
                self.hidden -= 1
                self.users[text] = 1
                self.held[number][index] = text

    def release(self, number: int) -> None:
        for text in reversed(self.held.pop(number)):
            if text is None:
                self.hidden -= 1
            elif self.users[text] > 1:
                self.users[text] -= 1
            else:
                del self.users[text]
                self.resting[text] = None

    def forget(self) -> None:
        self.resting.clear()


@pytest.mark.parametrize("seed", range(6))
def test_cached_prefixes_match_a_reference_that_evicts_the_oldest(seed: int) -> None:
    """A few long texts, of which sequences read some and write on, in few blocks."""
    rng = random.Random(seed)
    trunk = [rng.randrange(3) for _ in range(6 * SIZE)]
    texts = [trunk[: rng.randrange(20)] + [rng.randrange(3) for _ in range(40)] for _ in range(4)]
    blocks, reference = BlockManager(30, SIZE), Reference(30)
    live: list[tuple[Sequence, list[int]]] = []
    reused = refused = 0
    for number in range(3000):
        action = rng.random()
        if action < 0.3:
            text = rng.choice(texts)
            mine = sequence(text[: rng.randrange(1, 36)], number)
            admitted = blocks.admit(mine)
            assert admitted == reference.admit(number, mine.tokens)
            refused += not admitted
            if admitted:
                assert mine.computed == len(reference.held[number]) * SIZE
                reused += mine.computed
                live.append((mine, text))
        elif action < 0.8 and live:
            mine, text = rng.choice(live)
            if not mine.remaining:
                mine.tokens.append(text[len(mine.tokens) % len(text)])
            end = mine.computed + rng.randrange(1, mine.remaining + 1)
            room = reference.extend(mine.id, end)
            try:
                blocks.extend(mine, end)
            except OutOfBlocksError:
                assert not room
                continue
            assert room
            before, mine.computed = mine.computed, end
            blocks.seal(mine)
            reference.seal(mine.id, before, mine.tokens[:end])
        elif live:
            mine, _ = live.pop(rng.randrange(len(live)))
            rng.choice([blocks.release, blocks.retire])(mine)
            reference.release(mine.id)
            if rng.random() < 0.05:
                blocks.forget()
                reference.forget()
        assert blocks.available == reference.available
    assert reused > 3000 and refused > 100
