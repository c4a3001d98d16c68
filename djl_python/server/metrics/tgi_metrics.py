"""TGI's metric names at /metrics beside ours, so that dashboards made for TGI go on working.

Runs in the front end. Every family here is derived from ours while /metrics is answered; nothing is counted twice.
Source: the names of TGI 2.3.2's router. TGI's counters lack `_total`, which Prometheus' text format allows only for
untyped families. The histograms have our buckets, and all families our labels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

#: HTTP status -> TGI's kind of failure; see `_outcome` for other statuses.
_FAILURES: Final = {424: "generation", 429: "overloaded", 499: "disconnected", 503: "overloaded"}
_SERVER_ERROR: Final = 500


@dataclass(frozen=True)
class _View:
    """A family of TGI's, and the one of ours that it is derived from, named without `djl_`."""

    name: str
    help: str
    ours: str


_HISTOGRAMS: Final = (
    _View(
        "tgi_request_duration", "From a request's last byte to its answer's, in seconds.", "request_duration_seconds"
    ),
    _View("tgi_request_validation_duration", "Parsing and tokenizing, in seconds.", "request_validation_seconds"),
    _View("tgi_request_queue_duration", "Waiting, in seconds.", "request_queue_seconds"),
    _View(
        "tgi_request_inference_duration",
        "From the first step to the last token, in seconds.",
        "request_inference_seconds",
    ),
    _View(
        "tgi_request_mean_time_per_token_duration",
        "Inference by generated tokens, in seconds.",
        "request_time_per_token_seconds",
    ),
    _View("tgi_request_input_length", "Tokens of a prompt.", "request_prompt_tokens"),
    _View("tgi_request_generated_tokens", "Tokens of an answer.", "request_generated_tokens"),
    _View("tgi_request_max_new_tokens", "Tokens that a request allows.", "request_max_new_tokens"),
    _View("tgi_batch_inference_duration", "One step of the engine, in seconds.", "engine_step_seconds"),
)


class TgiMetrics(Collector):
    """Collects our metrics under the names of TGI's router.

    Args:
        ours: our families by name, without `djl_`.
    """

    def __init__(self, ours: Mapping[str, MetricWrapperBase]) -> None:
        self._ours = ours

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance: no name here is one of ours."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All families of TGI's."""
        yield from self._requests()
        for view in _HISTOGRAMS:
            yield self._histogram(view)
        yield _family("tgi_batch_inference_count", "Steps of the engine.", self._counts("engine_step_seconds"))
        yield self._gauge("tgi_queue_size", "Requests that wait.", "queued_requests", "waiting_requests")
        yield self._gauge("tgi_batch_current_size", "Requests in the batch.", "running_requests")

    def _samples(self, name: str) -> Iterator[tuple[str, Sample]]:
        """(suffix after the family's name, sample) of one of our families, without answers that no model gave."""
        for family in self._ours[name].collect():
            for sample in family.samples:
                suffix = sample.name.removeprefix(family.name)
                if sample.labels.get("model") and suffix != "_created":
                    yield suffix, sample

    def _requests(self) -> Iterator[Metric]:
        """Counters of answers: all, successes, and failures by kind."""
        counts: defaultdict[tuple[str, str, str], float] = defaultdict(float)
        for _, sample in self._samples("requests"):
            model, version, status = (sample.labels[name] for name in ("model", "version", "code"))
            counts[model, version, _outcome(int(status))] += sample.value
        every, good, bad = (
            _family("tgi_request_count", "Requests answered."),
            *(
                _family(f"tgi_request_{name}", text)
                for name, text in (
                    ("success", "Requests answered well."),
                    ("failure", "Requests that failed, by kind."),
                )
            ),
        )
        totals: defaultdict[tuple[str, str], float] = defaultdict(float)
        for (model, version, outcome), value in counts.items():
            totals[model, version] += value
            labels = {"model": model, "version": version}
            if outcome:
                bad.add_sample(bad.name, {**labels, "err": outcome}, value)
            else:
                good.add_sample(good.name, labels, value)
        for (model, version), value in totals.items():
            every.add_sample(every.name, {"model": model, "version": version}, value)
        yield from (every, good, bad)

    def _histogram(self, view: _View) -> Metric:
        family = Metric(view.name, view.help, "histogram")
        for suffix, sample in self._samples(view.ours):
            family.add_sample(view.name + suffix, sample.labels, sample.value)
        return family

    def _counts(self, histogram: str) -> Iterator[Sample]:
        return (sample for suffix, sample in self._samples(histogram) if suffix == "_count")

    def _gauge(self, name: str, text: str, *ours: str) -> Metric:
        """A gauge that sums several gauges of ours over all workers of a model."""
        sums: defaultdict[tuple[str, str], float] = defaultdict(float)
        for part in ours:
            for _, sample in self._samples(part):
                sums[sample.labels["model"], sample.labels["version"]] += sample.value
        family = Metric(name, text, "gauge")
        for (model, version), value in sums.items():
            family.add_sample(name, {"model": model, "version": version}, value)
        return family


def _family(name: str, text: str, samples: Iterable[Sample] = ()) -> Metric:
    """A counter of TGI's, as an untyped family."""
    family = Metric(name, text, "unknown")
    for sample in samples:
        family.add_sample(name, sample.labels, sample.value)
    return family


def _outcome(status: int) -> str:
    """TGI's word for a failure; "" for success."""
    if status < 400:
        return ""
    return _FAILURES.get(status, "incomplete_generation" if status >= _SERVER_ERROR else "validation")
