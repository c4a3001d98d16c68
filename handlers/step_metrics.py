"""The metrics of the engine's steps, gathered over several steps and all their sequences.

Runs in the worker's event loop.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from djl_python.core.engine_info import EngineStats
from djl_python.handler import Metrics

#: Counters, by their names in EngineStats, where they count since the engine started.
_COUNTS: Final = ("preemptions", "draft_tokens", "accepted_draft_tokens")
#: Seconds between two reports while sequences run and none ends. One for each step would be a sixth of what a
#: step of one sequence costs the worker.
REPORT_EVERY_S: Final = 0.1


class StepMetrics:
    """Gathers the metrics of steps and of their events, and reports them after a step.

    A step is followed by a report if it leaves nothing to do, if a sequence ends in it (its client may look at the
    metrics), or if it comes `REPORT_EVERY_S` after the last report.

    Args:
        clock: gives the time in seconds.
    """

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.perf_counter) -> None:
        self._metrics = metrics
        self._clock = clock
        self._due_s = -math.inf
        self._counted = dict.fromkeys(_COUNTS, 0)
        self._stats = EngineStats()
        self._clear()

    def token(self, gap_s: float | None) -> None:
        """Count a token of a sequence.

        Args:
            gap_s: seconds since the sequence's previous token; None for its first.
        """
        self._tokens += 1
        if gap_s is not None:
            self._gaps_s.append(gap_s)

    def sequence_ended(self) -> None:
        """Report after this step."""
        self._due_s = -math.inf

    def step(self, stats: EngineStats) -> None:
        """Count a step, after all of its events have been handled, and report if it is time."""
        self._stats = stats
        if stats.step_s:
            self._steps_s.append(stats.step_s)
            self._batches.append(stats.step_sequences)
        now_s = self._clock()
        if now_s >= self._due_s or not (stats.running or stats.waiting):
            self._due_s = now_s + REPORT_EVERY_S
            self.report()

    def report(self) -> None:
        """Report the gathered metrics."""
        metrics, stats = self._metrics, self._stats
        if self._tokens:
            metrics.count("generated_tokens", self._tokens)
            metrics.observe("inter_token_latency_seconds", *self._gaps_s)
        if self._steps_s:
            metrics.observe("engine_step_seconds", *self._steps_s)
            metrics.observe("batch_size", *self._batches)
        self._clear()
        metrics.gauge("running_requests", stats.running)
        metrics.gauge("waiting_requests", stats.waiting)
        # From these two the front end computes kv_cache_usage_ratio, for any engine.
        metrics.gauge("kv_cache_blocks_used", stats.kv_blocks_used)
        metrics.gauge("kv_cache_blocks_total", stats.kv_blocks_total)
        for name, counted in self._counted.items():
            if (count := getattr(stats, name)) > counted:
                metrics.count(name, count - counted)
                self._counted[name] = count

    def _clear(self) -> None:
        self._tokens = 0
        self._gaps_s: list[float] = []
        self._steps_s: list[float] = []
        self._batches: list[int] = []
