"""What can be said of a registered model and its workers.

Used in the front end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...config import ModelSpec
from ...dialects.shared.base import ModelStatus
from .replica import WorkerState
from .served_model import Health, ServedModel


@dataclass(frozen=True)
class WorkerDescription:
    """One worker. `started_s` is a Unix time, 0.0 before it was started; `pid` its process, where that is local."""

    name: str
    state: WorkerState
    device: str
    started_s: float
    pid: int | None


@dataclass(frozen=True)
class ModelDescription:
    """One version of a model. `failure`: why it, or one of its workers, did not load; "" if that did not happen."""

    spec: ModelSpec
    status: ModelStatus
    health: Health
    failure: str
    workers: Sequence[WorkerDescription]


def described(spec: ModelSpec, model: ServedModel) -> ModelDescription:
    """A model as it is now; `spec`: as it was registered."""
    workers = [WorkerDescription(one.name, one.state, one.device, one.started_s, one.pid) for one in model.replicas]
    return ModelDescription(spec, model.status, model.health, model.failure, workers)
