"""Which worker gets a call: the one that knows its prompt, unless that one is busy."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from djl_python.server.models.routing.router import BYTES_PER_CALL, Outcome, Router, Routing
from djl_python.server.models.routing.trail import NO_TRAIL, Trail, trail_of


@dataclass
class Worker:
    name: str
    taken: int = 0
    at_once: int = 16
    spare: bool = False
    shares_prefixes: bool = True


def chat(*messages: str) -> Trail:
    return trail_of([message.encode() for message in messages])


LONG = "a system prompt " * 1000


@pytest.fixture
def workers() -> list[Worker]:
    return [Worker("0"), Worker("1"), Worker("2")]


def routed(router: Router, trail: Trail, workers: list[Worker]) -> tuple[str, Outcome | None]:
    chosen = router.choose(trail, workers)
    assert chosen is not None
    return chosen.name, router.sent(trail, chosen)


def test_a_chat_stays_with_its_worker_and_new_ones_go_round(workers: list[Worker]) -> None:
    router = Router()
    first = {name: routed(router, chat(name + LONG), workers) for name in "abc"}
    assert first == {name: (worker, Outcome.MISS) for name, worker in zip("abc", "012", strict=True)}
    for name, (worker, _) in reversed(first.items()):
        assert routed(router, chat(name + LONG, "answer", "question"), workers) == (worker, Outcome.HIT)


def test_new_chats_of_an_assistant_gather_until_their_worker_has_enough(workers: list[Worker]) -> None:
    router = Router()
    for number in range(3 * 8):
        name, _ = routed(router, chat(LONG, f"question {number}"), workers)
        workers[int(name)].taken += 1
    assert [worker.taken for worker in workers] == [8, 8, 8]


def test_a_worker_that_knows_more_may_have_more_calls_but_not_many_more(workers: list[Worker]) -> None:
    router = Router()
    router.sent(chat(LONG, "question"), workers[1])
    workers[1].taken = workers[1].at_once // 2 - 1
    assert routed(router, chat(LONG, "question", "answer"), workers) == ("1", Outcome.HIT)
    workers[1].taken += 2
    name, outcome = routed(router, chat(LONG, "question", "answer"), workers)
    assert (name != "1", outcome) == (True, Outcome.BUSY)
    assert routed(router, chat(LONG, "question", "answer"), workers) == (name, Outcome.HIT)


def test_a_short_prompt_is_not_worth_a_call_more(workers: list[Worker]) -> None:
    router = Router()
    trail = chat("x" * (BYTES_PER_CALL // 2))
    router.sent(trail, workers[1])
    assert routed(router, trail, workers)[0] == "1"
    workers[1].taken = 1
    assert routed(router, trail, workers)[0] != "1"


def test_a_call_does_not_wait_in_a_worker_where_another_has_a_place(workers: list[Worker]) -> None:
    router = Router()
    router.sent(chat(LONG), workers[0])
    for worker, taken in zip(workers, (2, 1, 1), strict=True):
        worker.at_once, worker.taken = 2, taken
    assert routed(router, chat(LONG), workers) == ("1", Outcome.BUSY)
    for worker in workers:
        worker.taken = 2
    assert routed(router, chat(LONG), workers)[0] in ("0", "1")


def test_sessions_stay_with_their_worker_while_that_has_a_place(workers: list[Worker]) -> None:
    router, session = Router(), Trail(follows="s", name="s")
    assert routed(router, session, workers) == ("0", None)
    workers[0].taken = 15
    assert routed(router, session, workers) == ("0", Outcome.HIT)
    workers[0].taken = 16
    assert routed(router, session, workers) == ("1", Outcome.BUSY)
    workers[0].taken = 0
    assert routed(router, session, workers) == ("1", Outcome.HIT)


def test_a_response_is_followed_to_the_worker_that_made_it(workers: list[Worker]) -> None:
    router = Router()
    router.sent(Trail(name="resp_1"), workers[2])
    assert routed(router, Trail(follows="resp_1", name="resp_2"), workers) == ("2", Outcome.HIT)
    assert routed(router, Trail(follows="resp_2"), workers) == ("2", Outcome.HIT)
    assert routed(router, Trail(follows="resp_unknown"), workers)[1] is None


def test_a_worker_that_has_gone_is_forgotten(workers: list[Worker]) -> None:
    router = Router()
    for trail in (chat(LONG), Trail(follows="s", name="s")):
        router.sent(trail, workers[2])
    router.forget("2")
    workers[2].taken = 1  # it is back, and has something to do
    assert routed(router, chat(LONG), workers) == ("0", Outcome.MISS)
    assert routed(router, Trail(follows="s", name="s"), workers) == ("1", None)


def test_a_worker_without_a_shared_cache_is_not_remembered(workers: list[Worker]) -> None:
    router = Router()
    for worker in workers:
        worker.shares_prefixes = False
    assert [routed(router, chat(LONG), workers) for _ in range(3)] == [(name, Outcome.MISS) for name in "012"]


@pytest.mark.parametrize("routing", Routing)
def test_without_a_trail_the_least_busy_worker_is_chosen_and_a_spare_one_last(
    routing: Routing, workers: list[Worker]
) -> None:
    router = Router(routing)
    workers[0].taken, workers[1].spare = 1, True
    assert routed(router, NO_TRAIL, workers) == ("2", None)
    workers[2].taken = 1
    assert routed(router, NO_TRAIL, workers) == ("1", None)


def test_trails_make_no_difference_where_the_least_busy_worker_is_wanted(workers: list[Worker]) -> None:
    router = Router(Routing.LEAST_BUSY)
    router.sent(chat(LONG), workers[1])
    assert not router.reads_trails
    assert routed(router, chat(LONG), workers) == ("0", None)


def test_no_worker_means_none() -> None:
    assert Router().choose(NO_TRAIL, []) is None
