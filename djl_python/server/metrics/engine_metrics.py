"""The metrics that engines keep themselves, as vLLM does, at /metrics beside ours and under their own names.

Runs in the front end. Workers send what there is every few seconds; the newest of each is shown. Each sample gets
`model`, `version` and `worker`, so that replicas can be told apart and added up; a label `model_name` is the model's
name here, as dashboards for vLLM expect.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client.metrics_core import METRIC_TYPES, Metric
from prometheus_client.registry import Collector

from ...core.metrics import MetricFamily

_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_Key = tuple[str, str, str]


class EngineMetricsCollector(Collector):
    """Collects the engines' latest metrics.

    Args:
        prefix: reserved for the names of the server's own metrics.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._reported: dict[_Key, list[MetricFamily]] = {}

    def replace(self, model: str, version: str, worker: str, families: Sequence[MetricFamily]) -> list[str]:
        """Replace the metrics of a worker's engine; returns the names that can't be shown."""
        shown = [family for family in families if self._shows(family)]
        self._reported[model, version, worker] = shown
        return [family.name for family in families if family not in shown]

    def forget(self, model: str, version: str, worker: str) -> None:
        """Drop the engine's metrics of a worker that has ended."""
        self._reported.pop((model, version, worker), None)

    def describe(self) -> Iterator[Metric]:
        """Nothing: names come with the engines."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """The families, each with the samples of all engines that have it."""
        by_name: dict[str, Metric] = {}
        for (model, version, worker), families in self._reported.items():
            labels = {"model": model, "version": version, "worker": worker}
            for family in families:
                metric = by_name.setdefault(family.name, Metric(family.name, family.help, family.kind))
                for sample in family.samples:
                    named = {"model_name": model} if "model_name" in sample.labels else {}
                    metric.add_sample(sample.name, {**sample.labels, **named, **labels}, sample.value)
        yield from by_name.values()

    def _shows(self, family: MetricFamily) -> bool:
        names = (family.name, *(sample.name for sample in family.samples))
        ours = family.name.startswith(self._prefix)
        return not ours and family.kind in METRIC_TYPES and all(map(_NAME.fullmatch, names))
