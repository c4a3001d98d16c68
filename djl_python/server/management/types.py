"""The bodies of the management API: DJL's documented ones, and what they lack here.

Runs in the front end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ...config.settings.values import DEVICES_EXPECTED, DEVICES_PATTERN

_AtLeast1 = Annotated[int, Meta(ge=1)]
#: The pattern of adapters' names: they stand in paths and in OpenAI's `model`.
ADAPTER_NAME: Final = r"^(?!\.)[\w.\-]([\w.\-/:@ ]{0,254}[\w.\-])?$"
ADAPTER_NAME_EXPECTED: Final = "1 to 256 letters, digits and any of ._-/:@"
_Devices = Annotated[str, Meta(pattern=DEVICES_PATTERN, extra={"expected": DEVICES_EXPECTED})]


#: Parameters of a registration -> the settings that they set.
SETTINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "job_queue_size": ("job_queue_size",),
    "batch_size": ("batch_size",),
    "max_batch_delay": ("max_batch_delay",),
    "max_idle_time": ("max_idle_time",),
    "dtype": ("option.dtype",),
    "quantize": ("option.quantize",),
    "min_worker": ("minWorkers", "cpu.minWorkers", "gpu.minWorkers"),
    "max_worker": ("maxWorkers", "cpu.maxWorkers", "gpu.maxWorkers"),
}


class Registration(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """POST /models: what to load, and settings that are stronger than the model's own."""

    url: Annotated[
        str,
        Meta(
            description="A directory or an archive: a path (also in model_store), or a URL. If absent, with reload, "
            "what it was.",
        ),
    ] = ""
    model_name: Annotated[str, Meta(description="If absent, what the URL's last part gives.")] = ""
    model_version: str = ""
    engine: Annotated[str, Meta(description="DJL's engine, see the setting.")] = ""
    device: Annotated[_Devices | None, Meta(description="Devices that get min_worker workers each.")] = None
    job_queue_size: _AtLeast1 | None = None
    batch_size: _AtLeast1 | None = None
    max_batch_delay: Annotated[int, Meta(ge=0, description="Milliseconds.")] | None = None
    max_idle_time: Annotated[int, Meta(ge=1, description="Seconds.")] | None = None
    dtype: Annotated[str | None, Meta(description="As option.dtype.")] = None
    quantize: Annotated[str | None, Meta(description="As option.quantize.")] = None
    min_worker: Annotated[int, Meta(ge=1, description="Workers on each device.")] | None = None
    max_worker: _AtLeast1 | None = None
    synchronous: Annotated[bool, Meta(description="Answer when it is loaded; otherwise at once.")] = True
    reload: Annotated[
        bool,
        Meta(
            description="Replace the model of this name and version, which serves until the new one has answered a "
            "trial request, and goes on serving if that fails."
        ),
    ] = False


class Selection(msgspec.Struct, frozen=True):
    """The versions that a request means, where the path has none: all, or one."""

    unversioned: Annotated[bool, Meta(description="Only the one that was registered without a version.")] = False


class Scaling(Selection, frozen=True):
    """PUT /models/{model}: how many workers each of its devices has."""

    min_worker: Annotated[int, Meta(ge=1)] = 1
    max_worker: Annotated[int, Meta(ge=1, description="If absent, min_worker.")] | None = None
    device: Annotated[str, Meta(description="What the model was registered with: every device is scaled.")] = ""
    synchronous: Annotated[bool, Meta(description="Answer when it is done; otherwise at once.")] = True


class AdapterRegistration(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """POST /models/{model}/adapters: an adapter. Further parameters are passed on to the model's code."""

    name: Annotated[str, Meta(pattern=ADAPTER_NAME, extra={"expected": ADAPTER_NAME_EXPECTED})]
    src: Annotated[
        str,
        Meta(
            min_length=1,
            description="A directory as peft saves it, or an archive of one: a path (also in the model's directory, or "
            "in model_store), or a URL as of a model.",
        ),
    ]
    preload: Annotated[bool, Meta(description="Load it now, which is done whatever this says.")] = True
    pin: Annotated[bool, Meta(description="Keep it in the memory of the device that computes.")] = False


class AdapterUpdate(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """POST /models/{model}/adapters/{adapter}/update: the changed properties."""

    src: Annotated[str, Meta(description="If absent, where it was: it is read again.")] = ""
    preload: bool | None = None
    pin: bool | None = None


class LoadLora(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """POST /v1/load_lora_adapter, as vLLM has it."""

    lora_name: Annotated[str, Meta(pattern=ADAPTER_NAME, extra={"expected": ADAPTER_NAME_EXPECTED})]
    lora_path: Annotated[str, Meta(min_length=1, description="As `src` of a registration.")]
    load_inplace: Annotated[bool, Meta(description="Replace the adapter of this name.")] = False
    model: Annotated[str, Meta(description="Which of several models.")] = ""


class UnloadLora(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """POST /v1/unload_lora_adapter, as vLLM has it."""

    lora_name: str
    lora_int_id: Annotated[int | None, Meta(description="Has no effect.")] = None
    model: Annotated[str, Meta(description="Which of several models.")] = ""


class Paging(msgspec.Struct, frozen=True):
    """GET /models: which part of the list."""

    limit: Annotated[int, Meta(ge=1, description="Models in an answer: 100 at most.")] = 100
    next_page_token: Annotated[int, Meta(ge=0, description="What the answer before said.")] = 0


class LogLevel(msgspec.Struct, frozen=True):
    """POST /server/logging: the least serious records that the server and its workers log.

    Engines that run keep theirs. TRACE is DEBUG; FATAL and OFF log none at all.
    """

    level: Annotated[
        str,
        Meta(
            pattern="^(?i:trace|debug|info|warn|warning|error|fatal|off)$",
            extra={"expected": "TRACE, DEBUG, INFO, WARN, ERROR, FATAL or OFF"},
        ),
    ] = "INFO"


class Status(msgspec.Struct, frozen=True):
    """What has been done."""

    status: str


class ListedModel(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One version of a model. `status`: READY, PENDING or FAILED."""

    model_name: str
    model_url: str
    status: str
    version: str | UnsetType = UNSET


class DescribedAdapter(msgspec.Struct, frozen=True):
    """An adapter."""

    name: str
    src: str
    preload: bool
    pin: bool


class AdapterPage(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A page of the list of a model's adapters. Without `nextPageToken`, it is the last one."""

    adapters: list[DescribedAdapter]
    next_page_token: str | UnsetType = UNSET


class ListedWorkflow(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One version of a model, as DJL lists workflows."""

    workflow_name: str
    version: str | UnsetType = UNSET


class ModelPage(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A page of the list of models. Without `nextPageToken`, it is the last one."""

    models: list[ListedModel]
    next_page_token: str | UnsetType = UNSET


class WorkflowPage(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A page of the list of models, under both names that DJL has for them."""

    workflows: list[ListedWorkflow]
    models: list[ListedModel]
    next_page_token: str | UnsetType = UNSET


class Device(msgspec.Struct, frozen=True, rename="camel"):
    """`deviceId` is -1 for a CPU, and where the worker has not chosen yet (`auto`)."""

    device_type: str
    device_id: int


class Worker(msgspec.Struct, frozen=True, rename="camel"):
    """`startTime` is empty, and `pid` null, before the worker is started."""

    id: int
    start_time: str
    status: str
    pid: int | None


class WorkerGroup(msgspec.Struct, frozen=True, rename="camel"):
    """The workers of a device."""

    device: Device
    min_workers: int
    max_workers: int
    workers: list[Worker]


class DescribedModel(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A model's settings and state. `status`: Healthy, Unhealthy (workers are missing), PENDING, FAILED, or Unloaded
    until a request comes.

    `failure` says why it, or a worker of it, did not load; `setback`, why workers that served do not restart;
    `reloadFailure`, why the last reload failed. `registeredWith` has the parameters of its registration; `warnings`
    lists settings that do not do what they say. `memoryBytes` is what a loaded model's workers have, `idleSeconds` how
    long it has had no request, `expiresAt` when it is unloaded if none comes.
    """

    model_name: str
    model_url: str
    batch_size: int
    max_batch_delay_millis: int
    max_idle_seconds: int | float
    queue_size: int
    request_in_queue: int
    status: str
    loaded_at_startup: bool
    worker_groups: list[WorkerGroup]
    request_in_flight: int
    registered_with: dict[str, str] = {}
    warnings: list[str] = []
    failure: str = ""
    setback: str = ""
    reload_failure: str = ""
    memory_bytes: int = 0
    idle_seconds: float | UnsetType = UNSET
    expires_at: str = ""


class DescribedWorkflow(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One version of a model, as DJL describes it."""

    workflow_name: str
    models: list[DescribedModel]
    version: str | UnsetType = UNSET
