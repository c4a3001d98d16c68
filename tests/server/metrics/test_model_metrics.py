import logging
import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from djl_python.core.engine_info import EngineInfo
from djl_python.ipc.protocol import Report
from djl_python.server.metrics.metrics import Metrics


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def test_a_report_is_added_up_over_workers() -> None:
    metrics = Metrics()
    model = metrics.model("m", "1")
    model.apply("0", Report(gauges={"running_requests": 2}, counts={"generated_tokens": 3}))
    model.apply("1", Report(gauges={"running_requests": 5}, counts={"generated_tokens": 4}))
    model.apply("1", Report(observations={"inter_token_latency_seconds": [0.01, 0.02]}))
    values = samples(metrics)
    assert values["djl_running_requests", "m", "1", "0"] == 2
    assert values["djl_running_requests", "m", "1", "1"] == 5
    assert values["djl_generated_tokens_total", "m", "1"] == 7
    assert values["djl_inter_token_latency_seconds_count", "m", "1"] == 2


def test_the_usage_of_the_kv_cache_follows_from_its_blocks() -> None:
    metrics = Metrics()
    metrics.model("m", "").apply("0", Report(gauges={"kv_cache_blocks_used": 3, "kv_cache_blocks_total": 12}))
    assert samples(metrics)["djl_kv_cache_usage_ratio", "m", "", "0"] == 0.25


def test_a_dead_workers_gauges_go_and_its_counts_stay() -> None:
    metrics = Metrics()
    model = metrics.model("m", "")
    model.worker_came("0")
    model.apply("0", Report(gauges={"running_requests": 2}, counts={"preemptions": 1}))
    model.worker_went("0")
    values = samples(metrics)
    assert ("djl_running_requests", "m", "", "0") not in values
    assert values["djl_preemptions_total", "m", ""] == 1


def test_engine_info_is_shown_while_the_worker_lives() -> None:
    metrics = Metrics()
    model = metrics.model("m", "")
    native = EngineInfo(runner="native", dtype="bfloat16", device="cpu")
    refused = EngineInfo(
        runner="torch-paged", dtype="float32", quantize="int8", device="cpu", refusal="an unknown norm"
    )
    model.worker_came("0", native)
    model.worker_came("1", refused)
    model.worker_came("2")
    told = {key: value for key, value in samples(metrics).items() if key[0] == "djl_engine_info"}
    assert told == {  # labels by name: device, dtype, model, quantize, refused, runner, version, worker
        ("djl_engine_info", "cpu", "bfloat16", "m", "none", "no", "native", "", "0"): 1,
        ("djl_engine_info", "cpu", "float32", "m", "int8", "yes", "torch-paged", "", "1"): 1,
    }
    model.worker_went("0")
    (left,) = (key for key in samples(metrics) if key[0] == "djl_engine_info")
    assert (left[6], left[8]) == ("torch-paged", "1")
    model.worker_went("1")
    assert not any(key[0] == "djl_engine_info" for key in samples(metrics))


def test_a_metric_that_is_not_in_the_table_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    model = metrics.model("m", "")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            # The last two exist, and are not the workers' to report.
            model.apply("0", Report(gauges={"nonsense": 1, "workers": 9}, counts={"requests": 1}))
    problem = "is not in the table"
    assert [record.args for record in caplog.records] == [
        (name, problem) for name in ("nonsense", "workers", "requests")
    ]
    assert "nonsense" not in metrics.render().decode()


def test_requests_that_workers_saw_fail_are_among_those_that_were_aborted() -> None:
    metrics = Metrics()
    model = metrics.model("m", "")
    model.aborted("timeout")
    model.apply("0", Report(counts={"aborted_requests": 2}))
    values = samples(metrics)
    assert values["djl_aborted_requests_total", "m", "timeout", ""] == 1
    assert values["djl_aborted_requests_total", "m", "engine_failed", ""] == 2


@pytest.mark.parametrize("wrong", [-5.0, math.nan, math.inf])
def test_a_number_that_no_counter_can_have_is_left_out_and_said(wrong: float, caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    with caplog.at_level(logging.WARNING):
        metrics.model("m", "").apply("0", Report(counts={"generated_tokens": wrong, "prompt_tokens": 3}))
    assert [record.args for record in caplog.records] == [
        ("generated_tokens", f"grows by {wrong}, which no counter can")
    ]
    values = samples(metrics)
    assert values["djl_generated_tokens_total", "m", ""] == 0
    assert values["djl_prompt_tokens_total", "m", ""] == 3


def test_an_observation_that_has_no_sum_is_left_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    with caplog.at_level(logging.WARNING):
        metrics.model("m", "").apply("0", Report(observations={"batch_size": [math.inf, 2, math.nan]}))
    assert [record.args for record in caplog.records] == [("batch_size", "has the observation inf")]
    values = samples(metrics)
    assert values["djl_batch_size_sum", "m", ""] == 2
    assert values["djl_batch_size_count", "m", ""] == 1


def test_the_two_kinds_of_waiting_are_told_apart() -> None:
    metrics = Metrics()
    model = metrics.model("m", "")
    model.queue_seconds.observe(0.5)
    model.apply("0", Report(observations={"queue_seconds": [1.0]}))
    values = samples(metrics)
    assert values["djl_queue_seconds_sum", "m", "server", ""] == 0.5
    assert values["djl_queue_seconds_sum", "m", "worker", ""] == 1.0


def test_workers_of_several_instances_of_a_model_are_counted_together() -> None:
    metrics = Metrics()
    model = metrics.model("m", "")
    for more in (2, 1, -2):
        model.workers("ready", more)
    assert samples(metrics)["djl_workers", "m", "ready", ""] == 1
