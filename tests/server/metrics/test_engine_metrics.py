"""Engines' own metrics at /metrics, under their own names."""

from __future__ import annotations

import logging

import pytest
from prometheus_client.parser import text_string_to_metric_families

from djl_python.core.metrics import MetricFamily, MetricSample
from djl_python.ipc.protocol import EngineMetrics
from djl_python.server.metrics.metrics import Metrics


def told(value: float, name: str = "vllm:num_requests_running", kind: str = "gauge") -> EngineMetrics:
    sample = MetricSample(name, {"model_name": "/checkpoint", "engine": "0"}, value)
    return EngineMetrics([MetricFamily(name, kind, "Requests.", [sample])])


def shown(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """By name, model, version and worker."""
    return {
        (sample.name, *(sample.labels[label] for label in ("model", "version", "worker"))): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
        if sample.name.startswith("vllm:")
    }


def test_the_newest_of_each_worker_is_shown() -> None:
    metrics = Metrics()
    model, other = metrics.model("m", "1"), metrics.model("other", "")
    for report in (told(1), told(2)):
        model.apply("0", report)
    model.apply("1", told(3))
    other.apply("0", told(4))
    name = "vllm:num_requests_running"
    assert shown(metrics) == {(name, "m", "1", "0"): 2, (name, "m", "1", "1"): 3, (name, "other", "", "0"): 4}
    assert 'model_name="m"' in metrics.render().decode()
    model.worker_went("1")
    assert (name, "m", "1", "1") not in shown(metrics)


def test_a_counter_and_a_histogram_keep_their_names() -> None:
    metrics = Metrics()
    buckets = [MetricSample("vllm:e2e_bucket", {"le": le}, 1.0) for le in ("1.0", "+Inf")]
    sums = [MetricSample("vllm:e2e_count", {}, 1.0), MetricSample("vllm:e2e_sum", {}, 0.5)]
    families = [
        MetricFamily("vllm:e2e", "histogram", "Seconds.", [*buckets, *sums]),
        MetricFamily("vllm:tokens", "counter", "Tokens.", [MetricSample("vllm:tokens_total", {}, 7.0)]),
    ]
    metrics.model("m", "").apply("0", EngineMetrics(families))
    names = {name for name, *_ in shown(metrics)}
    assert names == {"vllm:e2e_bucket", "vllm:e2e_count", "vllm:e2e_sum", "vllm:tokens_total"}
    text = metrics.render().decode()
    assert "# TYPE vllm:e2e histogram" in text and "# TYPE vllm:tokens_total counter" in text


@pytest.mark.parametrize(
    ("name", "kind"), [("djl_requests", "gauge"), ("a b", "gauge"), ("vllm:x", "speed"), ("", "gauge")]
)
def test_a_forbidden_name_of_a_metric_is_logged_and_not_shown(
    name: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics()
    with caplog.at_level(logging.WARNING):
        metrics.model("m", "").apply("0", told(1, name, kind))
    assert "is none that an engine may have" in caplog.text
    assert "/checkpoint" not in metrics.render().decode()
