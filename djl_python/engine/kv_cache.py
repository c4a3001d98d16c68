"""Which cache block holds what: allocation, sharing by content, eviction. Runs in the engine process; no tensors.

A block is room for `block_size` tokens' keys and values in every layer. A full block is *sealed*: found again by its
content (the tokens and images in it and everything before them), shared by every sequence with the same prefix, and
kept after its last user until the room is needed (least recently used first).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict

from .sequence import Content, Sequence

_ROOT = 0


class OutOfBlocksError(Exception):
    """No block is free; the scheduler preempts somebody."""


class BlockManager:
    """Hands out block numbers 0 .. `total`-1."""

    def __init__(self, total: int, block_size: int, *, share: bool = True) -> None:
        self.total = total
        self.block_size = block_size
        self._share = share
        # Lowest numbers first: memory that was never touched stays with the operating system.
        self._free = list(range(total))
        self._unused_sealed: OrderedDict[int, None] = OrderedDict()
        self._users = [0] * total
        # Content is named by a serial number: (serial of the previous block's content, content) -> (serial, block).
        # Lookup compares the tokens themselves, so a hash collision cannot hand out somebody else's text.
        self._known: dict[tuple[int, Content], tuple[int, int]] = {}
        self._key_of: dict[int, tuple[int, Content]] = {}
        self._serial_of: dict[int, int] = {}
        self._next_serial = _ROOT + 1

    @property
    def available(self) -> int:
        """Blocks that can be had now, by eviction if need be."""
        return len(self._free) + len(self._unused_sealed)

    @property
    def used(self) -> int:
        """Blocks held by sequences. A shared block counts once."""
        return self.total - self.available

    def blocks_for(self, tokens: int) -> int:
        """How many blocks hold this many tokens."""
        return -(-tokens // self.block_size)

    def admit(self, sequence: Sequence) -> bool:
        """Give a new sequence the blocks of its longest known prefix, if all its tokens would fit; else do nothing.

        At least the last token is left to compute: its logits are wanted.
        """
        shared = self._lookup(sequence)
        resting = sum(1 for block in shared if self._users[block] == 0)
        if self.blocks_for(len(sequence.tokens)) - len(shared) > self.available - resting:
            return False
        for block in shared:
            self._use(block)
        sequence.blocks = shared
        sequence.sealed = len(shared)
        sequence.computed = len(shared) * self.block_size
        return True

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
        full = min(sequence.computed, len(sequence.tokens)) // size
        while sequence.sealed < full:
            index = sequence.sealed
            parent = self._serial_of[sequence.blocks[index - 1]] if index else _ROOT
            key = (parent, sequence.content(index * size, (index + 1) * size))
            block = sequence.blocks[index]
            known = self._known.get(key)
            if known is None:
                self._known[key] = (self._next_serial, block)
                self._key_of[block] = key
                self._serial_of[block] = self._next_serial
                self._next_serial += 1
            else:  # computed twice at the same time: this copy only lends its content's name to what follows
                self._serial_of[block] = known[0]
            sequence.sealed += 1

    def release(self, sequence: Sequence) -> None:
        """Take a sequence's blocks back; nothing of it is computed any more."""
        # From the end, so that of a resting prefix the tail is evicted before the head.
        for block in reversed(sequence.blocks):
            self._users[block] -= 1
            if self._users[block]:
                continue
            if block in self._key_of:
                self._unused_sealed[block] = None
            else:
                self._serial_of.pop(block, None)
                heapq.heappush(self._free, block)
        sequence.blocks = []
        sequence.sealed = 0
        sequence.computed = 0

    def forget(self) -> None:
        """Drop all resting content (after the cache's tensors were lost or doubted)."""
        while self._unused_sealed:
            heapq.heappush(self._free, self._evict())

    def _lookup(self, sequence: Sequence) -> list[int]:
        if not self._share or sequence.wants_prompt_logprobs:
            return []
        size, parent, blocks = self.block_size, _ROOT, []
        for start in range(0, len(sequence.tokens) - size, size):
            known = self._known.get((parent, sequence.content(start, start + size)))
            if known is None:
                break
            parent, block = known
            blocks.append(block)
        return blocks

    def _use(self, block: int) -> None:
        if self._users[block] == 0:
            self._unused_sealed.pop(block)
        self._users[block] += 1

    def _take(self) -> int:
        if self._free:
            block = heapq.heappop(self._free)
        elif self._unused_sealed:
            block = self._evict()
        else:
            raise OutOfBlocksError
        self._users[block] = 1
        return block

    def _evict(self) -> int:
        block, _ = self._unused_sealed.popitem(last=False)
        del self._known[self._key_of.pop(block)]
        del self._serial_of[block]
        return block
