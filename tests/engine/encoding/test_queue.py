"""Which sequences are computed together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from djl_python.core.turns.precedence import ANY, Precedence
from djl_python.engine.encoding.queue import FairQueue
from djl_python.ipc.encodings import EncoderInput


def add(queue: FairQueue, request_id: int, lengths: Sequence[int], precedence: Precedence = ANY) -> None:
    queue.add(request_id, [(index, EncoderInput([1] * length)) for index, length in enumerate(lengths)], precedence)


def batches(queue: FairQueue) -> list[list[tuple[int, int]]]:
    """(request, length) of each sequence, batch by batch."""
    taken = []
    while queue:
        taken.append([(item.request_id, item.length) for item in queue.take()])
    return taken


def test_similar_lengths_are_together_and_short_ones_pay_for_no_long_one() -> None:
    queue = FairQueue(1000)
    add(queue, 1, [5, 100, 7, 95, 6, 40])
    assert batches(queue) == [[(1, 100), (1, 95)], [(1, 40)], [(1, 7), (1, 6), (1, 5)]]


def test_a_batch_has_no_more_tokens_than_it_may_with_padding_and_sequences() -> None:
    queue = FairQueue(40)
    add(queue, 1, [10, 9, 10, 10, 10, 50])
    assert [len(batch) for batch in batches(queue)] == [1, 4, 1]
    queue = FairQueue(1000, max_items=2)
    add(queue, 1, [10] * 5)
    assert [len(batch) for batch in batches(queue)] == [2, 2, 1]


def test_a_single_text_waits_for_one_batch_of_a_long_list() -> None:
    queue = FairQueue(100)
    add(queue, 1, [10] * 1000)
    assert len(queue.take()) == 10
    add(queue, 2, [10])
    add(queue, 3, [90])
    second = queue.take()
    assert (second[0].request_id, len(second)) == (2, 10)
    assert [item.request_id for item in queue.take()] == [3]
    assert len(queue) == 1000 - 10 - 9


def test_long_lists_take_turns() -> None:
    queue = FairQueue(100)
    add(queue, 1, [10] * 30)
    add(queue, 2, [10] * 30)
    assert [batch[0][0] for batch in batches(queue)] == [1, 2, 1, 2, 1, 2]


def test_short_texts_that_keep_coming_do_not_starve_a_long_one() -> None:
    queue = FairQueue(100)
    add(queue, 1, [4] * 25)
    queue.take()
    add(queue, 2, [100])
    for number in range(3, 6):
        add(queue, number, [4] * 50)
    leaders = [queue.take()[0].request_id for _ in range(2)]
    assert 2 in leaders


def test_without_padding_only_equal_lengths_are_together() -> None:
    queue = FairQueue(1000, pads=False)
    add(queue, 1, [10, 9, 10])
    add(queue, 2, [9])
    assert batches(queue) == [[(1, 10), (1, 10)], [(2, 9), (1, 9)]]


def test_a_cancelled_request_leaves_the_queue() -> None:
    queue = FairQueue(10)
    add(queue, 1, [10] * 3)
    add(queue, 2, [5])
    queue.take()
    queue.cancel(1)
    queue.cancel(7)
    assert batches(queue) == [[(2, 5)]]


def test_sequences_without_padding_fill_a_batch_whatever_their_lengths() -> None:
    queue = FairQueue(60, packs=True)
    add(queue, 1, [5, 30, 7, 25, 6, 80])
    add(queue, 2, [20])
    assert batches(queue) == [[(1, 80)], [(2, 20), (1, 30), (1, 7)], [(1, 25), (1, 6), (1, 5)]]
    queue = FairQueue(1000, max_items=2, packs=True)
    add(queue, 1, [10, 500, 20])
    assert batches(queue) == [[(1, 500), (1, 20)], [(1, 10)]]


@pytest.mark.parametrize("packs", [False, True])
def test_a_tenants_flood_does_not_delay_anothers_single_request(packs: bool) -> None:
    queue = FairQueue(100, packs=packs)
    for number in range(1, 501):
        add(queue, number, [10] * 10, Precedence("flood"))
    queue.take()
    add(queue, 501, [10] * 20, Precedence("single"))
    led = [queue.take() for _ in range(4)]
    assert [item.request_id for batch in led for item in batch].count(501) == 20


def test_tenants_have_tokens_by_weight() -> None:
    queue = FairQueue(100)
    for number in range(200):
        add(queue, number, [100], Precedence("gold", weight=3.0))
        add(queue, 1000 + number, [100], Precedence("free"))
    assert sum(queue.take()[0].request_id < 1000 for _ in range(100)) == pytest.approx(75, abs=1)


def test_a_tenant_that_returns_has_no_credit_for_its_absence() -> None:
    queue = FairQueue(10)
    add(queue, 1, [10], Precedence("b"))
    queue.take()
    add(queue, 2, [10] * 50, Precedence("a"))
    for _ in range(40):
        queue.take()
    add(queue, 3, [10] * 10, Precedence("b"))
    assert [queue.take()[0].request_id for _ in range(8)].count(2) in (3, 4)


def test_the_urgent_goes_first_within_its_tenant_only() -> None:
    queue = FairQueue(10)
    add(queue, 1, [10], Precedence("a", priority=5))
    add(queue, 2, [10], Precedence("a"))
    add(queue, 3, [10], Precedence("a", priority=-5))
    add(queue, 4, [10], Precedence("b", priority=9))
    leaders = [queue.take()[0].request_id for _ in range(4)]
    assert [number for number in leaders if number != 4] == [3, 2, 1]
    assert leaders.index(4) < 2


def test_requests_of_batches_have_what_others_leave() -> None:
    queue = FairQueue(100)
    add(queue, 1, [10] * 100, Precedence("a", priority=-9, background=True))
    queue.take()
    add(queue, 2, [10] * 25, Precedence("a"))
    assert [{item.request_id for item in queue.take()} for _ in range(4)] == [{2}, {2}, {1, 2}, {1}]


def led_beside_single_texts(single: Precedence, backlog: Precedence, senders: int, steps: int = 200) -> int:
    """How many steps a backlog leads beside senders of single texts, who always have one waiting each."""
    queue, led = FairQueue(10), 0
    add(queue, 0, [10] * steps, backlog)
    for number in range(1, senders + 1):
        add(queue, number, [10], single)
    for number in range(senders + 1, steps + senders + 1):
        if queue.take()[0].request_id:
            add(queue, number, [10], single)
        else:
            led += 1
    return led


@pytest.mark.parametrize(
    ("backlog", "senders", "share"),
    [
        (Precedence("a"), 1, 1 / 2),
        (Precedence("a"), 3, 1 / 2),
        (Precedence("a", weight=4.0), 1, 4 / 5),
        (Precedence("single"), 1, 1 / 2),  # of the same tenant
        (Precedence("single"), 3, 1 / 4),
    ],
)
def test_single_texts_that_keep_coming_do_not_starve_a_backlog(backlog: Precedence, senders: int, share: float) -> None:
    assert led_beside_single_texts(Precedence("single"), backlog, senders) == pytest.approx(200 * share, abs=2)


def test_tokens_that_nobody_waited_for_are_not_held_against_a_tenant() -> None:
    queue = FairQueue(10)
    add(queue, 1, [10] * 50, Precedence("a"))
    while queue:
        queue.take()
    add(queue, 2, [10] * 50, Precedence("a"))
    add(queue, 3, [10] * 50, Precedence("b"))
    assert [queue.take()[0].request_id for _ in range(10)].count(2) == 5


def test_a_new_request_is_not_charged_for_the_urgent_ones_before_it() -> None:
    queue = FairQueue(10)
    add(queue, 1, [10] * 100)
    add(queue, 2, [10] * 50, Precedence(priority=-1))
    for _ in range(50):
        assert queue.take()[0].request_id == 2
    add(queue, 3, [10])
    assert 3 in [queue.take()[0].request_id for _ in range(2)]
