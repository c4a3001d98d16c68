"""The Prometheus families of a server's metrics, made from the table; what counts writes to them.

Runs in the front end.
"""

from __future__ import annotations

import logging

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from .engine_metrics import EngineMetricsCollector
from .specs import PREFIX, SPECS, MetricKind
from .tgi_metrics import TgiMetrics

log = logging.getLogger(__name__)


class Families:
    """Every metric family of one server, in a registry of its own.

    Attributes:
        counters, gauges, histograms: by their names in the table.
        engines: the metrics that engines keep themselves.
    """

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
        self.registry.register(TgiMetrics(self.by_name))
        self.engines = EngineMetricsCollector(PREFIX)
        self.registry.register(self.engines)
        self._warned: set[str] = set()

    @property
    def by_name(self) -> dict[str, Counter | Gauge | Histogram]:
        """All of them, by their names in the table."""
        return {**self.counters, **self.gauges, **self.histograms}

    def warn(self, name: str, problem: str) -> None:
        """Log once per metric why something that a worker reports of it is ignored."""
        if name not in self._warned:
            self._warned.add(name)
            log.warning("a worker's metric %r %s: ignored", name, problem)
