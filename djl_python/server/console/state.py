"""How the server and its models are, as the console's pages read it. Runs in the front end's event loop."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ... import __version__
from ...config import ModelConfig, ServerConfig, bounds_of, shown_server_settings, shown_settings
from ...config.sources import shown_url
from ...core.engine_info import EngineInfo
from ...ipc.protocol import Status
from ..http.access import Rights
from ..models.description import ModelDescription, WorkerDescription


class ProgressPart(msgspec.Struct, frozen=True):
    """How far something is: `done` of `total`, where that can be counted, else both are 0."""

    what: str
    done: int
    total: int


class WorkerPart(msgspec.Struct, frozen=True):
    """A worker.

    Attributes:
        state: starting, ready, unresponsive, failed or stopped.
        started_s: Unix time, 0 before it was started.
        pid: its process, where that is local.
        progress: how far it is while it loads; None: it does not, or has not said yet.
        setback: why it is being started again; "" if it is not.
    """

    name: str
    state: str
    device: str
    started_s: float
    pid: int | None
    progress: ProgressPart | None
    setback: str


class OperatorPart(msgspec.Struct, frozen=True):
    """The part of a model's state that only its operators see.

    Attributes:
        failure: why it, or one of its workers, did not load; "" if that did not happen.
        reload_failure: why the last reload left it as it was; "" if none did.
        warnings: settings that do not do what they say.
        doing: what is being done with it: loading, unloading, reloading or scaling; "" if nothing is.
        step: progress that no worker reports, such as the installation of packages; None: nothing.
        successor: the workers of the instance that loads beside it.
        min_workers, max_workers: on its first device; those that scaling sets are on each.
    """

    url: str
    failure: str
    reload_failure: str
    warnings: list[str]
    workers: list[WorkerPart]
    min_workers: int
    max_workers: int
    doing: str
    step: ProgressPart | None
    successor: list[WorkerPart]


class ModelPart(msgspec.Struct, frozen=True):
    """A version of a model.

    Attributes:
        status: PENDING, Healthy, Unhealthy, FAILED or Unloaded.
        ready_workers: those that can answer, of `all_workers`.
        registered_s: Unix time of its registration.
        task: what it does, by the hub's name; "" where that isn't known, or a handler of its own does not say it.
        engine: what runs it, in a line; "" where no engine does, or it is not known yet.
        max_model_len: tokens of a prompt and its answer, at most; 0, as in the next two, where that isn't known.
        weight_bytes, cache_bytes: its weights on each device, and what the KV cache may grow to there.
        example: JSON that it answers; "" where its handler says none.
        takes_images: whether messages may have images.
        operator: None where the client does not manage models.
    """

    name: str
    version: str
    status: str
    ready_workers: int
    all_workers: int
    queued: int
    in_flight: int
    registered_s: float
    task: str
    engine: str
    max_model_len: int
    weight_bytes: int
    cache_bytes: int
    example: str
    takes_images: bool
    operator: OperatorPart | None


class State(msgspec.Struct, frozen=True):
    """The server.

    Attributes:
        manages: whether the client may manage models at this address.
        generates: whether models answer at this address; else `inference_address` says where.
        managed_at: the address at which models are managed; "" where it is the same.
        several: whether requests have to name a model.
        key_name: that of the client's API key; "" where the server asks for none.
    """

    version: str
    manages: bool
    generates: bool
    inference_address: str
    managed_at: str
    several: bool
    key_name: str
    models: list[ModelPart]


class SettingPart(msgspec.Struct, frozen=True):
    """A setting: its key as users write it, its value ("-": unset; secrets are masked), and where that comes from."""

    key: str
    value: str
    source: str


class ModelSettings(msgspec.Struct, frozen=True):
    """The settings of a version of a model, and the keys that its handler gets as they are."""

    name: str
    version: str
    settings: list[SettingPart]
    passed_on: list[SettingPart]


class AllSettings(msgspec.Struct, frozen=True):
    """All settings, with their sources."""

    server: list[SettingPart]
    models: list[ModelSettings]


def state_of(config: ServerConfig, models: Sequence[ModelDescription], rights: Rights, *, several: bool) -> State:
    """The state that a client with these rights sees."""
    inference, management = config.inference_address, config.management_address
    return State(
        version=__version__,
        manages=rights.manages,
        generates=rights.generates,
        inference_address=str(inference),
        managed_at="" if management in (None, inference) else str(management),
        several=several,
        key_name=rights.key.name,
        models=[_model(model, rights) for model in models],
    )


def settings_of(config: ServerConfig, models: Sequence[ModelConfig]) -> AllSettings:
    """Every setting of the server and of these models."""
    return AllSettings(_rows(shown_server_settings(config)), [_model_settings(model) for model in models])


def _model(model: ModelDescription, rights: Rights) -> ModelPart:
    status, engine = model.status, model.status.engine
    known = engine or EngineInfo()
    return ModelPart(
        name=model.spec.name,
        version=model.spec.version,
        status=str(model.health),
        ready_workers=status.workers,
        all_workers=len(model.workers),
        queued=status.queued,
        in_flight=status.in_flight,
        registered_s=status.registered_s,
        task=status.task,
        engine="" if engine is None else engine.summary,
        max_model_len=known.max_model_len,
        weight_bytes=known.weight_bytes,
        cache_bytes=known.cache_bytes,
        example=model.info.example,
        takes_images=known.takes_images,
        operator=_operator(model) if rights.manages else None,
    )


def _operator(model: ModelDescription) -> OperatorPart:
    status = model.status
    least, most = next(iter(bounds_of(status.config).values()), (1, 1))
    warnings = [*status.config.warnings, *(() if status.engine is None else status.engine.warnings)]
    chosen = "" if status.engine is None else status.engine.device
    return OperatorPart(
        url=shown_url(model.spec.url),
        failure=model.failure,
        reload_failure=model.reload_failure,
        warnings=warnings,
        workers=[_worker(worker, chosen) for worker in model.workers],
        min_workers=least,
        max_workers=most,
        doing=model.doing,
        step=_progress(model.step),
        successor=[_worker(worker, "") for worker in model.successor],
    )


def _worker(worker: WorkerDescription, chosen: str) -> WorkerPart:
    """A worker; `chosen` is where `auto` has led, if that is known."""
    return WorkerPart(
        name=worker.name,
        state=str(worker.state),
        device=chosen if chosen and worker.device == "auto" else worker.device,
        started_s=worker.started_s,
        pid=worker.pid,
        progress=_progress(worker.progress),
        setback=worker.setback,
    )


def _progress(status: Status | None) -> ProgressPart | None:
    if status is None:
        return None
    what = f"{status.detail}: {status.current}" if status.current else status.detail
    return ProgressPart(what, status.done, status.total)


def _model_settings(config: ModelConfig) -> ModelSettings:
    settings, passed_on = shown_settings(config)
    return ModelSettings(config.name, config.version, _rows(settings), _rows(passed_on))


def _rows(rows: Sequence[tuple[str, str, str]]) -> list[SettingPart]:
    return [SettingPart(key, value, source) for key, value, source in rows]
