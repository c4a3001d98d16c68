"""Turns: tenants by their shares, within one by priority, and batches last."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import pytest

from djl_python.core.turns.fair_queue import FairQueue, TenantKey, divide
from djl_python.core.turns.precedence import ANY, Precedence


@dataclass(eq=False)
class Item:
    name: str
    precedence: Precedence = ANY
    work: int = 1


def filled(*items: Item) -> FairQueue[Item]:
    queue = FairQueue[Item]()
    for item in items:
        queue.add(item)
    return queue


def items(tenant: str, count: int, weight: float = 1.0, priority: int = 0, background: bool = False) -> list[Item]:
    precedence = Precedence(tenant, weight, priority, background)
    return [Item(f"{tenant}{number}", precedence) for number in range(count)]


def served(queue: FairQueue[Item], seats: int, count: int) -> list[str]:
    """The names of the items that get seats, where the one that has had its seat for longest ends each time."""
    names, seated = list[str](), list[Item]()
    while len(names) < count and (item := queue.first) is not None:
        queue.take(item)
        names.append(item.name)
        seated.append(item)
        if len(seated) == seats:
            queue.leave(seated.pop(0))
    return names


def test_equal_items_are_served_in_order_of_arrival() -> None:
    queue = filled(*items("a", 4))
    assert queue.plain
    assert [item.name for item in queue] == served(queue, 2, 4) == ["a0", "a1", "a2", "a3"]
    assert not queue


@pytest.mark.parametrize("seats", [1, 3, 8])
def test_a_tenant_with_a_single_item_does_not_wait_for_the_many_of_another(seats: int) -> None:
    queue = filled(*items("a", 500))
    served(queue, seats, 40)
    queue.add(Item("b0", Precedence("b")))
    assert not queue.plain
    assert "b0" in served(queue, seats, 2)


@pytest.mark.parametrize("seats", [1, 4])
def test_tenants_are_served_by_their_weights(seats: int) -> None:
    queue = filled(*items("a", 400, weight=3.0), *items("b", 400))
    of_a = sum(name.startswith("a") for name in served(queue, seats, 200))
    assert of_a == pytest.approx(150, abs=seats + 1)


def test_priority_counts_within_a_tenant_and_lower_goes_first() -> None:
    queue = filled(
        Item("late", Precedence("a", priority=5)),
        Item("b", Precedence("b", priority=9)),
        Item("soon", Precedence("a", priority=-1)),
        Item("soon too", Precedence("a", priority=-1)),
    )
    assert served(queue, 1, 4) == ["b", "soon", "soon too", "late"]


def test_batches_come_after_everything_else_whatever_their_tenant_has_had() -> None:
    queue = filled(*items("a", 2, background=True), *items("b", 3))
    assert served(queue, 4, 5) == ["b0", "b1", "b2", "a0", "a1"]


def test_a_tenant_that_returns_has_no_credit_for_its_absence() -> None:
    queue = filled(*items("a", 60))
    served(queue, 1, 30)
    for item in items("b", 30):
        queue.add(item)
    of_b = sum(name.startswith("b") for name in served(queue, 1, 20))
    assert of_b in (9, 10, 11)


def test_tenants_that_come_and_go_do_not_keep_one_waiting() -> None:
    queue = filled(*(Item(f"{name}0", Precedence(name)) for name in "bc"))
    waiting = [Item(f"a{number}", Precedence("a")) for number in range(5)]
    for item in waiting:
        queue.add(item)
    gaps, gap = [], 0
    while any(item in queue for item in waiting):
        gap += 1
        first = queue.first
        assert first is not None and gap < 6
        queue.take(first)
        queue.leave(first)  # the tenant's only item, with which it leaves
        if first in waiting:
            gaps.append(gap)
            gap = 0
        else:
            queue.add(Item(first.name, first.precedence))
    assert len(gaps) == len(waiting)


def test_an_item_that_gives_its_seat_back_is_next() -> None:
    queue = filled(*items("a", 3))
    first = queue.first
    assert first is not None
    queue.take(first)
    queue.give_back(first)
    assert served(queue, 1, 3) == ["a0", "a1", "a2"]


def test_the_order_foretold_is_the_order_in_which_items_are_served() -> None:
    rng = random.Random(1)
    for _ in range(50):
        queue = FairQueue[Item]()
        for number in range(40):
            tenant = rng.choice("abc")
            precedence = Precedence(tenant, 1.0 + (tenant == "a"), rng.choice([0, 0, 1]), rng.random() < 0.2)
            queue.add(Item(str(number), precedence))
        foretold = [item.name for item in queue]
        assert served(queue, 1000, 40) == foretold


class TestYielding:
    def test_a_tenant_below_its_share_gets_the_last_place_of_one_above(self) -> None:
        queue = filled(*(flood := items("a", 8)))
        for item in flood:
            queue.take(item)
        queue.add(single := Item("b", Precedence("b")))
        assert queue.yielding(single, flood, 8) is flood[-1]

    def test_places_settle_at_the_shares(self) -> None:
        queue, seated = FairQueue[Item](), list[Item]()
        for item in items("a", 20):
            queue.add(item)
        for item in list(queue)[:8]:
            queue.take(item)
            seated.append(item)
        for item in items("b", 20, weight=3.0):
            queue.add(item)
        for _ in range(40):
            waiting = queue.first
            assert waiting is not None
            if (victim := queue.yielding(waiting, seated, 8)) is None:
                break
            queue.give_back(victim)
            seated.remove(victim)
            following = queue.first
            assert following is not None
            queue.take(following)
            seated.append(following)
        else:
            pytest.fail("places are taken from each other without an end")
        assert Counter(item.precedence.tenant for item in seated) == {"a": 2, "b": 6}

    def test_more_tenants_than_places_take_none_from_each_other(self) -> None:
        queue, seated = FairQueue[Item](), [items(str(number), 1)[0] for number in range(4)]
        for item in seated:
            queue.seat(item)
        queue.add(waiting := Item("x", Precedence("x")))
        assert queue.yielding(waiting, seated, 4) is None

    def test_the_less_urgent_of_a_tenant_yields_to_the_more_urgent_alone(self) -> None:
        low, high = Item("low", Precedence(priority=3)), Item("high", Precedence(priority=-3))
        queue = FairQueue[Item]()
        queue.seat(low)
        queue.add(high)
        assert queue.yielding(high, [low], 1) is low
        other = FairQueue[Item]()
        other.seat(high)
        other.add(low)
        assert other.yielding(low, [high], 1) is None

    def test_priority_takes_nothing_from_another_tenant(self) -> None:
        mine, theirs = Item("mine", Precedence("a", priority=9)), Item("theirs", Precedence("b", priority=-9))
        queue = FairQueue[Item]()
        queue.seat(mine)
        queue.add(theirs)
        assert queue.yielding(theirs, [mine], 2) is None

    def test_a_batch_yields_to_anything_and_takes_nothing(self) -> None:
        batch, other = Item("batch", Precedence("a", background=True)), Item("other", Precedence("a"))
        queue = FairQueue[Item]()
        queue.seat(batch)
        queue.add(other)
        assert queue.yielding(other, [batch], 1) is batch
        reverse = FairQueue[Item]()
        reverse.seat(other)
        reverse.add(batch)
        assert reverse.yielding(batch, [other], 1) is None


class TestBudgets:
    A: TenantKey = (False, "a")
    B: TenantKey = (False, "b")

    def test_a_budget_is_divided_by_weight(self) -> None:
        credits = {self.A: 0.0, self.B: 0.0}
        assert divide(100, {self.A: 900, self.B: 900}, {self.A: 1.0, self.B: 3.0}, credits) == {self.A: 25, self.B: 75}

    def test_the_rest_of_a_small_demand_goes_to_others(self) -> None:
        credits = {self.A: 0.0, self.B: 0.0}
        assert divide(100, {self.A: 900, self.B: 4}, {self.A: 1.0, self.B: 1.0}, credits) == {self.A: 96, self.B: 4}

    @pytest.mark.parametrize("weight", [20.0, 1000.0])
    def test_shares_below_one_unit_add_up(self, weight: float) -> None:
        heavy, light = Item("heavy", Precedence("gold", weight), work=900), Item("light", Precedence("b"), work=900)
        queue = filled(light)
        queue.seat(heavy)
        budget, calls = 7, 3000
        parts = [queue.allot(budget, [heavy], lambda item: item.work) for _ in range(calls)]
        assert all(sum(part.values()) == budget for part in parts)
        assert abs(sum(part[self.B] for part in parts) - budget * calls / (weight + 1)) <= 1

    def test_nothing_is_lost_or_made(self) -> None:
        rng = random.Random(2)
        for _ in range(200):
            demands = {(False, str(number)): rng.randrange(0, 300) for number in range(rng.randrange(1, 7))}
            weights = {key: rng.choice([0.5, 1.0, 3.0]) for key in demands}
            credits = {key: rng.choice([0.0, 0.5, 1.0]) for key in demands}
            parts = divide(256, demands, weights, credits)
            assert sum(parts.values()) == min(256, sum(demands.values()))
            assert all(0 <= parts[key] <= demands[key] for key in demands)

    def test_batches_get_what_all_others_leave(self) -> None:
        flood = Item("batch", Precedence("a", background=True), work=1000)
        other = Item("other", Precedence("b"), work=30)
        queue = filled(other)
        queue.seat(flood)
        parts = queue.allot(100, [flood], lambda item: item.work)
        assert parts == {(False, "b"): 30, (True, "a"): 70}
