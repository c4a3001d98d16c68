"""Which worker has had which beginnings of prompts: learnt from what it was sent, bounded, and forgotten with it.

Runs in the front end's event loop. A worker's own cache may keep more or less; what is remembered here of a worker only
says where a call is sent, so being wrong costs no more than computing a prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

#: The most hashes that are kept for all workers together: some 20 MB.
MOST_HASHES: Final = 1 << 18
#: Each worker may have so many, however many workers there are.
_LEAST_HASHES: Final = 1 << 10


class _Remembered:
    """The hashes of one worker, in two generations: when the younger one is full, the elder is forgotten. What is used
    moves into the younger. So the least recently used goes first, about, without an order to be kept.
    """

    __slots__ = ("elder", "younger")

    def __init__(self) -> None:
        self.younger: set[int] = set()
        self.elder: set[int] = set()

    def __contains__(self, each: int) -> bool:
        return each in self.younger or each in self.elder

    def add(self, hashes: Iterable[int], most: int) -> None:
        """All of these at once: a beginning is never forgotten before a longer one."""
        self.younger.update(hashes)
        if len(self.younger) > most // 2:
            self.elder, self.younger = self.younger, set()


class PrefixIndex:
    """Beginnings of prompts, by worker.

    Args:
        most: how many hashes are remembered of all workers together.
    """

    def __init__(self, most: int = MOST_HASHES) -> None:
        self._most = most
        self._workers: dict[str, _Remembered] = {}

    def add(self, worker: str, hashes: Sequence[int]) -> None:
        """A worker gets a prompt with these beginnings."""
        remembered = self._workers.setdefault(worker, _Remembered())
        remembered.add(hashes, max(_LEAST_HASHES, self._most // len(self._workers)))

    def known(self, worker: str, hashes: Sequence[int]) -> int:
        """How many of these beginnings a worker has had; the shortest come first, and it has had none after them."""
        remembered = self._workers.get(worker)
        if remembered is None or not hashes or hashes[0] not in remembered:
            return 0
        known, beyond = 1, len(hashes) + 1
        while beyond - known > 1:
            middle = (known + beyond) // 2
            if hashes[middle - 1] in remembered:
                known = middle
            else:
                beyond = middle
        return known

    def forget(self, worker: str) -> None:
        """A worker has gone, and its cache with it."""
        self._workers.pop(worker, None)

    @property
    def workers(self) -> tuple[str, ...]:
        """Those of which something is remembered."""
        return tuple(self._workers)
