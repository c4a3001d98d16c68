"""Decides which worker gets a call: the one that has computed the beginning of its prompt, unless that one is busy.

Runs in the front end's event loop, in the pool; and in tests/simulation, over more workers than a machine has.

A worker that knows a prompt's beginning need not compute it. A worker with more calls answers each one more slowly.
Both are counted in calls: what a worker knows of a prompt is worth some of them, at most half of those that it runs at
once, and the worker with the fewest calls less that worth gets the call. One that has a place for it in its batch goes
before any where it would wait.

A session's calls stay with their worker as long as that has a place. A call without a trail goes to the least busy
worker.
"""

from __future__ import annotations

import enum
import itertools
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

from .prefix_index import PrefixIndex
from .trail import Trail

#: So many bytes of a prompt that need not be computed are worth a call less in the worker.
BYTES_PER_CALL: Final = 512
#: The most sessions and responses that are remembered.
_MOST_NAMES: Final = 1 << 16


class Routing(enum.StrEnum):
    """What a worker is chosen by: the setting `routing`."""

    PREFIX = "prefix"
    LEAST_BUSY = "least_busy"


class Outcome(enum.StrEnum):
    """What became of a call with a trail: the label of a metric."""

    HIT = "hit"  # no worker knows more of its prompt; or it stays with its session
    MISS = "miss"  # no worker knows any of it
    BUSY = "busy"  # another worker knows more, and was busy


class Candidate(Protocol):
    """A worker that has room for a call."""

    @property
    def name(self) -> str:
        """Tells it from the other workers of its model."""
        ...

    @property
    def taken(self) -> int:
        """How many calls it has."""
        ...

    @property
    def at_once(self) -> int:
        """How many of these run at once: further ones wait in the worker."""
        ...

    @property
    def spare(self) -> bool:
        """Whether it may go again when there is less to do: of two that are alike, the other one is chosen."""
        ...

    @property
    def shares_prefixes(self) -> bool:
        """Whether its engine keeps what it has computed of a prompt for others that begin like it."""
        ...


C = TypeVar("C", bound=Candidate)


class Router:
    """Chooses among a model's workers.

    Args:
        index: what is remembered of prompts.
    """

    def __init__(self, routing: Routing = Routing.PREFIX, index: PrefixIndex | None = None) -> None:
        self._routing = routing
        self._index = index or PrefixIndex()
        self._named: OrderedDict[str, str] = OrderedDict()  # session or response -> worker
        self._numbers = itertools.count(1)
        self._used: dict[str, int] = {}  # worker -> the number of its last call: of equals, the one that rested longest
        self._last: tuple[Trail, dict[str, int]] | None = None  # what `choose` found out, for `sent`

    @property
    def reads_trails(self) -> bool:
        """Whether a call's trail makes a difference."""
        return self._routing is Routing.PREFIX

    def choose(self, trail: Trail, candidates: Sequence[C]) -> C | None:
        """The worker that gets a call; None: there is none."""
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        if not (self.reads_trails and (trail.hashes or trail.follows)):
            return min(candidates, key=lambda each: (each.taken, each.spare))
        stays_with, known = self._named.get(trail.follows), self._known(trail)
        return min(
            candidates,
            key=lambda each: (
                each.taken >= each.at_once,
                each.name != stays_with,
                each.taken - min(known.get(each.name, 0) / BYTES_PER_CALL, each.at_once / 2),
                each.spare,
                self._used.get(each.name, 0),
            ),
        )

    def sent(self, trail: Trail, worker: Candidate) -> Outcome | None:
        """Remember that a worker got a call, for later ones. None: the call has no trail, or none that is looked at."""
        if not self.reads_trails or not (trail.hashes or trail.follows or trail.name):
            return None
        outcome = self._outcome(trail, worker)
        self._last = None
        self._used[worker.name] = next(self._numbers)
        for name in {trail.follows, trail.name} - {""}:
            self._named[name] = worker.name
            self._named.move_to_end(name)
        while len(self._named) > _MOST_NAMES:
            self._named.popitem(last=False)
        if worker.shares_prefixes:
            self._index.add(worker.name, trail.hashes)
        return outcome

    def forget(self, worker: str) -> None:
        """A worker has gone, with its cache; another one may come by this name."""
        self._last = None
        self._index.forget(worker)
        self._used.pop(worker, None)
        for name in [name for name, its in self._named.items() if its == worker]:
            del self._named[name]

    def _known(self, trail: Trail) -> dict[str, int]:
        """How many bytes of a prompt workers know, of those that know any."""
        if self._last is None or self._last[0] is not trail:
            known = {name: self._index.known(name, trail.hashes) for name in self._index.workers}
            self._last = trail, {name: trail.sizes[count - 1] for name, count in known.items() if count}
        return self._last[1]

    def _outcome(self, trail: Trail, worker: Candidate) -> Outcome | None:
        if (stays_with := self._named.get(trail.follows)) is not None:
            return Outcome.HIT if stays_with == worker.name else Outcome.BUSY
        if not trail.hashes:
            return None
        known = self._known(trail)
        if not known:
            return Outcome.MISS
        return Outcome.HIT if known.get(worker.name) == max(known.values()) else Outcome.BUSY
