"""Models in the words of DJL's management API.

Runs in the front end.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from msgspec import UNSET

from ...config import bounds_of
from ...config.sources import shown_url
from ..models.description import ModelDescription, WorkerDescription
from ..models.health import Health
from .types import SETTINGS, DescribedModel, DescribedWorkflow, Device, ListedModel, Worker, WorkerGroup

#: A model's health -> its status in lists.
_STATUS: Final = {Health.PENDING: "PENDING", Health.FAILED: "FAILED", Health.UNLOADED: "UNLOADED"}


def listed(model: ModelDescription) -> ListedModel:
    """A model as an entry of a list."""
    spec = model.spec
    return ListedModel(spec.name, shown_url(spec.url), _STATUS.get(model.health, "READY"), spec.version or UNSET)


def described(model: ModelDescription) -> DescribedWorkflow:
    """A model with its settings and its workers."""
    spec, status = model.spec, model.status
    serving = status.config.serving
    idle_s = serving.max_idle_time_s
    given = dict(spec.parameters)
    parameters = {name: given[keys[0]] for name, keys in SETTINGS.items() if keys[0] in given}
    parameters |= {name: value for name, value in (("engine", spec.engine), ("device", spec.devices)) if value}
    return DescribedWorkflow(
        spec.name,
        [
            DescribedModel(
                model_name=spec.name,
                model_url=shown_url(spec.url),
                batch_size=serving.batch_size,
                max_batch_delay_millis=serving.max_batch_delay_ms,
                max_idle_seconds=int(idle_s) if idle_s.is_integer() else idle_s,
                queue_size=serving.job_queue_size,
                request_in_queue=status.queued,
                request_in_flight=status.in_flight,
                status=str(model.health),
                loaded_at_startup=model.at_startup,
                worker_groups=_groups(model),
                registered_with=parameters,
                warnings=list(status.config.warnings),
                failure=model.failure,
                setback=model.setback,
                reload_failure=model.reload_failure,
                memory_bytes=status.memory_bytes if status.ready else 0,
                idle_seconds=UNSET if status.idle_s is None else round(status.idle_s, 1),
                expires_at=_time(status.expires_s or 0.0),
            )
        ],
        spec.version or UNSET,
    )


def _groups(model: ModelDescription) -> list[WorkerGroup]:
    """The workers by their devices, in the order of the workers."""
    by_device: dict[str, list[WorkerDescription]] = {}
    for worker in model.workers:
        by_device.setdefault(worker.device, []).append(worker)
    bounds, engine = bounds_of(model.status.config), model.status.engine
    # An engine says where `auto` has led.
    chosen = "auto" if engine is None or len(by_device) > 1 else engine.device
    return [
        WorkerGroup(_device(chosen if device == "auto" else device), *bounds.get(device, (0, 0)), _workers(members))
        for device, members in by_device.items()
    ]


def _device(name: str) -> Device:
    """DJL's form of cpu, cuda, cuda:0 or auto."""
    kind, _, index = name.partition(":")
    if kind != "cuda":
        return Device(kind, -1)
    return Device("gpu", int(index or 0))


def _workers(workers: Sequence[WorkerDescription]) -> list[Worker]:
    return [
        Worker(int(worker.name), _time(worker.started_s), str(worker.state).upper(), worker.pid) for worker in workers
    ]


def _time(unix_s: float) -> str:
    """A Unix time as DJL writes it, in milliseconds and UTC."""
    if not unix_s:
        return ""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
