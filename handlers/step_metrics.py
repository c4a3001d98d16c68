"""What the engine's steps add to the metrics: said once a step, however many sequences it had.

Runs in the worker's event loop.
"""

from __future__ import annotations

from djl_python.handler import Metrics
from djl_python.types import EngineStats


class StepMetrics:
    """Collects what a step's events count, and reports it with the engine's own numbers."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._preemptions = 0
        self._tokens = 0
        self._gaps_s: list[float] = []

    def token(self, gap_s: float | None) -> None:
        """A sequence has one more.

        Args:
            gap_s: since its one before; None for its first.
        """
        self._tokens += 1
        if gap_s is not None:
            self._gaps_s.append(gap_s)

    def report(self, stats: EngineStats) -> None:
        """The step is done: all of its events have been handled."""
        metrics = self._metrics
        if self._tokens:
            metrics.count("generated_tokens", self._tokens)
            metrics.observe("inter_token_latency_seconds", *self._gaps_s)
            self._tokens, self._gaps_s = 0, []
        metrics.gauge("running_requests", stats.running)
        metrics.gauge("waiting_requests", stats.waiting)
        # Of these two the front end makes kv_cache_usage_ratio, whosever engine they are of.
        metrics.gauge("kv_cache_blocks_used", stats.kv_blocks_used)
        metrics.gauge("kv_cache_blocks_total", stats.kv_blocks_total)
        if stats.step_s:
            metrics.observe("engine_step_seconds", stats.step_s)
            metrics.observe("batch_size", stats.running)
        if stats.preemptions > self._preemptions:
            metrics.count("preemptions", stats.preemptions - self._preemptions)
            self._preemptions = stats.preemptions
