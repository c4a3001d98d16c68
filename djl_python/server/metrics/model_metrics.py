"""The metrics of one model: what the front end counts of it, and what its workers report.

Runs in the front end. Gauges of a worker carry the worker's name, so that replicas can be added up, and are dropped
when it ends.
"""

from __future__ import annotations

import collections
import math
from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from ...core.engine_info import EngineInfo
from ...ipc.protocol import EngineMetrics, Report
from .families import Families
from .specs import ENGINE_LABELS, SPEC_BY_NAME, MetricKind

#: Counters that a model has from the start: dashboards need the zero before the first event.
_AT_ONCE: Final = (
    "prompt_tokens",
    "cached_prompt_tokens",
    "generated_tokens",
    "preemptions",
    "draft_tokens",
    "accepted_draft_tokens",
)


class ModelMetrics:
    """The metrics of one model; the pool, the replicas and the workers' reports write to them."""

    def __init__(self, families: Families, name: str, version: str) -> None:
        self._families = families
        self._labels = (name, version)
        self.queued = families.gauges["queued_requests"].labels(*self._labels)
        self.in_flight = families.gauges["in_flight_requests"].labels(*self._labels)
        self.batch_in_flight = families.gauges["batch_in_flight_requests"].labels(*self._labels)
        self.restarts = families.counters["worker_restarts"].labels(*self._labels)
        self._reruns = families.counters["rerun_requests"].labels(*self._labels)
        self.queue_seconds = families.histograms["queue_seconds"].labels(*self._labels, "server")
        self._counters = {name: families.counters[name].labels(*self._labels) for name in _AT_ONCE}
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
        self._families.counters["aborted_requests"].labels(*self._labels, reason).inc()

    def routed(self, outcome: str) -> None:
        """Count a request whose worker was chosen among several: hit, miss or busy."""
        if outcome not in self._routed:
            self._routed[outcome] = self._families.counters["routed_requests"].labels(*self._labels, outcome)
        self._routed[outcome].inc()

    def loaded(self, loaded: bool) -> None:
        """Record whether the model has workers, or is unloaded."""
        self._families.gauges["model_loaded"].labels(*self._labels).set(int(loaded))

    def load_ended(self, outcome: str) -> None:
        """Count a load of an unloaded model: loaded, or failed."""
        self._families.counters["model_loads"].labels(*self._labels, outcome).inc()

    def unloaded(self, reason: str) -> None:
        """Count an unloading: idle, memory or request."""
        self._families.counters["model_unloads"].labels(*self._labels, reason).inc()

    def workers(self, state: str, more: int) -> None:
        """Add to the number of workers in a state. While a model is reloaded, those of both its instances count."""
        self._families.gauges["workers"].labels(*self._labels, state).inc(more)

    def apply(self, worker: str, report: Report | EngineMetrics) -> None:
        """Apply a worker's report or its engine's metrics; numbers that a metric can't have are dropped."""
        if isinstance(report, EngineMetrics):
            self._apply_engine_metrics(worker, report)
        else:
            self._apply(worker, report)

    def _apply_engine_metrics(self, worker: str, metrics: EngineMetrics) -> None:
        for name in self._families.engines.replace(*self._labels, worker, metrics.families):
            self._families.warn(name, "is none that an engine may have")

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
                self._families.warn(name, f"grows by {amount}, which no counter can")
            elif (counter := self._counter(name)) is not None:
                counter.inc(amount)
        for name, values in report.observations.items():
            if (histogram := self._histogram(name)) is None:
                continue
            for value in values:
                if math.isfinite(value):
                    histogram.observe(value)
                else:
                    self._families.warn(name, f"has the observation {value}")

    def rerun(self, calls: int) -> None:
        """Count calls that go to another worker because theirs is lost."""
        self._reruns.inc(calls)

    def worker_came(self, worker: str, engine: EngineInfo | None = None, node: str = "") -> None:
        """Record a new worker, its engine and its node, "" where that is this machine; no other worker has its name
        meanwhile.
        """
        if node:
            self._nodes[worker] = (*self._labels, worker, node)
            self._families.gauges["worker_node"].labels(*self._nodes[worker]).set(1)
        if engine is not None:
            engine_labels = (getattr(engine, name) for name in ENGINE_LABELS)
            labels = (*self._labels, worker, *engine_labels, "yes" if engine.refusal else "no")
            self._engines[worker] = labels
            self._families.gauges["engine_info"].labels(*labels).set(1)

    def worker_went(self, worker: str) -> None:
        """Record the end of a worker, and drop its gauges and its engine's metrics."""
        self._families.engines.forget(*self._labels, worker)
        if (labels := self._engines.pop(worker, None)) is not None:
            self._families.gauges["engine_info"].remove(*labels)
        if (labels := self._nodes.pop(worker, None)) is not None:
            self._families.gauges["worker_node"].remove(*labels)
        for name in self._gauges.pop(worker, ()):
            self._families.gauges[name].remove(*self._labels, worker)

    def _gauge(self, name: str, worker: str) -> Gauge | None:
        """A gauge of one of this model's workers that workers may report."""
        gauges = self._gauges[worker]
        if name not in gauges and self._reported(name, MetricKind.GAUGE):
            gauges[name] = self._families.gauges[name].labels(*self._labels, worker)
        return gauges.get(name)

    def _counter(self, name: str) -> Counter | None:
        """A counter of this model's that workers may report."""
        if name not in self._counters and self._reported(name, MetricKind.COUNTER):
            self._counters[name] = self._families.counters[name].labels(*self._report_labels(name))
        return self._counters.get(name)

    def _histogram(self, name: str) -> Histogram | None:
        """A histogram of this model's that workers may report."""
        if name not in self._histograms and self._reported(name, MetricKind.HISTOGRAM):
            self._histograms[name] = self._families.histograms[name].labels(*self._report_labels(name))
        return self._histograms.get(name)

    def _reported(self, name: str, kind: MetricKind) -> bool:
        spec = SPEC_BY_NAME.get(name)
        if spec is None or spec.kind is not kind or not spec.reported:
            self._families.warn(name, "is not in the table")
            return False
        return True

    def _report_labels(self, name: str) -> tuple[str, ...]:
        label = SPEC_BY_NAME[name].report_label
        return (*self._labels, label) if label else self._labels
