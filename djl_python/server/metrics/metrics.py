"""The metrics of a server: those of its requests, API keys and tenants, those of its models, and the text at /metrics.

Runs in the front end.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from prometheus_client import Counter, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from .families import Families
from .model_metrics import ModelMetrics
from .specs import SPEC_BY_NAME

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
#: The label of tenants whose names no API key and no setting has.
OTHER_TENANTS: Final = "other"


class Metrics:
    """The metrics of one server, and those of its models.

    Attributes:
        families: what they are counted in.
    """

    def __init__(self) -> None:
        self.families = Families()
        self._answers: dict[tuple[str, str, str, int], tuple[Counter, Histogram]] = {}
        self._key_answers: dict[tuple[str, int], Counter] = {}
        self._keys: frozenset[str] = frozenset()

    def model(self, name: str, version: str) -> ModelMetrics:
        """The metrics of one model."""
        return ModelMetrics(self.families, name, version)

    def answered(self, model: str, version: str, dialect: str, code: int, duration_s: float) -> None:
        """Count an answered request, whatever the answer; a name is "" where it was not known yet."""
        key = (model, version, dialect, code)
        if key not in self._answers:  # `labels` takes longer than both counts together
            self._answers[key] = (
                self.families.counters["requests"].labels(model, version, dialect, str(code)),
                self.families.histograms["request_duration_seconds"].labels(model, version, dialect),
            )
        counter, histogram = self._answers[key]
        counter.inc()
        histogram.observe(duration_s)

    def key_answered(self, key: str, code: int) -> None:
        """Count an answered request of an API key, by its name."""
        counter = self._key_answers.get((key, code))
        if counter is None:
            counter = self._key_answers[key, code] = self.families.counters["key_requests"].labels(key, str(code))
        counter.inc()

    def key_used(self, key: str, prompt_tokens: int, generated_tokens: int) -> None:
        """Count the tokens of a request of an API key."""
        self.families.counters["key_tokens"].labels(key, "prompt").inc(prompt_tokens)
        self.families.counters["key_tokens"].labels(key, "generated").inc(generated_tokens)

    def rate_limited(self, tenant: str, limit: str) -> None:
        """Count a request that a limit of its tenant refused."""
        self.families.counters["rate_limited_requests"].labels(tenant, limit).inc()

    def tenant_in_flight(self, tenant: str, more: int) -> None:
        """Add to the tokens of a tenant's requests in flight."""
        self.families.gauges["tenant_tokens_in_flight"].labels(tenant).inc(more)

    def keep_keys(self, keys: Collection[str]) -> None:
        """Drop the metrics of removed API keys."""
        self._key_answers.clear()
        gone, self._keys = self._keys.difference(keys), frozenset(keys)
        for name in ("key_requests", "key_tokens", "rate_limited_requests"):
            family = self.families.counters[name]
            label_sets = {tuple(sample.labels.values()) for metric in family.collect() for sample in metric.samples}
            for labels in label_sets:
                if labels[0] in gone:
                    family.remove(*labels)

    def batch_answered(self, model: str, version: str, code: str) -> None:
        """Count an answered request of a batch; a name is "" where it was not known."""
        self.families.counters["batch_requests"].labels(model, version, code).inc()

    def forget(self, model: str, version: str) -> None:
        """Drop the metrics of a removed model: else names that come and go would accumulate."""
        for key, family in self.families.by_name.items():
            names = SPEC_BY_NAME[key].labels
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
        registry = self.families.registry
        return generate_latest(registry.restricted_registry(names) if names else registry)
