"""TGI's names at /metrics: the same numbers as ours."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from djl_python.ipc.protocol import Report
from djl_python.server.metrics.metrics import Metrics


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """By name and labels' values, in the order of the labels' names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
        if family.name.startswith("tgi_")
    }


def test_requests_by_what_became_of_them() -> None:
    metrics = Metrics()
    for code in (200, 200, 422, 424, 429, 503, 500):
        metrics.answered("m", "", "tgi", code, 0.3)
    metrics.answered("m", "", "lmi", 200, 0.3)
    metrics.answered("", "", "tgi", 200, 0.3)  # a page
    values = samples(metrics)
    assert values["tgi_request_count", "m", ""] == 8
    assert values["tgi_request_success", "m", ""] == 3
    failures = {key[1]: value for key, value in values.items() if key[0] == "tgi_request_failure"}
    assert failures == {"validation": 1, "generation": 1, "overloaded": 2, "incomplete_generation": 1}
    assert values["tgi_request_duration_count", "tgi", "m", ""] == 7
    assert values["tgi_request_duration_bucket", "tgi", "0.25", "m", ""] == 0
    assert values["tgi_request_duration_bucket", "tgi", "0.5", "m", ""] == 7


def test_workers_reports_become_tgis_metrics() -> None:
    metrics = Metrics()
    model = metrics.model("m", "1")
    model.queued.set(2)
    model.apply("0", Report(gauges={"running_requests": 2, "waiting_requests": 3}))
    model.apply("1", Report(gauges={"running_requests": 5}))
    observations = {
        "request_prompt_tokens": [10.0],
        "request_generated_tokens": [20.0],
        "request_max_new_tokens": [100.0],
        "request_validation_seconds": [0.001],
        "request_inference_seconds": [0.5],
        "inter_token_latency_seconds": [0.01, 0.02],
        "queue_seconds": [0.25],
        "request_queue_seconds": [0.75],
        "request_time_per_token_seconds": [0.025],
        "engine_step_seconds": [0.01],
    }
    model.queue_seconds.observe(0.5)
    model.apply("0", Report(observations=observations))
    values = samples(metrics)
    assert values["tgi_queue_size", "m", "1"] == 5
    assert values["tgi_batch_current_size", "m", "1"] == 7
    assert values["tgi_batch_inference_count", "m", "1"] == 1
    sums = {key[0]: value for key, value in values.items() if key[0].endswith("_sum")}
    assert sums == {
        "tgi_request_input_length_sum": 10,
        "tgi_request_generated_tokens_sum": 20,
        "tgi_request_max_new_tokens_sum": 100,
        "tgi_request_validation_duration_sum": 0.001,
        "tgi_request_inference_duration_sum": 0.5,
        "tgi_request_queue_duration_sum": 0.75,
        "tgi_request_mean_time_per_token_duration_sum": 0.025,
        "tgi_batch_inference_duration_sum": 0.01,
    }
    counts = {
        key: value for key, value in values.items() if key[0].endswith("_count") and key[0] != "tgi_request_count"
    }
    assert set(counts.values()) == {1}  # a series for each, and in it one observation a request
    assert len({name for name, *_ in counts}) == len(counts)


def test_a_dead_workers_gauges_go() -> None:
    metrics = Metrics()
    model = metrics.model("m", "")
    model.worker_came("0")
    model.apply("0", Report(gauges={"running_requests": 2}))
    model.worker_went("0")
    assert ("tgi_batch_current_size", "m", "") not in samples(metrics)
