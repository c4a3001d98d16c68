"""Which adapters a runner holds, and who waits for one. Runs in the engine process, in the step loop; no tensors.

A runner holds a few adapters at once, each in a slot. A waiting sequence takes its adapter's slot when it begins to
run. If all slots are in use by other adapters, the adapter that has had its slot for longest gives it up: no sequence
behind the waiting one starts with that adapter until it gets a slot again. So each adapter has its turn, however many
sequences another adapter has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from .sequence import Sequence


class AdapterSlots:
    """The slots 1 .. `count`, by the numbers of the adapters in them.

    Args:
        ready: whether an adapter is in memory. If not, it is being read from now on.
        load: puts it into a slot, in the place of another; returns whether it could. If not, the slot is empty.
        unload: empties a slot.
    """

    def __init__(
        self,
        count: int,
        ready: Callable[[int], bool],
        load: Callable[[int, int], bool],
        unload: Callable[[int], None],
    ) -> None:
        self.count = count
        self._ready = ready
        self._load = load
        self._unload = unload
        self._slot_of: dict[int, int] = {}  # by number; the first is who has had its slot for longest
        self._free = list(range(count, 0, -1))
        self._running = Counter[int]()
        self._pinned: set[int] = set()
        self._wanted: set[int] = set()  # in this step: numbers that somebody waits for
        self._yielding: set[int] = set()  # and those that give up their slots for them

    @property
    def held(self) -> list[int]:
        """The numbers of the adapters in slots."""
        return list(self._slot_of)

    @property
    def pinned(self) -> frozenset[int]:
        """The numbers of the adapters that never give up their slots."""
        return frozenset(self._pinned)

    def begin(self) -> None:
        """Begin to ask for a step's new sequences, first come, first served."""
        self._wanted.clear()
        self._yielding.clear()

    def admits(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence may run now. Its adapter is in a slot then."""
        number = sequence.adapter_number
        if number in self._slot_of:
            return number not in self._yielding
        if number in self._wanted:
            return False
        idle = None if self._free else self._idle_number()
        if not self._free and idle is None:
            self._wanted.add(number)
            yielding = (one for one in self._slot_of if one not in self._yielding and one not in self._pinned)
            if (longest := next(yielding, None)) is not None:
                self._yielding.add(longest)
            return False
        if not self._ready(number):
            return False
        if idle is not None:
            self._free.append(self._slot_of.pop(idle))
        slot = self._free.pop()
        if not self._load(slot, number):
            self._free.append(slot)
            return False
        self._slot_of[number] = slot
        return True

    def enter(self, sequence: Sequence) -> None:
        """A sequence that was admitted begins to run."""
        number = sequence.adapter_number
        sequence.adapter_slot = self._slot_of[number]
        self._running[number] += 1

    def leave(self, sequence: Sequence) -> None:
        """A sequence has ended, or waits again."""
        if sequence.adapter_slot:
            sequence.adapter_slot = 0
            self._running[sequence.adapter_number] -= 1

    def drop(self, number: int) -> None:
        """Empty the slot of an adapter that no sequence has any more, if it has one."""
        self._pinned.discard(number)
        self._running.pop(number, None)
        if (slot := self._slot_of.pop(number, None)) is not None:
            self._unload(slot)
            self._free.append(slot)

    def pin(self, number: int) -> None:
        """Have an adapter keep the slot that it gets."""
        self._pinned.add(number)

    def unpin(self, number: int) -> None:
        """Have an adapter give up its slot as others do."""
        self._pinned.discard(number)

    def _idle_number(self) -> int | None:
        """The adapter that has had its slot for longest among those that no running sequence has."""
        idle = (one for one in self._slot_of if not self._running[one] and one not in self._pinned)
        return next(idle, None)
