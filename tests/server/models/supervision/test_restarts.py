import pytest

from djl_python.server.models.supervision import restarts
from djl_python.server.models.supervision.restarts import Life, Restarts, backoff

SERVED = Life(3600.0, "was killed by SIGKILL")
FAILED = Life(None, "it did not load")
LACKING = Life(None, "no memory", lacking=True)


@pytest.mark.parametrize("retries", [0, 2])
def test_a_slot_that_never_served_is_given_up_after_its_retries(retries: int) -> None:
    slot = Restarts(retries)
    for attempt in range(1, retries + 1):
        slot.after(FAILED)
        assert not slot.given_up and slot.attempt == f"attempt {attempt} of {retries + 1}"
    slot.after(FAILED)
    assert slot.given_up


def test_a_slot_that_served_is_tried_again_without_end_and_more_and_more_seldom() -> None:
    slot = Restarts(0)
    assert slot.after(SERVED) == 0.0
    delays = [slot.after(FAILED) for _ in range(1000)]
    assert delays[:8] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0] and delays[-1] == 30.0
    assert not slot.given_up and slot.attempt == "attempt 1000"
    slot.succeeded()
    assert slot.failed == 0


def test_a_worker_that_dies_early_is_restarted_later() -> None:
    slot = Restarts(0)
    assert [slot.after(Life(1.0, "")) for _ in range(4)] == [0.0, 0.5, 1.0, 2.0]
    assert [slot.after(life) for life in (SERVED, Life(1.0, ""))] == [0.0, 0.5]


def test_a_slot_is_lost_when_its_machine_has_lacked_something_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr("djl_python.server.models.supervision.restarts.time.monotonic", lambda: now_s)

    def lost_after(*lives: Life) -> bool:
        nonlocal now_s
        slot = Restarts(99)
        for life in lives:
            now_s += restarts.LOST_AFTER_S
            slot.after(life)
        return slot.lost

    assert lost_after(SERVED, LACKING, LACKING)
    assert not lost_after(SERVED, LACKING)
    assert not lost_after(LACKING, LACKING, LACKING), "it has never served"
    assert not lost_after(SERVED, LACKING, FAILED, LACKING), "in between it lacked nothing"
    assert not lost_after(SERVED, LACKING, LACKING, SERVED)
    assert not lost_after(SERVED, FAILED, FAILED, FAILED)


@pytest.mark.parametrize(("times", "delay_s"), [(0, 0.0), (1, 0.5), (2, 1.0), (3, 2.0), (7, 30.0), (5000, 30.0)])
def test_delays_double_up_to_a_limit(times: int, delay_s: float) -> None:
    assert backoff(times) == delay_s
