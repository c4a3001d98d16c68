"""Metrics of another program, on their way to /metrics. Runs in every process; depends on msgspec alone."""

from __future__ import annotations

import msgspec


class MetricSample(msgspec.Struct, frozen=True, array_like=True):
    """A number of a family: its whole name, as in Prometheus' text format (`..._bucket`), and its labels."""

    name: str
    labels: dict[str, str]
    value: float


class MetricFamily(msgspec.Struct, frozen=True, array_like=True):
    """A metric of Prometheus' data model. `kind` is its type: counter, gauge, histogram, summary, info or unknown."""

    name: str
    kind: str
    help: str
    samples: list[MetricSample]
