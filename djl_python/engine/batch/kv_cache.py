"""The blocks of the KV cache: allocation, sharing by content, eviction. Runs in the engine process; no tensors.

A block holds the keys and values of `block_size` tokens in every layer. A full block is *sealed*: it is found by its
content (its tokens and images and everything before them), shared by every sequence with the same prefix, adapter and
salt, and kept (*at rest*) after its last user until its memory is needed (least recently used first).

Where a block's memory is taken on first use, new memory takes time and is missing elsewhere. So while resting blocks
are hardly ever used again, the oldest is evicted before new memory is taken. The names of evicted blocks are kept for a
while, to notice when one of them would have been used after all.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

from .sequence import Content, Sequence
from .state_slots import StateSlots

#: The name of a prefix: the serial of its last block's content; of the empty prefix, what its keys and values depend on
#: beside the text, and the salt if there is one.
_Prefix = int | tuple[int, str]
#: What a sealed block is found by: the prefix before it, and its own content.
_Key = tuple[_Prefix, Content]

# The names of empty prefixes: with long-context RoPE, keys differ from the first token on.
_ROOT: Final = 0
_LONG_ROPE_ROOT: Final = 1
#: New memory is taken until this many blocks have come to rest, even if none of them was asked for again, ...
FREE_GROWTH: Final = 448
# ... and this many more for each one that was.
_GROWTH_PER_HIT: Final = 16
#: This many tokens are computed about as fast as none: a state after fewer isn't worth its memory.
WORTH_SAVING: Final = 128
#: When this many blocks have come to rest, the counts are halved, so that old ones weigh less.
DECAY_AFTER: Final = 2048


class OutOfBlocksError(Exception):
    """No block is free; the scheduler preempts a sequence."""


class BlockManager:
    """Hands out block numbers 0 .. `total`-1.

    Args:
        share: whether sealed blocks are shared by content.
        resident_blocks: how many blocks, from the first on, have their memory already; all of them if left out.
        states: the recurrent states, if the model has any: a prefix is then only reused where a state was saved.
    """

    def __init__(
        self,
        total: int,
        block_size: int,
        *,
        share: bool = True,
        resident_blocks: Callable[[], int] | None = None,
        states: StateSlots | None = None,
    ) -> None:
        self.total = total
        self.block_size = block_size
        self._share = share
        self._states = states
        # Lowest numbers first: memory that was never touched stays with the operating system.
        self._free = list(range(total))
        self._unused_sealed: OrderedDict[int, None] = OrderedDict()
        self._users = [0] * total
        # Content is named by a serial number: (the prefix's name, content) -> (serial, block).
        # Lookup compares the tokens themselves, so a hash collision cannot hand out the blocks of another text.
        self._known: dict[_Key, tuple[int, int]] = {}
        self._key_of: dict[int, _Key] = {}
        self._serial_of: dict[int, int] = {}
        self._next_serial = _LONG_ROPE_ROOT + 1
        self._evicted: OrderedDict[_Key, tuple[int, int]] = OrderedDict()  # evicted from `_known`
        self._resident_blocks = resident_blocks or (lambda: total)
        self._rested = 0  # blocks that came to rest
        self._asked = 0  # of those, how many were asked for again, still there or evicted

    @property
    def available(self) -> int:
        """Blocks that can be taken now, by eviction if need be."""
        return len(self._free) + len(self._unused_sealed)

    @property
    def used(self) -> int:
        """Blocks held by sequences. A shared block counts once."""
        return self.total - self.available

    def blocks_for(self, tokens: int) -> int:
        """How many blocks hold this many tokens."""
        return -(-tokens // self.block_size)

    def admit(self, sequence: Sequence) -> bool:
        """Give a new sequence the blocks of its longest known prefix, if all its tokens would fit; else return False.

        At least the last token is left to compute: its logits are wanted.
        """
        known, shared, resting = self._shareable(sequence)
        if not self._fits(sequence, shared, resting):
            return False
        self._asked += resting + self._count_evicted(sequence, shared)
        for block in shared:
            self._use(block)
        sequence.blocks = shared
        sequence.sealed = len(shared)
        sequence.computed = len(shared) * self.block_size
        if self._states is not None:
            self._begin_with_state(self._states, sequence, len(known))
        if not sequence.generated:
            cached = sequence.computed
            sequence.cached = cached if sequence.cached is None else min(sequence.cached, cached)
        return True

    def has_room_for(self, sequence: Sequence) -> bool:
        """Whether `admit` would return True."""
        _, shared, resting = self._shareable(sequence)
        return self._fits(sequence, shared, resting)

    def _shareable(self, sequence: Sequence) -> tuple[list[int], list[int], int]:
        """The blocks of a sequence's longest known prefix, those of them that it can begin with, and how many of these
        no sequence uses.
        """
        known = self._lookup(sequence)
        shared = known if self._states is None else self._with_state(self._states, sequence, known)
        return known, shared, sum(1 for block in shared if self._users[block] == 0)

    def _fits(self, sequence: Sequence, shared: list[int], resting: int) -> bool:
        """Whether there are blocks for all tokens of a sequence beside `shared`, of which `resting` are unused."""
        return self.blocks_for(len(sequence.tokens)) - len(shared) <= self.available - resting

    def extend(self, sequence: Sequence, tokens: int) -> None:
        """Make room for the sequence's first `tokens` tokens.

        Raises:
            OutOfBlocksError: not enough blocks; those it got stay with the sequence.
        """
        while len(sequence.blocks) * self.block_size < tokens:
            sequence.blocks.append(self._take())

    def seal(self, sequence: Sequence) -> None:
        """Register the blocks that have become full since the last call."""
        if not self._share:
            return
        size = self.block_size
        while sequence.sealed < sequence.computed // size:
            index = sequence.sealed
            key = (self._prefix_before(sequence, index), sequence.content(index * size, (index + 1) * size))
            block = sequence.blocks[index]
            known = self._known.get(key)
            if known is None:
                self._register(block, key)
            else:  # computed twice at the same time: this copy is not registered, but the next block gets the same name
                self._serial_of[block] = known[0]
            sequence.sealed += 1
        if self._states is not None:
            ends = self._states.saved(sequence)
            self._states.name(sequence, [self._serial_of[sequence.blocks[end // size - 1]] for end in ends])

    def retire(self, sequence: Sequence) -> None:
        """Take an ended sequence's blocks back, keeping its last state for sequences that continue its text."""
        whole, rest = divmod(sequence.computed, self.block_size)
        if self._states is not None and self._share and sequence.computed:
            if rest:
                prefix = self._prefix_before(sequence, whole)
                key = (prefix, sequence.content(whole * self.block_size, sequence.computed))
                if key in self._known:  # of a sequence that said the same; it rests, but its state may be gone
                    self._unused_sealed.move_to_end(self._known[key][1])
                else:
                    self._register(sequence.blocks[whole], key)
                name = self._known[key][0]
            else:
                name = self._serial_of[sequence.blocks[whole - 1]]
            self._states.hand_over(sequence, name)
        self.release(sequence)

    def release(self, sequence: Sequence) -> None:
        """Take a sequence's blocks back; none of its tokens count as computed any more."""
        # Last block first, so that a resting prefix is evicted from its tail.
        for block in reversed(sequence.blocks):
            self._users[block] -= 1
            if self._users[block]:
                continue
            if block in self._key_of:
                self._unused_sealed[block] = None
                self._rested += 1
            else:
                self._serial_of.pop(block, None)
                heapq.heappush(self._free, block)
        sequence.blocks = []
        sequence.sealed = 0
        sequence.computed = 0
        if self._states is not None:
            self._states.release(sequence)
        if self._rested > DECAY_AFTER:
            self._rested //= 2
            self._asked //= 2

    def forget(self) -> None:
        """Drop all resting content (after the cache's tensors were lost or may be wrong)."""
        while self._unused_sealed:
            heapq.heappush(self._free, self._evict())
        if self._states is not None:
            self._states.forget()

    def _lookup(self, sequence: Sequence) -> list[int]:
        """The blocks of the sequence's longest prefix in the cache."""
        return self._follow(self._known, sequence, [])

    def _count_evicted(self, sequence: Sequence, shared: list[int]) -> int:
        """How many blocks' content the sequence would have found after `shared`, had it not been evicted."""
        return len(self._follow(self._evicted, sequence, shared))

    def _follow(self, names: Mapping[_Key, tuple[int, int]], sequence: Sequence, before: list[int]) -> list[int]:
        """The blocks after `before` whose content `names` has."""
        if sequence.wants_prompt_logprobs:  # every position has to be computed
            return []
        size, blocks = self.block_size, []
        parent = self._serial_of[before[-1]] if before else _root(sequence)
        for start in range(len(before) * size, len(sequence.tokens) - size, size):
            entry = names.get((parent, sequence.content(start, start + size)))
            if entry is None:
                break
            parent, block = entry
            blocks.append(block)
        return blocks

    def _with_state(self, states: StateSlots, sequence: Sequence, known: list[int]) -> list[int]:
        """The longest cached prefix after which a state was saved; only its last block may be partly filled."""
        size, parent = self.block_size, self._serial_of[known[-1]] if known else _root(sequence)
        first = len(known) * size
        for end in range(min(first + size, len(sequence.tokens)) - 1, first, -1):
            entry = self._known.get((parent, sequence.content(first, end)))
            if entry is not None and states.has(entry[0]) and not sequence.wants_prompt_logprobs:
                return [*known, entry[1]]
        return known[: next((n for n in range(len(known), 0, -1) if states.has(self._serial_of[known[n - 1]])), 0)]

    def _begin_with_state(self, states: StateSlots, sequence: Sequence, known: int) -> None:
        """Give a sequence the state after its shared blocks, and stops where others may branch off or continue."""
        size = self.block_size
        whole = (len(sequence.tokens) - 1) // size
        if sequence.blocks:
            last = sequence.blocks[-1]
            if (begun := len(self._key_of[last][1])) < size:  # it will be written to: others must not find it any more
                sequence.sealed -= 1
                sequence.computed -= size - begun
                states.take_over(sequence, self._serial_of.pop(last))
                del self._known[self._key_of.pop(last)]
            else:
                states.begin_with(sequence, self._serial_of[last])
        stops = sorted({known * size, whole * size})
        sequence.stops = tuple(stop for stop in stops if stop >= sequence.computed + WORTH_SAVING)

    def _register(self, block: int, key: _Key) -> None:
        """Make a block findable by its content."""
        if key in self._evicted:
            serial = self._evicted.pop(key)[0]
        else:
            serial, self._next_serial = self._next_serial, self._next_serial + 1
        self._known[key] = (serial, block)
        self._key_of[block] = key
        self._serial_of[block] = serial

    def _prefix_before(self, sequence: Sequence, index: int) -> _Prefix:
        """The name of a sequence's prefix before its block `index`."""
        return self._serial_of[sequence.blocks[index - 1]] if index else _root(sequence)

    def _use(self, block: int) -> None:
        if self._users[block] == 0:
            self._unused_sealed.pop(block)
        self._users[block] += 1

    def _take(self) -> int:
        if self._free and (not self._unused_sealed or self._free[0] < self._resident_blocks() or self._may_grow):
            block = heapq.heappop(self._free)
        elif self._unused_sealed:
            block = self._evict()
        else:
            raise OutOfBlocksError
        self._users[block] = 1
        return block

    @property
    def _may_grow(self) -> bool:
        """Whether resting blocks are asked for often enough to be worth new memory."""
        return self._rested <= FREE_GROWTH + _GROWTH_PER_HIT * self._asked

    def _evict(self) -> int:
        block, _ = self._unused_sealed.popitem(last=False)
        key = self._key_of.pop(block)
        self._evicted[key] = self._known.pop(key)
        del self._serial_of[block]
        if len(self._evicted) > self.total:
            self._evicted.popitem(last=False)
        return block


def _root(sequence: Sequence) -> _Prefix:
    root = _LONG_ROPE_ROOT if sequence.long_rope else _ROOT
    root -= 2 * sequence.adapter_number  # below all serials: each adapter has keys and values of its own
    return (root, sequence.cache_salt) if sequence.cache_salt else root
