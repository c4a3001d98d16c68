import pytest

from djl_python.core.engine_info import EngineStats
from djl_python.handlers.step_metrics import REPORT_EVERY_S, StepMetrics
from tests.handlers.harness import FakeMetrics


class Counted(FakeMetrics):
    """Remembers how often something was said, too."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def count(self, name: str, amount: float = 1) -> None:
        self.said.append(name)
        super().count(name, amount)

    def observe(self, name: str, *values: float) -> None:
        self.said.append(name)
        super().observe(name, *values)


def test_the_tokens_of_a_step_are_said_once() -> None:
    metrics = Counted()
    steps = StepMetrics(metrics)
    for gap_s in (None, 0.5, 0.25):
        steps.token(gap_s)
    steps.step(EngineStats(running=3, step_s=0.01))
    assert metrics.counts["generated_tokens"] == 3
    assert metrics.observations["inter_token_latency_seconds"] == [0.5, 0.25]
    assert len(metrics.said) == len(set(metrics.said))


def test_a_step_without_tokens_says_nothing_of_them() -> None:
    metrics = Counted()
    steps = StepMetrics(metrics)
    steps.token(None)
    steps.step(EngineStats(step_s=0.01))
    metrics.said.clear()
    steps.step(EngineStats(step_s=0.01))
    assert not {"generated_tokens", "inter_token_latency_seconds"} & set(metrics.said)


def test_a_batch_has_the_sequences_of_its_step_not_those_that_are_left() -> None:
    metrics = Counted()
    steps = StepMetrics(metrics)
    steps.step(EngineStats(running=0, step_s=0.01, step_sequences=3))
    steps.step(EngineStats(running=2))  # no step
    assert metrics.observations["batch_size"] == [3]
    assert metrics.observations["engine_step_seconds"] == [0.01]


@pytest.mark.parametrize("name", ["preemptions", "draft_tokens", "accepted_draft_tokens"])
def test_the_engines_counts_are_added_since_the_last_step(name: str) -> None:
    metrics = Counted()
    steps = StepMetrics(metrics)
    for count in (0, 2, 2, 3):
        steps.step(EngineStats(**{name: count}))
    assert metrics.counts == {name: 3}


def test_steps_are_reported_together_while_sequences_run() -> None:
    now_s = [0.0]
    metrics = Counted()
    steps = StepMetrics(metrics, lambda: now_s[0])

    def step(at_s: float, running: int) -> list[str]:
        now_s[0] = at_s
        metrics.said.clear()
        steps.token(0.125)
        steps.step(EngineStats(running=running, step_s=0.01, step_sequences=running))
        return metrics.said

    assert step(1.0, running=2)  # the first
    assert not step(1.02, running=2)
    assert not step(1.0 + 0.9 * REPORT_EVERY_S, running=3)
    assert step(1.0 + REPORT_EVERY_S, running=4)
    assert metrics.counts["generated_tokens"] == 4
    assert metrics.observations["inter_token_latency_seconds"] == [0.125] * 4
    assert metrics.observations["batch_size"] == [2, 2, 3, 4]
    assert metrics.observations["engine_step_seconds"] == [0.01] * 4
    assert metrics.gauges["running_requests"] == 4


def test_a_sequences_end_and_the_last_step_are_reported_at_once() -> None:
    metrics = Counted()
    steps = StepMetrics(metrics, lambda: 0.0)
    steps.step(EngineStats(running=2, step_s=0.01))
    steps.token(None)
    steps.sequence_ended()
    steps.step(EngineStats(running=1, step_s=0.01))
    assert metrics.counts["generated_tokens"] == 1
    steps.token(None)
    steps.step(EngineStats(running=0, step_s=0.01))
    assert metrics.counts["generated_tokens"] == 2
    assert metrics.gauges["running_requests"] == 0
