"""Assigns memory slots to the recurrent states of sequences, and to saved ones. Runs in the engine process; no tensors.

Unlike keys and values, a state stands for all tokens so far. To continue from a known prefix, a state must have been
saved after exactly as many tokens; it is found by the name of the prefix's last block (`kv_cache`).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from .chunk import SequenceChunk
from .sequence import Sequence


@dataclass
class _SequenceSlots:
    """The slots of one sequence.

    Attributes:
        slot: the slot of its state, once it has run.
        source: the slot of the saved state that its next step starts from instead.
        tokens: how many tokens its state stands for.
        saving: (after how many tokens, slot) of the states that its last step saved.
    """

    slot: int | None = None
    source: int | None = None
    tokens: int = 0
    saving: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class StateSpan:
    """A chunk's slots: it starts from the state in `source` (an empty one if None), and leaves its own in `slot`.

    Attributes:
        saves: (after how many of the chunk's tokens, slot) of the states to save besides.
    """

    source: int | None
    slot: int
    saves: list[tuple[int, int]]


class StateSlots:
    """Slots for the sequences of a batch, and for saved states; the least recently used are evicted first.

    Args:
        sequences: how many a batch has at most.
        saved: most saved states.
    """

    def __init__(self, sequences: int, saved: int) -> None:
        self.count = sequences + saved
        self._most = saved
        self._free = list(range(self.count - 1, -1, -1))  # the lowest first: their memory has been touched
        self._by_sequence: dict[int, _SequenceSlots] = {}
        self._saved: OrderedDict[int, int] = OrderedDict()  # slots by name

    # -------------------------------------------------------------------------------- for the cache

    def has(self, name: int) -> bool:
        return name in self._saved

    def begin_with(self, sequence: Sequence, name: int) -> None:
        """Start a sequence from a saved state, which others may start from, too."""
        self._by_sequence[sequence.id] = _SequenceSlots(source=self._saved[name])
        self._saved.move_to_end(name)

    def take_over(self, sequence: Sequence, name: int) -> None:
        """Make a saved state a sequence's own; others can't find it any more."""
        self._by_sequence[sequence.id] = _SequenceSlots(slot=self._saved.pop(name), tokens=sequence.computed)

    def saved(self, sequence: Sequence) -> list[int]:
        """Numbers of tokens after which the last step saved the sequence's state; `name` gives these states names."""
        return [tokens for tokens, _ in self._by_sequence[sequence.id].saving]

    def name(self, sequence: Sequence, names: list[int]) -> None:
        """Make the states that were just saved findable by these names, until others need their slots."""
        own = self._by_sequence[sequence.id]
        for (_, slot), name in zip(own.saving, names, strict=True):
            self._keep(slot, name)
        own.saving = []

    def hand_over(self, sequence: Sequence, name: int) -> None:
        """Save an ended sequence's state under this name; not after a failed step, which may have left any state."""
        own = self._by_sequence.get(sequence.id)
        if own is None or own.slot is None or own.tokens != sequence.computed:
            return
        if name in self._saved or self._make_room():
            self._keep(own.slot, name)
            own.slot = None

    def release(self, sequence: Sequence) -> None:
        """Free the slots of a sequence that has ended, or will begin again."""
        own = self._by_sequence.pop(sequence.id, None)
        if own is not None:
            self._free += [slot for _, slot in own.saving]
            if own.slot is not None:
                self._free.append(own.slot)

    def forget(self) -> None:
        """Drop all saved states, except for those that sequences will start from."""
        sources = self._sources
        for name in [name for name, slot in self._saved.items() if slot not in sources]:
            self._free.append(self._saved.pop(name))

    # ------------------------------------------------------------------------------- for the runner

    def spans(self, chunks: list[SequenceChunk]) -> list[StateSpan]:
        """The slots for the chunks of a step, in their order."""
        read = self._sources
        of_chunks = [self._by_sequence.setdefault(chunk.sequence.id, _SequenceSlots()) for chunk in chunks]
        sources: list[int | None] = []
        for chunk, own in zip(chunks, of_chunks, strict=True):
            before = own.slot if own.source is None else own.source
            sources.append(before if chunk.sequence.computed else None)
            own.source = None
            own.tokens = chunk.sequence.computed + chunk.length
            if own.slot is None:
                own.slot = self._free.pop()
        spans = []
        for chunk, own, source in zip(chunks, of_chunks, sources, strict=True):
            first = chunk.sequence.computed
            for stop in chunk.sequence.stops:
                if first < stop <= own.tokens and self._make_room(read):
                    own.saving.append((stop, self._free.pop()))
            assert own.slot is not None
            spans.append(StateSpan(source, own.slot, [(stop - first, slot) for stop, slot in own.saving]))
        return spans

    @property
    def _sources(self) -> set[int | None]:
        """Slots of the saved states that sequences will start from; None: a sequence starts from its own state."""
        return {own.source for own in self._by_sequence.values()}

    def _make_room(self, read: set[int | None] | None = None) -> bool:
        """Make room for one more saved state, without evicting those in `read`; returns whether there is room."""
        if len(self._saved) + sum(len(own.saving) for own in self._by_sequence.values()) < self._most:
            return True
        read = self._sources if read is None else read
        oldest = next((name for name, slot in self._saved.items() if slot not in read), None)
        if oldest is None:
            return False
        self._free.append(self._saved.pop(oldest))
        return True

    def _keep(self, slot: int, name: int) -> None:
        if name in self._saved:
            self._saved.move_to_end(name)
            self._free.append(slot)
        else:
            self._saved[name] = slot
