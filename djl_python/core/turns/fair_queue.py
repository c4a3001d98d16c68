"""A queue for seats that tenants share by weight.

Runs in the front end (calls that wait for a worker's slot) and in the engine process (sequences that wait for a place
in the batch); depends on nothing but `precedence`.

The tenant with the fewest seats for its weight goes first, if it has waiting items; among equals, the one that has been
served least recently for its weight (stride scheduling). A tenant's items go by priority, then first come,
first served. Items of batches go when no other item waits.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Generic, Protocol, TypeVar

from .precedence import Precedence


class Ranked(Protocol):
    """An item with a turn. Its hash is its identity."""

    @property
    def precedence(self) -> Precedence:
        """The item's tenant and urgency, which do not change while it is here."""
        ...


T = TypeVar("T", bound=Ranked)
#: More than rounding takes from a whole part, and less than a weight could add to one.
_ROUNDING: Final = 1e-9
#: Identifies a tenant; its batches are a tenant of their own, which comes after all others.
TenantKey = tuple[bool, str]


class _Tenant(Generic[T]):
    """A tenant that has seats or waiting items."""

    __slots__ = ("credit", "lanes", "seats", "served", "waiting", "weight")

    def __init__(self, weight: float, served: float) -> None:
        self.weight = weight
        self.seats = 0
        self.served = served  # seats taken so far, divided by the weight
        self.waiting = 0
        self.credit = 0.0  # the fraction of a unit of work that its last part of a budget lacked
        self.lanes: dict[int, OrderedDict[T, int]] = {}  # by priority: items, with their numbers in order of arrival

    def items(self) -> list[tuple[int, T]]:
        """The waiting items in order, each with its number."""
        return [(number, item) for priority in sorted(self.lanes) for item, number in self.lanes[priority].items()]

    def first(self) -> tuple[int, T]:
        """The waiting item that goes first, and its number."""
        item, number = next(iter(self.lanes[min(self.lanes)].items()))
        return number, item


class FairQueue(Generic[T]):
    """Items that wait for seats, and a count of the seats that each tenant has.

    Example:
        >>> class Call:
        ...     def __init__(self, name, tenant):
        ...         self.name, self.precedence = name, Precedence(tenant)
        >>> queue = FairQueue()
        >>> for call in (Call("a0", "a"), Call("a1", "a"), Call("a2", "a"), Call("b0", "b")):
        ...     queue.add(call)
        >>> [call.name for call in queue]
        ['a0', 'b0', 'a1', 'a2']
    """

    def __init__(self) -> None:
        self._tenants: dict[TenantKey, _Tenant[T]] = {}
        self._kinds = Counter[Precedence]()  # of all that wait or have a seat
        self._waiting = 0
        self._served = 0.0  # `served` of a tenant that comes: half a seat before the tenant that was served last
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return self._waiting

    def __contains__(self, item: T) -> bool:
        tenant = self._tenants.get(tenant_of(item))
        return tenant is not None and item in tenant.lanes.get(item.precedence.priority, ())

    def __iter__(self) -> Iterator[T]:
        """The waiting items in the order in which they would get seats, if none were given back meanwhile.

        Items may be taken or removed during the iteration.
        """
        turns: list[tuple[bool, float, float, int, float, T, Iterator[tuple[int, T]]]] = []
        for (background, _), tenant in self._tenants.items():
            if tenant.waiting:
                items = iter(tenant.items())
                number, item = next(items)
                weight = tenant.weight
                turns.append((background, tenant.seats / weight, tenant.served, number, weight, item, items))
        heapq.heapify(turns)
        while turns:
            background, seats, served, _, weight, item, items = turns[0]
            yield item
            if (following := next(items, None)) is None:
                heapq.heappop(turns)
            else:
                part = 1 / weight
                heapq.heapreplace(
                    turns, (background, seats + part, served + part, following[0], weight, following[1], items)
                )

    @property
    def plain(self) -> bool:
        """Whether all items that wait or have seats have the same precedence: order of arrival is all that counts."""
        return len(self._kinds) <= 1

    @property
    def first(self) -> T | None:
        """The item that gets the next seat; None: no item waits."""
        return next(iter(self.firsts), None)

    @property
    def firsts(self) -> list[T]:
        """The waiting item of each tenant that goes first, in their order."""
        waiting = [(key[0], tenant) for key, tenant in self._tenants.items() if tenant.waiting]
        turns = [(later, one.seats / one.weight, one.served, *one.first()) for later, one in waiting]
        turns.sort(key=lambda turn: turn[:4])
        return [item for *_, item in turns]

    def ahead_of(self, item: T) -> int:
        """How many waiting items would get seats before a new one."""
        mine = self._tenants.get(tenant_of(item))
        lanes = {} if mine is None else mine.lanes
        own = sum(len(lane) for priority, lane in lanes.items() if priority <= item.precedence.priority)
        turns = (own + 1) / item.precedence.weight
        background = item.precedence.background
        others = sum(
            min(tenant.waiting, int(turns * tenant.weight))
            for (later, _), tenant in self._tenants.items()
            if tenant is not mine and later <= background
        )
        return own + others

    # ------------------------------------------------------------------------------------ items

    def add(self, item: T) -> None:
        """Have a new item wait."""
        self._wait(item, next(self._numbers), in_front=False)
        self._kinds[item.precedence] += 1

    def give_back(self, item: T) -> None:
        """Have an item wait again, which gives up its seat; it goes before its tenant's others of its priority."""
        tenant = self._tenants[tenant_of(item)]
        tenant.seats -= 1
        tenant.served -= 1 / tenant.weight
        self._wait(item, -next(self._numbers), in_front=True)

    def take(self, item: T) -> None:
        """Give a waiting item a seat."""
        self._remove(item)
        self._sit(item)

    def seat(self, item: T) -> None:
        """Give a new item a seat at once."""
        self._kinds[item.precedence] += 1
        self._sit(item)

    def remove(self, item: T) -> None:
        """Remove a waiting item.

        Raises:
            KeyError: it does not wait.
        """
        self._remove(item)
        self._forget(item)

    def leave(self, item: T) -> None:
        """Free the seat of an item that has ended."""
        self._tenants[tenant_of(item)].seats -= 1
        self._forget(item)

    # ------------------------------------------------------------------------------------ shares

    def allot(self, budget: int, seated: Iterable[T], work: Callable[[T], int]) -> dict[TenantKey, int]:
        """Divide a budget of work among tenants by weight. Batches get what all others leave.

        Parts are whole. Fractions add up over calls, so that a light tenant gets its share of small budgets too.

        Args:
            seated: items with seats that have work to do; all waiting items count, too.
            work: how much an item could use.

        Returns:
            The part of each tenant that is here, no more than its items could use.
        """
        demands = Counter[TenantKey](dict.fromkeys(self._tenants, 0))
        for item in seated:
            demands[tenant_of(item)] += work(item)
        for key, tenant in self._tenants.items():
            for _, item in tenant.items():
                if demands[key] >= budget:
                    break
                demands[key] += work(item)
        weights = {key: tenant.weight for key, tenant in self._tenants.items()}
        credits = {key: tenant.credit for key, tenant in self._tenants.items()}
        parts: dict[TenantKey, int] = {}
        for background in (False, True):
            of_kind = {key: demand for key, demand in demands.items() if key[0] is background}
            shares = divide(budget, of_kind, weights, credits)
            budget -= sum(shares.values())
            parts.update(shares)
        for key, tenant in self._tenants.items():
            tenant.credit = credits[key]
        return parts

    def yielding(self, waiting: T, seated: Sequence[T], seats: int) -> T | None:
        """The seated item that would have to give up its seat for a waiting one; None: no item has to.

        An item of a batch yields to any other; an item of a tenant with more than its share of `seats` to a tenant with
        less; and within a tenant the less urgent to the more urgent.

        Args:
            seated: all items that have seats, in order of arrival.
        """
        wanting = waiting.precedence
        key = tenant_of(waiting)
        entitled = self._tenants[key].seats < self._share(key, seats)
        for item, surplus in reversed(self._ranked(seated, seats)):
            having = item.precedence
            if having.background != wanting.background:
                if having.background:
                    return item
            elif having.tenant == wanting.tenant:
                if having.priority > wanting.priority:
                    return item
            elif surplus and entitled:
                return item
        return None

    def ranked(self, seated: Sequence[T], seats: int) -> list[T]:
        """The seated items, those last that would be the first to give up their seats.

        Args:
            seated: all items that have seats, in order of arrival.
        """
        return [item for item, _ in self._ranked(seated, seats)]

    def _ranked(self, seated: Sequence[T], seats: int) -> list[tuple[T, bool]]:
        """The items of `ranked`, each with whether it is beyond its tenant's share."""
        tenants: dict[TenantKey, list[T]] = {}
        for item in seated:
            tenants.setdefault(tenant_of(item), []).append(item)
        rows = []
        age = {item: number for number, item in enumerate(seated)}
        for key, items in tenants.items():
            share = self._share(key, seats)
            items.sort(key=lambda item: item.precedence.priority)
            for index, item in enumerate(items):
                rows.append((key[0], index / share, age[item], item))
        rows.sort(key=lambda row: row[:3])
        return [(item, part >= 1) for _, part, _, item in rows]

    def _share(self, key: TenantKey, seats: int) -> int:
        """How many of so many seats a tenant may keep while others wait, at least one."""
        weights = sum(tenant.weight for (background, _), tenant in self._tenants.items() if background == key[0])
        return max(1, int(seats * self._tenants[key].weight / weights))

    # ------------------------------------------------------------------------------------ inside

    def _wait(self, item: T, number: int, *, in_front: bool) -> None:
        tenant = self._tenant(item)
        lane = tenant.lanes.setdefault(item.precedence.priority, OrderedDict())
        lane[item] = number
        lane.move_to_end(item, last=not in_front)
        tenant.waiting += 1
        self._waiting += 1

    def _remove(self, item: T) -> None:
        tenant = self._tenants[tenant_of(item)]
        lane = tenant.lanes[item.precedence.priority]
        del lane[item]
        if not lane:
            del tenant.lanes[item.precedence.priority]
        tenant.waiting -= 1
        self._waiting -= 1

    def _sit(self, item: T) -> None:
        tenant = self._tenant(item)
        # So a tenant that comes goes before the one that was served last, and after those who have waited longer: if it
        # began where that one had begun, tenants that come and go would keep all others waiting for ever.
        self._served = max(self._served, tenant.served + 0.5 / tenant.weight)
        tenant.served += 1 / tenant.weight
        tenant.seats += 1

    def _tenant(self, item: T) -> _Tenant[T]:
        key = tenant_of(item)
        tenant = self._tenants.get(key)
        if tenant is None:
            tenant = self._tenants[key] = _Tenant(item.precedence.weight, self._served)
        tenant.weight = item.precedence.weight  # the latest, should it have been changed
        return tenant

    def _forget(self, item: T) -> None:
        kinds = self._kinds
        kinds[item.precedence] -= 1
        if not kinds[item.precedence]:
            del kinds[item.precedence]
        key = tenant_of(item)
        tenant = self._tenants[key]
        if not tenant.waiting and not tenant.seats:
            del self._tenants[key]


def divide(
    budget: int,
    demands: Mapping[TenantKey, int],
    weights: Mapping[TenantKey, float],
    credits: dict[TenantKey, float],
) -> dict[TenantKey, int]:
    """Divide a budget by weight. No tenant gets more than its demand; the rest goes to those with a greater demand.

    Args:
        credits: by tenant, the fraction that its last part lacked. It is added to this part, and replaced by the
            fraction that this part lacks; 0 for a tenant whose demand is met.

    Example:
        >>> a, b = (False, "a"), (False, "b")
        >>> divide(100, {a: 500, b: 10}, {a: 1.0, b: 1.0}, {a: 0.0, b: 0.0})
        {(False, 'b'): 10, (False, 'a'): 90}
    """
    parts: dict[TenantKey, int] = {}
    weight = sum(weights[key] for key in demands)
    for key in sorted(demands, key=lambda key: demands[key] / weights[key]):
        due = budget * weights[key] / weight + credits[key]
        parts[key] = min(demands[key], budget, int(due + _ROUNDING))
        credits[key] = min(max(due - parts[key], 0.0), 1.0) if parts[key] < demands[key] else 0.0
        budget -= parts[key]
        weight -= weights[key]
    return parts


def tenant_of(item: Ranked) -> TenantKey:
    """The tenant that an item counts towards."""
    return item.precedence.background, item.precedence.tenant
