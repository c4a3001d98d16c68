import itertools
from collections.abc import Sequence

import pytest

from djl_python.server.models.scaling.scaling import PAUSE_S, WAIT_S, Decision, Scaling, WorkerLoad

IDLE_S = 10.0


def scaling(least: int = 1, most: int = 3, batch_size: int = 1) -> Scaling:
    return Scaling({"cpu": (least, most)}, batch_size, IDLE_S)


def workers(*spare_idle_since: float | None, ready: bool = True, device: str = "cpu") -> list[WorkerLoad]:
    """A worker that always runs, and spare ones; None: busy."""
    names = itertools.count(1)
    spares = [WorkerLoad(f"{next(names)}", device, True, ready, since) for since in spare_idle_since]
    return [WorkerLoad("0", device, False, True, 0.0), *spares]


@pytest.mark.parametrize(
    ("waiting", "batch_size", "since_s", "grows", "again_s"),
    [
        (0, 1, None, False, None),
        (1, 1, 100.0, False, 100 + WAIT_S),  # a moment
        (1, 1, 100 - WAIT_S, True, None),  # too long
        (2, 1, 100.0, False, 100 + WAIT_S),
        (3, 1, 100.0, True, None),  # too many
        (8, 4, 100.0, False, 100 + WAIT_S),
        (9, 4, 100.0, True, None),
    ],
)
def test_calls_that_wait_too_long_or_are_too_many_bring_a_worker(
    waiting: int, batch_size: int, since_s: float | None, grows: bool, again_s: float | None
) -> None:
    tried = scaling(batch_size=batch_size)
    tried.decide(0.0, 0, None, workers())
    assert tried.decide(100.0, waiting, since_s, workers()) == Decision(["cpu"] if grows else [], [], again_s)


@pytest.mark.parametrize(
    ("there", "grows"),
    [
        (workers(None), True),
        (workers(None, ready=False), False),  # one at a time
        (workers(None, None), False),  # as many as there may be
        ([WorkerLoad("0", "cpu", False, False, None)], False),  # the one that always runs starts again
    ],
)
def test_workers_are_added_singly_up_to_the_maximum(there: Sequence[WorkerLoad], grows: bool) -> None:
    assert scaling().decide(100.0, 100, 0.0, there).grow == (["cpu"] if grows else [])


def test_a_new_worker_has_a_moment_to_take_calls() -> None:
    tried = scaling()
    tried.decide(90.0, 2, 90.0, workers(None, ready=False))
    assert tried.decide(100.0, 2, 90.0, workers(None)) == Decision([], [], 100 + WAIT_S)
    assert tried.decide(100 + WAIT_S, 2, 90.0, workers(None)).grow == ["cpu"]
    assert tried.decide(100.0, 3, 90.0, workers(None)).grow == ["cpu"]


def test_each_device_gets_its_own() -> None:
    both = Scaling({"cuda:0": (1, 2), "cuda:1": (2, 2), "cuda:2": (1, 2)}, 1, IDLE_S)
    there = [*workers(device="cuda:0"), *workers(device="cuda:1"), *workers(device="cuda:2")]
    assert both.decide(100.0, 100, 0.0, there).grow == ["cuda:0", "cuda:2"]


def test_a_number_that_is_fixed() -> None:
    fixed = scaling(2, 2)
    assert fixed.fixed and not scaling(1, 2).fixed
    assert fixed.decide(100.0, 100, 0.0, workers()) == Decision([], [], None)  # not even for one that was given up


def test_spare_workers_go_when_they_have_had_nothing_to_do() -> None:
    assert scaling().decide(100.0, 0, None, workers(100 - IDLE_S, 95.0)) == Decision([], ["1"], 95 + IDLE_S)
    assert scaling().decide(100.0, 0, None, workers(80.0, 80.0)) == Decision([], ["1", "2"], None)
    assert scaling().decide(100.0, 0, None, workers(None)) == Decision([], [], 100 + IDLE_S)  # not before that
    assert scaling().decide(100.0, 0, None, workers()) == Decision([], [], None)


def test_a_worker_that_replaces_another_stays() -> None:
    starting = WorkerLoad("0", "cpu", False, False, None)
    _, *spares = workers(80.0, 80.0)
    assert scaling().decide(100.0, 0, None, [starting, *spares]).shrink == ["1"]
    assert scaling().decide(100.0, 0, None, spares[:1]).shrink == []


def test_while_calls_wait_none_goes() -> None:
    """They may be for a worker that gets none for the moment."""
    assert scaling(most=2).decide(100.0, 1, 99.5, workers(80.0)) == Decision([], [], 100 + WAIT_S)


def test_after_a_failure_there_is_a_pause() -> None:
    tried = scaling()
    tried.failed("cpu", 100.0)
    assert tried.decide(101.0, 100, 0.0, workers()) == Decision([], [], 100 + PAUSE_S)
    assert tried.decide(100 + PAUSE_S, 100, 0.0, workers()).grow == ["cpu"]


@pytest.mark.parametrize(
    ("crowded", "grows", "again_s"),
    [
        ([100 - WAIT_S, 90.0], True, None),  # as long as the last one has been
        ([100.0, 90.0], False, 100 + WAIT_S),
        ([None, 90.0], False, None),  # one has room
        ([None, None], False, None),
    ],
)
def test_requests_that_wait_in_every_worker_bring_another(
    crowded: list[float | None], grows: bool, again_s: float | None
) -> None:
    """No call waits in the front end: batches and KV caches are full."""
    there = [WorkerLoad(str(number), "cpu", False, True, None, since) for number, since in enumerate(crowded)]
    tried = scaling(least=2)
    tried.decide(0.0, 0, None, there)
    assert tried.decide(100.0, 0, None, there) == Decision(["cpu"] if grows else [], [], again_s)
