"""The top-level keys of a model's serving.properties. In the front end and in the worker."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

from .values import DEVICES_EXPECTED, DEVICES_PATTERN, Positive


class ServingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The top-level keys of serving.properties: queue, batching and workers of one model."""

    engine: Annotated[
        str,
        Meta(
            description="DJL's engine: Python, or DeepSpeed where it is installed. Models of DJL's other "
            "engines are served with Python."
        ),
    ] = ""
    job_queue_size: Annotated[
        int, Meta(ge=1, description="Requests that may wait for a worker; one more is refused at once.")
    ] = 1000
    batch_size: Annotated[
        int,
        Meta(
            ge=1,
            description="Requests gathered into one call of the handler (dynamic batching); with "
            "option.rolling_batch=disable, sequences that the built-in one generates at once.",
            extra={"aliases": ["max_dynamic_batch_size"]},
        ),
    ] = 1
    max_batch_delay_ms: Annotated[
        int, Meta(ge=0, description="How long a dynamic batch waits for more requests, in milliseconds.")
    ] = field(default=100, name="max_batch_delay")
    min_workers: Annotated[
        int, Meta(ge=1, description="Worker processes that always run.", extra={"aliases": ["min_workers"]})
    ] = field(default=1, name="minWorkers")
    max_workers: Annotated[
        Positive | None,
        Meta(
            description="Worker processes at most: further ones start while requests wait, and each has a copy of the "
            "model; unset: minWorkers.",
            extra={"aliases": ["max_workers"]},
        ),
    ] = field(default=None, name="maxWorkers")
    cpu_min_workers: Annotated[
        Positive | None, Meta(description="minWorkers of a CPU.", extra={"aliases": ["cpu.min_workers"]})
    ] = field(default=None, name="cpu.minWorkers")
    cpu_max_workers: Annotated[
        Positive | None, Meta(description="maxWorkers of a CPU.", extra={"aliases": ["cpu.max_workers"]})
    ] = field(default=None, name="cpu.maxWorkers")
    gpu_min_workers: Annotated[
        Positive | None, Meta(description="minWorkers of a GPU.", extra={"aliases": ["gpu.min_workers"]})
    ] = field(default=None, name="gpu.minWorkers")
    gpu_max_workers: Annotated[
        Positive | None, Meta(description="maxWorkers of a GPU.", extra={"aliases": ["gpu.max_workers"]})
    ] = field(default=None, name="gpu.maxWorkers")
    max_idle_time_s: Annotated[
        float, Meta(gt=0, description="Seconds that a worker beyond minWorkers may have nothing to do before it ends.")
    ] = field(default=60.0, name="max_idle_time")
    retry_threshold: Annotated[
        int, Meta(ge=0, description="Failed worker starts in a row that are tolerated before the model is FAILED.")
    ] = 0
    heartbeat_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            description="Seconds without a heartbeat of a worker or its engine after which it gets no "
            "requests; it is replaced if its process was stopped.",
        ),
    ] = field(default=5.0, name="heartbeat_timeout")
    load_on_devices: Annotated[
        str,
        Meta(
            pattern=DEVICES_PATTERN,
            description="Devices that get minWorkers workers each: a list separated by semicolons (cpu, gpu0, 0); "
            "*: every GPU, or every group of as many as share the model, unless option.device names one; else the CPU.",
            extra={"expected": DEVICES_EXPECTED},
        ),
    ] = "*"
    batch_share: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="Share of a worker's concurrent requests that batches (/v1/batches) may take, at least one.",
        ),
    ] = 0.5
    batch_busy_share: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="The same share while there are other requests, and for 5 s after them; at least one.",
        ),
    ] = 0.125
    routing: Annotated[
        Literal["prefix", "least_busy"],
        Meta(
            description="Choice among several workers for a request. prefix: the worker that has computed the "
            "beginning of the prompt, or has the session, unless it is busy; least_busy: the "
            "worker with the fewest requests."
        ),
    ] = "prefix"
