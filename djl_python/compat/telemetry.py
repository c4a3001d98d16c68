"""DJL's `telemetry_manager`, which collects how well a draft model guesses. Runs in the worker.

Nothing is sent anywhere, by design: what is recorded stays in the object, and `mean_acceptance` tells it.
"""

from __future__ import annotations

from collections.abc import Mapping


class TelemetryManager:
    """Sums of what speculative decoding reports."""

    def __init__(self) -> None:
        self.reset_speculative()

    def record_speculative(self, data: Mapping[str, float]) -> None:
        """Add a report: `acceptance_history_len` steps, of which each accepted `mean_acceptance` tokens on average."""
        steps = data["acceptance_history_len"]
        self.speculative_acceptance_rate_count += steps
        self.speculative_acceptance_rate_total += steps * data["mean_acceptance"]

    @property
    def mean_acceptance(self) -> float | None:
        """Tokens accepted per step since the last reset; None before the first report."""
        count = self.speculative_acceptance_rate_count
        return self.speculative_acceptance_rate_total / count if count else None

    def reset_speculative(self) -> None:
        """Begin again."""
        self.speculative_acceptance_rate_count = 0.0
        self.speculative_acceptance_rate_total = 0.0


telemetry_manager = TelemetryManager()
