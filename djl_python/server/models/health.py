"""The health of a model, from the states of its workers.

Runs in the front end's event loop.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from .replica import Replica, WorkerState


class Health(enum.StrEnum):
    """The health of a model, in DJL's words."""

    PENDING = "PENDING"  # loading for the first time
    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"  # was ready, has fewer ready workers than it should
    FAILED = "FAILED"
    UNLOADED = "Unloaded"  # has no workers on purpose; its next request starts them


def health_of(replicas: Sequence[Replica], *, ready: bool, was_ready: bool) -> Health:
    """The health of a model.

    Args:
        replicas: the workers that it should always have.
        ready: whether any worker can answer now.
        was_ready: whether one could before.
    """
    states = {replica.state for replica in replicas}
    if states == {WorkerState.READY}:
        return Health.HEALTHY
    if states == {WorkerState.FAILED} and not ready:
        return Health.FAILED
    return Health.UNHEALTHY if was_ready else Health.PENDING


def setback_of(replicas: Sequence[Replica]) -> str:
    """What a model says of workers that are started again and again without success; "" if there are none."""
    failed = max((replica.restarts.failed for replica in replicas if not replica.restarts.given_up), default=0)
    return f"workers do not start again, {failed} attempts have failed so far" if failed else ""
