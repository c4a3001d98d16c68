"""What speculative decoding reports is summed, and sent nowhere."""

from __future__ import annotations

import pytest

from djl_python.telemetry import TelemetryManager, telemetry_manager


def test_the_mean_of_reports() -> None:
    manager = TelemetryManager()
    assert manager.mean_acceptance is None
    manager.record_speculative({"acceptance_history_len": 1, "mean_acceptance": 1.0})
    manager.record_speculative({"acceptance_history_len": 3, "mean_acceptance": 3.0})
    assert manager.mean_acceptance == pytest.approx(2.5)
    manager.reset_speculative()
    assert manager.mean_acceptance is None
    assert isinstance(telemetry_manager, TelemetryManager)
