"""The gauges of files and batches, computed while /metrics is answered. Runs in the front end's event loop."""

from __future__ import annotations

import functools
import time
from typing import Final, get_args

from ...dialects.shared.batches import Status
from ..metrics.metrics import Metrics
from .store import ENDED, Store

_STATUSES: Final = get_args(Status)


def measure(store: Store, metrics: Metrics) -> None:
    """Set the gauges of batches from the store."""
    gauges = metrics.families.gauges
    for status in _STATUSES:
        gauges["batches"].labels(status).set_function(functools.partial(_count, store, status))
    gauges["batch_oldest_seconds"].set_function(lambda: _oldest_s(store))
    gauges["batch_bytes_used"].set_function(lambda: store.held_bytes)
    gauges["batch_bytes_limit"].set_function(lambda: store.max_bytes)


def _count(store: Store, status: str) -> int:
    return sum(state.batch.status == status for state in store.states())


def _oldest_s(store: Store) -> float:
    created = [state.batch.created_at for state in store.states() if state.batch.status not in ENDED]
    return max(0.0, time.time() - min(created)) if created else 0.0
