"""The metrics of the engine's steps, reported once per step, however many sequences it had.

Runs in the worker's event loop.
"""

from __future__ import annotations

from typing import Final

from djl_python.handler import Metrics
from djl_python.types import EngineStats

#: Counters, by their names in EngineStats, where they count since the engine started.
_COUNTS: Final = ("preemptions", "draft_tokens", "accepted_draft_tokens")


class StepMetrics:
    """Collects the metrics of a step's events, and reports them with the engine's own."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._counted = dict.fromkeys(_COUNTS, 0)
        self._tokens = 0
        self._gaps_s: list[float] = []

    def token(self, gap_s: float | None) -> None:
        """Count a token of a sequence.

        Args:
            gap_s: seconds since the sequence's previous token; None for its first.
        """
        self._tokens += 1
        if gap_s is not None:
            self._gaps_s.append(gap_s)

    def report(self, stats: EngineStats) -> None:
        """Report a step, after all of its events have been handled."""
        metrics = self._metrics
        if self._tokens:
            metrics.count("generated_tokens", self._tokens)
            metrics.observe("inter_token_latency_seconds", *self._gaps_s)
            self._tokens, self._gaps_s = 0, []
        metrics.gauge("running_requests", stats.running)
        metrics.gauge("waiting_requests", stats.waiting)
        # From these two the front end computes kv_cache_usage_ratio, for any engine.
        metrics.gauge("kv_cache_blocks_used", stats.kv_blocks_used)
        metrics.gauge("kv_cache_blocks_total", stats.kv_blocks_total)
        if stats.step_s:
            metrics.observe("engine_step_seconds", stats.step_s)
            metrics.observe("batch_size", stats.step_sequences)
        for name, counted in self._counted.items():
            if (count := getattr(stats, name)) > counted:
                metrics.count(name, count - counted)
                self._counted[name] = count
