"""Descriptions of a registered model and its workers.

Used in the front end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...config import ModelSpec
from ...dialects.shared.views import ModelStatus
from ...ipc.protocol import Status, WorkerInfo
from .health import Health
from .replica import WorkerState
from .served_model import ServedModel


@dataclass(frozen=True)
class WorkerDescription:
    """One worker.

    Attributes:
        started_s: a Unix time, 0.0 before it was started.
        pid: its process, where that is local.
        progress: how far it is while it loads; None: it does not, or has not said yet.
        setback: why it is being started again; "" if it is not.
    """

    name: str
    state: WorkerState
    device: str
    started_s: float
    pid: int | None
    progress: Status | None = None
    setback: str = ""


@dataclass(frozen=True)
class ModelDescription:
    """One version of a model.

    Attributes:
        spec: as it was registered.
        failure: why it, or one of its workers, did not load; "" if that did not happen.
        setback: that its workers do not start again, and why; "" if they do.
        reload_failure: why the last reload left it as it was; "" if none did.
        info: what the first of its workers that has loaded says of itself.
        at_startup: whether the server began with it.
        doing, step: as in `Registration`.
        successor: the workers of the instance that loads beside it.
    """

    spec: ModelSpec
    status: ModelStatus
    health: Health
    failure: str
    workers: Sequence[WorkerDescription]
    reload_failure: str = ""
    at_startup: bool = False
    info: WorkerInfo = field(default_factory=WorkerInfo)
    doing: str = ""
    setback: str = ""
    step: Status | None = None
    successor: Sequence[WorkerDescription] = ()


def described(spec: ModelSpec, model: ServedModel) -> ModelDescription:
    """A model as it is now, without the facts that only its registration has."""
    why = next((replica.setback for replica in model.workers.always if replica.setback), "")
    return ModelDescription(
        spec,
        model.status,
        model.health,
        model.failure,
        workers_of(model),
        info=model.info,
        setback=f"{model.setback}: {why}" if model.setback else "",
    )


def workers_of(model: ServedModel) -> Sequence[WorkerDescription]:
    """The workers of an instance of a model."""
    return [
        WorkerDescription(
            worker.name, worker.state, worker.device, worker.started_s, worker.pid, worker.progress, worker.setback
        )
        for worker in model.workers
    ]
