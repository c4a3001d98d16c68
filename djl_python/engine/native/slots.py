"""Whose state is where, of models with layers that keep one for each sequence. Runs in the engine process."""

from __future__ import annotations

from ..scheduler import Chunk
from ..sequence import Sequence
from .places import Spans


class StateSlots:
    """Gives each sequence one of `count` places, which are as many as a batch has sequences."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count))
        self._taken: dict[int, tuple[int, Sequence]] = {}

    def spans(self, chunks: list[Chunk]) -> Spans:
        """Where a step's sequences have their states; who hasn't computed anything has none yet."""
        sequences = [chunk.sequence for chunk in chunks]
        self._seat(sequences)
        return Spans.of(
            (chunk.length for chunk in chunks),
            (self._taken[sequence.id][0] for sequence in sequences),
            (sequence.computed == 0 for sequence in sequences),
        )

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        if sequence.id in self._taken:
            self._free.append(self._taken.pop(sequence.id)[0])

    def _seat(self, sequences: list[Sequence]) -> None:
        new = [sequence for sequence in sequences if sequence.id not in self._taken]
        if len(new) > len(self._free):  # somebody who was preempted, and begins again some time, holds one
            taking_part = {sequence.id for sequence in sequences}
            for _, holder in list(self._taken.values()):
                if holder.computed == 0 and holder.id not in taking_part:
                    self.forget(holder)
        for sequence in new:
            self._taken[sequence.id] = self._free.pop(), sequence
