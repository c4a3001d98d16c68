"""The server's metrics, and their text at /metrics.

Runs in the front end. `SPECS` is the complete list: a metric that is not there does not exist. The front end counts
what it sees itself (requests, queue, workers); the rest arrives in the workers' `Report` messages under the same
names without `djl_`. Gauges of a worker carry the worker's name, so that replicas can be added up, and are dropped
when it dies. What is told of batches (`batches`, `batch_bytes` ...) is looked up while /metrics is answered.
"""

from __future__ import annotations

import collections
import enum
import logging
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from ..core.engine_info import EngineInfo
from ..ipc.protocol import EngineMetrics, Report
from .engine_metrics import EngineMetricsCollector
from .tgi_metrics import TgiMetrics

log = logging.getLogger(__name__)

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
PREFIX: Final = "djl_"

_MODEL: Final = ("model", "version")
_WORKER: Final = (*_MODEL, "worker")
#: Of `EngineInfo`, what tells engines apart; labels of `engine_info`.
ENGINE_LABELS: Final = ("runner", "dtype", "quantize", "device")
_REQUEST_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_FIRST_TOKEN_S: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_STEP_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 5)
_QUEUE_S: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60)
_TOKENS: Final = (1, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 131072)
_BATCH: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class MetricKind(enum.Enum):
    """Prometheus' metric types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Spec:
    """One metric. `name` is without the prefix, and without `_total` for counters, as in `Report`.

    `reported`: whether workers may report it. `report_label`: value of the last label for what they report, if any.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = _MODEL
    buckets: tuple[float, ...] = ()
    reported: bool = True
    report_label: str = ""

    @property
    def full_name(self) -> str:
        """The name in /metrics."""
        return f"{PREFIX}{self.name}{'_total' if self.kind is MetricKind.COUNTER else ''}"


def _server(name: str, kind: MetricKind, text: str, *labels: str, buckets: tuple[float, ...] = ()) -> Spec:
    """A metric that only the front end sets."""
    return Spec(name, kind, text, (*_MODEL, *labels), buckets, reported=False)


def _batches(name: str, text: str, *labels: str) -> Spec:
    """A gauge of the server's batches, which belong to no model."""
    return Spec(name, MetricKind.GAUGE, text, labels, reported=False)


def _worker(name: str, text: str) -> Spec:
    """A gauge of one worker."""
    return Spec(name, MetricKind.GAUGE, text, _WORKER)


_C, _G, _H = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM

SPECS: Final = (
    _server("requests", _C, "Requests answered, by HTTP status.", "dialect", "code"),
    _server(
        "request_duration_seconds", _H, "From a request's last byte to its answer's.", "dialect", buckets=_REQUEST_S
    ),
    _server("queued_requests", _G, "Requests waiting in the front end for a worker."),
    _server("in_flight_requests", _G, "Requests that are with a worker."),
    _server("workers", _G, "Worker processes, by state.", "state"),
    _server("worker_restarts", _C, "Workers started again after one ended by itself."),
    Spec(
        "engine_info",
        _G,
        "What runs the model, in labels (refused: whether native kernels could and do not); always 1.",
        (*_WORKER, *ENGINE_LABELS, "refused"),
        reported=False,
    ),
    _worker("running_requests", "Requests in the batch."),
    _worker("waiting_requests", "Requests waiting in a worker for a place in the batch."),
    _worker("kv_cache_blocks_used", "Blocks of the KV cache in use."),
    _worker("kv_cache_blocks_total", "Blocks of the KV cache."),
    _worker("kv_cache_usage_ratio", "Share of the KV cache in use, 0 to 1."),
    Spec("time_to_first_token_seconds", _H, "From arrival in the worker to the first token.", buckets=_FIRST_TOKEN_S),
    Spec("inter_token_latency_seconds", _H, "Between two tokens of one request.", buckets=_STEP_S),
    Spec(
        "queue_seconds",
        _H,
        "Waiting: for a worker (stage server), then for a place in its batch (stage worker).",
        (*_MODEL, "stage"),
        _QUEUE_S,
        report_label="worker",
    ),
    Spec("request_queue_seconds", _H, "A sequence's whole waiting, in both stages.", buckets=_QUEUE_S),
    Spec("request_validation_seconds", _H, "Parsing and tokenizing a request.", buckets=_QUEUE_S),
    Spec("request_inference_seconds", _H, "From a sequence's first step to its last token.", buckets=_REQUEST_S),
    Spec("request_time_per_token_seconds", _H, "A sequence's inference time, divided by its tokens.", buckets=_STEP_S),
    Spec("request_prompt_tokens", _H, "Tokens of a prompt.", buckets=_TOKENS),
    Spec("request_generated_tokens", _H, "Tokens generated for a sequence.", buckets=_TOKENS),
    Spec("request_max_new_tokens", _H, "Tokens that a sequence might have had.", buckets=_TOKENS),
    Spec("engine_step_seconds", _H, "One step of the engine.", buckets=_STEP_S),
    Spec("batch_size", _H, "Sequences in one step, or requests in one dynamic batch.", buckets=_BATCH),
    Spec("prompt_tokens", _C, "Tokens of prompts."),
    Spec("generated_tokens", _C, "Tokens generated."),
    Spec("preemptions", _C, "Sequences sent back to wait because the KV cache was full."),
    Spec("draft_tokens", _C, "Draft tokens that the model verified (speculative decoding)."),
    Spec("accepted_draft_tokens", _C, "Draft tokens that became part of the text."),
    Spec(
        "aborted_requests",
        _C,
        "Requests that ended before their answer was complete.",
        (*_MODEL, "reason"),
        report_label="engine_failed",
    ),
    _server("batch_requests", _C, "Requests of batches (/v1/batches) that were answered, by status.", "code"),
    _server("batch_in_flight_requests", _G, "Requests of batches that are with a worker."),
    _batches("batches", "Batches that are kept, by status.", "status"),
    _batches("batch_oldest_seconds", "Age of the oldest batch that has not ended; 0: all have."),
    _batches("batch_bytes_used", "Bytes of the files that are kept, and of those that arrive."),
    _batches("batch_bytes_limit", "Bytes of files at which no further one is taken (batch_max_bytes)."),
)
_BY_NAME: Final = {spec.name: spec for spec in SPECS}


class Metrics:
    """Every metric of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.counters: dict[str, Counter] = {}
        self.gauges: dict[str, Gauge] = {}
        self.histograms: dict[str, Histogram] = {}
        for spec in SPECS:
            name = PREFIX + spec.name
            match spec.kind:
                case MetricKind.COUNTER:
                    self.counters[spec.name] = Counter(name, spec.help, spec.labels, registry=self.registry)
                case MetricKind.GAUGE:
                    self.gauges[spec.name] = Gauge(name, spec.help, spec.labels, registry=self.registry)
                case MetricKind.HISTOGRAM:
                    self.histograms[spec.name] = Histogram(
                        name, spec.help, spec.labels, registry=self.registry, buckets=spec.buckets
                    )
        self.registry.register(TgiMetrics({**self.counters, **self.gauges, **self.histograms}))
        self.engines = EngineMetricsCollector(PREFIX)
        self.registry.register(self.engines)
        self._answers: dict[tuple[str, str, str, int], tuple[Counter, Histogram]] = {}
        self._warned: set[str] = set()

    def model(self, name: str, version: str) -> ModelMetrics:
        """The metrics of one model."""
        return ModelMetrics(self, name, version)

    def answered(self, model: str, version: str, dialect: str, code: int, duration_s: float) -> None:
        """Count an answered request, whatever the answer; a name is "" where it was not known yet."""
        key = (model, version, dialect, code)
        if key not in self._answers:  # `labels` takes longer than both counts together
            self._answers[key] = (
                self.counters["requests"].labels(model, version, dialect, str(code)),
                self.histograms["request_duration_seconds"].labels(model, version, dialect),
            )
        counter, histogram = self._answers[key]
        counter.inc()
        histogram.observe(duration_s)

    def batch_answered(self, model: str, version: str, code: str) -> None:
        """Count an answered request of a batch; a name is "" where it was not known."""
        self.counters["batch_requests"].labels(model, version, code).inc()

    def forget(self, model: str, version: str) -> None:
        """Drop what there is of a model that is gone: else names that come and go would stay for ever."""
        families: dict[str, Counter | Gauge | Histogram] = {**self.counters, **self.gauges, **self.histograms}
        for key, family in families.items():
            names = _BY_NAME[key].labels
            if "model" not in names:
                continue
            found = {
                tuple(sample.labels[name] for name in names)
                for metric in family.collect()
                for sample in metric.samples
                if (sample.labels["model"], sample.labels["version"]) == (model, version)
            }
            for labels in found:
                family.remove(*labels)
        self._answers = {key: made for key, made in self._answers.items() if key[:2] != (model, version)}

    def render(self, names: Collection[str] = ()) -> bytes:
        """The body of /metrics; its type is `CONTENT_TYPE`. `names`: of the samples to show; none: all."""
        return generate_latest(self.registry.restricted_registry(names) if names else self.registry)

    def warn(self, name: str, problem: str) -> None:
        """Log once per metric why something that a worker reports of it is ignored."""
        if name not in self._warned:
            self._warned.add(name)
            log.warning("a worker's metric %r %s: ignored", name, problem)


class ModelMetrics:
    """The metrics of one model: what the pool, the replicas and the workers' reports write to."""

    def __init__(self, metrics: Metrics, name: str, version: str) -> None:
        self._metrics = metrics
        self._labels = (name, version)
        self.queued = metrics.gauges["queued_requests"].labels(*self._labels)
        self.in_flight = metrics.gauges["in_flight_requests"].labels(*self._labels)
        self.batch_in_flight = metrics.gauges["batch_in_flight_requests"].labels(*self._labels)
        self.restarts = metrics.counters["worker_restarts"].labels(*self._labels)
        self.queue_seconds = metrics.histograms["queue_seconds"].labels(*self._labels, "server")
        # Made now: dashboards need the zero before the first event.
        self._counters = {
            name: metrics.counters[name].labels(*self._labels)
            for name in ("prompt_tokens", "generated_tokens", "preemptions", "draft_tokens", "accepted_draft_tokens")
        }
        self._histograms: dict[str, Histogram] = {}
        # By worker, then by name: `labels` takes longer than `set`.
        self._gauges: collections.defaultdict[str, dict[str, Gauge]] = collections.defaultdict(dict)
        self._engines: dict[str, tuple[str, ...]] = {}  # labels of `engine_info`, by worker

    def aborted(self, reason: str) -> None:
        """Count a request that ended early: disconnect, timeout, worker_died, slow_reader or shutdown."""
        self._metrics.counters["aborted_requests"].labels(*self._labels, reason).inc()

    def workers(self, state: str, more: int) -> None:
        """Add to the number of workers in a state. While a model is reloaded, those of both its instances count."""
        self._metrics.gauges["workers"].labels(*self._labels, state).inc(more)

    def apply(self, worker: str, report: Report | EngineMetrics) -> None:
        """Apply what a worker reports, except for numbers that a metric can't have, or what its engine tells."""
        if isinstance(report, EngineMetrics):
            self._engine_told(worker, report)
        else:
            self._apply(worker, report)

    def _engine_told(self, worker: str, told: EngineMetrics) -> None:
        for name in self._metrics.engines.tell(*self._labels, worker, told.families):
            self._metrics.warn(name, "is none that an engine may have")

    def _apply(self, worker: str, report: Report) -> None:
        gauges = report.gauges
        used, total = gauges.get("kv_cache_blocks_used"), gauges.get("kv_cache_blocks_total")
        if used is not None and total:
            gauges = gauges | {"kv_cache_usage_ratio": used / total}
        for name, value in gauges.items():
            if (gauge := self._gauge(name, worker)) is not None:
                gauge.set(value)
        for name, amount in report.counts.items():
            if not 0 <= amount < math.inf:
                self._metrics.warn(name, f"grows by {amount}, which no counter can")
            elif (counter := self._counter(name)) is not None:
                counter.inc(amount)
        for name, values in report.observations.items():
            if (histogram := self._histogram(name)) is None:
                continue
            for value in values:
                if math.isfinite(value):
                    histogram.observe(value)
                else:
                    self._metrics.warn(name, f"has the observation {value}")

    def worker_came(self, worker: str, engine: EngineInfo | None = None) -> None:
        """Record a new worker, and what runs its model; no other has its name meanwhile."""
        if engine is not None:
            found = (getattr(engine, name) for name in ENGINE_LABELS)
            labels = (*self._labels, worker, *found, "yes" if engine.refusal else "no")
            self._engines[worker] = labels
            self._metrics.gauges["engine_info"].labels(*labels).set(1)

    def worker_went(self, worker: str) -> None:
        """Record that a worker that came has ended, and drop its gauges and what its engine told."""
        self._metrics.engines.forget(*self._labels, worker)
        if (labels := self._engines.pop(worker, None)) is not None:
            self._metrics.gauges["engine_info"].remove(*labels)
        for name in self._gauges.pop(worker, ()):
            self._metrics.gauges[name].remove(*self._labels, worker)

    def _gauge(self, name: str, worker: str) -> Gauge | None:
        """A gauge of one of this model's workers that workers may report."""
        gauges = self._gauges[worker]
        if name not in gauges and self._reported(name, MetricKind.GAUGE):
            gauges[name] = self._metrics.gauges[name].labels(*self._labels, worker)
        return gauges.get(name)

    def _counter(self, name: str) -> Counter | None:
        """A counter of this model's that workers may report."""
        if name not in self._counters and self._reported(name, MetricKind.COUNTER):
            self._counters[name] = self._metrics.counters[name].labels(*self._report_labels(name))
        return self._counters.get(name)

    def _histogram(self, name: str) -> Histogram | None:
        """A histogram of this model's that workers may report."""
        if name not in self._histograms and self._reported(name, MetricKind.HISTOGRAM):
            self._histograms[name] = self._metrics.histograms[name].labels(*self._report_labels(name))
        return self._histograms.get(name)

    def _reported(self, name: str, kind: MetricKind) -> bool:
        spec = _BY_NAME.get(name)
        if spec is None or spec.kind is not kind or not spec.reported:
            self._metrics.warn(name, "is not in the table")
            return False
        return True

    def _report_labels(self, name: str) -> tuple[str, ...]:
        label = _BY_NAME[name].report_label
        return (*self._labels, label) if label else self._labels
