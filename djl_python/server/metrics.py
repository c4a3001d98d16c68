"""The server's metrics, and their text at /metrics.

Runs in the front end. `SPECS` is the complete list: a metric that is not there does not exist. The front end counts
what it sees itself (requests, queue, workers); the rest arrives in the workers' `Report` messages under the same
names without `djl_`. Gauges of a worker carry the worker's name, so that replicas can be added up, and are dropped
when it dies. Metrics of batches (`batches`, `batch_bytes` ...) are computed while /metrics is answered.
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
#: The label of tenants whose names no API key and no setting has.
OTHER_TENANTS: Final = "other"

_MODEL: Final = ("model", "version")
_WORKER: Final = (*_MODEL, "worker")
#: Fields of `EngineInfo` that distinguish engines; the labels of `engine_info`.
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
    Spec("key_requests", _C, "Requests of each API key, by HTTP status.", ("key", "code"), reported=False),
    Spec("key_tokens", _C, "Tokens of each API key's requests: prompt, generated.", ("key", "kind"), reported=False),
    Spec(
        "rate_limited_requests",
        _C,
        "Requests that a limit of their tenant refused, by the limit (tenant: API keys' names and those that settings "
        "name; all others are other).",
        ("tenant", "limit"),
        reported=False,
    ),
    Spec(
        "tenant_tokens_in_flight",
        _G,
        "Tokens of requests in flight of tenants whose tokens are limited; requests count as many as are expected.",
        ("tenant",),
        reported=False,
    ),
    _server("queued_requests", _G, "Requests waiting in the front end for a worker."),
    _server("in_flight_requests", _G, "Requests that are with a worker."),
    _server(
        "routed_requests",
        _C,
        "Requests that went to the worker that knows most of their prompt (hit), to another since that one was busy "
        "(busy), or whose prompt no worker knows (miss).",
        "outcome",
    ),
    _server("workers", _G, "Worker processes, by state.", "state"),
    _server("model_loaded", _G, "1 while the model has workers; 0 while it is unloaded until a request names it."),
    _server("model_loads", _C, "Loads of unloaded models, by outcome: loaded, failed.", "outcome"),
    _server("model_unloads", _C, "Unloadings of the model, by reason: idle, memory, request.", "reason"),
    _server("worker_restarts", _C, "Workers started again after one ended by itself."),
    _server("worker_node", _G, "The node that a worker on another machine runs on; always 1.", "worker", "node"),
    _server("rerun_requests", _C, "Requests sent to another worker because their worker's node was lost."),
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
    Spec("cached_prompt_tokens", _C, "Of these, tokens that the engine found in its prefix cache."),
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
#: Counters that a model has from the start: dashboards need the zero before the first event.
_AT_ONCE: Final = (
    "prompt_tokens",
    "cached_prompt_tokens",
    "generated_tokens",
    "preemptions",
    "draft_tokens",
    "accepted_draft_tokens",
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
        self._key_answers: dict[tuple[str, int], Counter] = {}
        self._keys: frozenset[str] = frozenset()
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

    def key_answered(self, key: str, code: int) -> None:
        """Count an answered request of an API key, by its name."""
        counter = self._key_answers.get((key, code))
        if counter is None:
            counter = self._key_answers[key, code] = self.counters["key_requests"].labels(key, str(code))
        counter.inc()

    def key_used(self, key: str, prompt_tokens: int, generated_tokens: int) -> None:
        """Count the tokens of a request of an API key."""
        self.counters["key_tokens"].labels(key, "prompt").inc(prompt_tokens)
        self.counters["key_tokens"].labels(key, "generated").inc(generated_tokens)

    def rate_limited(self, tenant: str, limit: str) -> None:
        """Count a request that a limit of its tenant refused."""
        self.counters["rate_limited_requests"].labels(tenant, limit).inc()

    def tenant_in_flight(self, tenant: str, more: float) -> None:
        """Add to the tokens of a tenant's requests in flight."""
        self.gauges["tenant_tokens_in_flight"].labels(tenant).inc(more)

    def keep_keys(self, keys: Collection[str]) -> None:
        """Drop the metrics of removed API keys."""
        self._key_answers.clear()
        gone, self._keys = self._keys.difference(keys), frozenset(keys)
        for name in ("key_requests", "key_tokens", "rate_limited_requests"):
            family = self.counters[name]
            label_sets = {tuple(sample.labels.values()) for metric in family.collect() for sample in metric.samples}
            for labels in label_sets:
                if labels[0] in gone:
                    family.remove(*labels)

    def batch_answered(self, model: str, version: str, code: str) -> None:
        """Count an answered request of a batch; a name is "" where it was not known."""
        self.counters["batch_requests"].labels(model, version, code).inc()

    def forget(self, model: str, version: str) -> None:
        """Drop the metrics of a removed model: else names that come and go would accumulate."""
        families: dict[str, Counter | Gauge | Histogram] = {**self.counters, **self.gauges, **self.histograms}
        for key, family in families.items():
            names = _BY_NAME[key].labels
            if "model" not in names:
                continue
            label_sets = {
                tuple(sample.labels[name] for name in names)
                for metric in family.collect()
                for sample in metric.samples
                if (sample.labels["model"], sample.labels["version"]) == (model, version)
            }
            for labels in label_sets:
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
    """The metrics of one model; the pool, the replicas and the workers' reports write to them."""

    def __init__(self, metrics: Metrics, name: str, version: str) -> None:
        self._metrics = metrics
        self._labels = (name, version)
        self.queued = metrics.gauges["queued_requests"].labels(*self._labels)
        self.in_flight = metrics.gauges["in_flight_requests"].labels(*self._labels)
        self.batch_in_flight = metrics.gauges["batch_in_flight_requests"].labels(*self._labels)
        self.restarts = metrics.counters["worker_restarts"].labels(*self._labels)
        self._reruns = metrics.counters["rerun_requests"].labels(*self._labels)
        self.queue_seconds = metrics.histograms["queue_seconds"].labels(*self._labels, "server")
        self._counters = {name: metrics.counters[name].labels(*self._labels) for name in _AT_ONCE}
        self._routed: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        # By worker, then by name: `labels` takes longer than `set`.
        self._gauges: collections.defaultdict[str, dict[str, Gauge]] = collections.defaultdict(dict)
        self._engines: dict[str, tuple[str, ...]] = {}  # labels of `engine_info`, by worker
        self._nodes: dict[str, tuple[str, ...]] = {}  # labels of `worker_node`, by worker

    def aborted(self, reason: str) -> None:
        """Count a request that ended early: disconnect, timeout, queue_timeout, worker_died, slow_reader or
        shutdown.
        """
        self._metrics.counters["aborted_requests"].labels(*self._labels, reason).inc()

    def routed(self, outcome: str) -> None:
        """Count a request whose worker was chosen among several: hit, miss or busy."""
        if outcome not in self._routed:
            self._routed[outcome] = self._metrics.counters["routed_requests"].labels(*self._labels, outcome)
        self._routed[outcome].inc()

    def loaded(self, loaded: bool) -> None:
        """Record whether the model has workers, or is unloaded."""
        self._metrics.gauges["model_loaded"].labels(*self._labels).set(int(loaded))

    def load_ended(self, outcome: str) -> None:
        """Count a load of an unloaded model: loaded, or failed."""
        self._metrics.counters["model_loads"].labels(*self._labels, outcome).inc()

    def unloaded(self, reason: str) -> None:
        """Count an unloading: idle, memory or request."""
        self._metrics.counters["model_unloads"].labels(*self._labels, reason).inc()

    def workers(self, state: str, more: int) -> None:
        """Add to the number of workers in a state. While a model is reloaded, those of both its instances count."""
        self._metrics.gauges["workers"].labels(*self._labels, state).inc(more)

    def apply(self, worker: str, report: Report | EngineMetrics) -> None:
        """Apply a worker's report or its engine's metrics; numbers that a metric can't have are dropped."""
        if isinstance(report, EngineMetrics):
            self._apply_engine_metrics(worker, report)
        else:
            self._apply(worker, report)

    def _apply_engine_metrics(self, worker: str, metrics: EngineMetrics) -> None:
        for name in self._metrics.engines.replace(*self._labels, worker, metrics.families):
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

    def rerun(self, calls: int) -> None:
        """Count calls that go to another worker because theirs is lost."""
        self._reruns.inc(calls)

    def worker_came(self, worker: str, engine: EngineInfo | None = None, node: str = "") -> None:
        """Record a new worker, its engine and its node, "" where that is this machine; no other worker has its name
        meanwhile.
        """
        if node:
            self._nodes[worker] = (*self._labels, worker, node)
            self._metrics.gauges["worker_node"].labels(*self._nodes[worker]).set(1)
        if engine is not None:
            engine_labels = (getattr(engine, name) for name in ENGINE_LABELS)
            labels = (*self._labels, worker, *engine_labels, "yes" if engine.refusal else "no")
            self._engines[worker] = labels
            self._metrics.gauges["engine_info"].labels(*labels).set(1)

    def worker_went(self, worker: str) -> None:
        """Record the end of a worker, and drop its gauges and its engine's metrics."""
        self._metrics.engines.forget(*self._labels, worker)
        if (labels := self._engines.pop(worker, None)) is not None:
            self._metrics.gauges["engine_info"].remove(*labels)
        if (labels := self._nodes.pop(worker, None)) is not None:
            self._metrics.gauges["worker_node"].remove(*labels)
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
