"""The parts of a front end, put together in one place: for a server, for batches without a port, for `check --load`.

Runs in the front end's event loop.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ..config import ModelConfig, ModelSpec, ServerConfig, is_remote
from ..core.cpu_limit import available_cpus
from ..dialects import all_dialects
from ..dialects.shared.base import Dialect
from ..ipc.protocol import Status
from ..sources import load_model_config
from .environments import prepare
from .environments.processes import Progress
from .metrics.metrics import Metrics
from .models.placement import Placements
from .models.registry import ModelRegistry
from .models.served_model import ServedModel
from .spans import NO_SPANS, Spans
from .tls.workers import worker_endpoint

#: Workers that load at a time, and pips that run, for each processor: some of it is waiting for disks or networks.
_LOADING_PER_CPU: Final = 2


@dataclass(frozen=True)
class Parts:
    """The parts of a front end."""

    config: ServerConfig
    metrics: Metrics
    registry: ModelRegistry
    dialects: Mapping[str, Dialect]
    spans: Spans = NO_SPANS


def compose(
    config: ServerConfig,
    *,
    read: Callable[[ModelSpec], ModelConfig] | None = None,
    max_workers: int | None = None,
    spans: Spans = NO_SPANS,
    on_progress: Callable[[ServedModel, Status], None] = lambda _model, _status: None,
    on_change: Callable[[ServedModel], None] = lambda _model: None,
) -> Parts:
    """The parts, with no model yet.

    Args:
        read, max_workers, on_progress, on_change: see `ModelRegistry`. `read` is `load_model_config` if it is None.
        spans: records requests; closed by the caller.

    Raises:
        ConfigError: the certificate for workers' connections can't be used.
    """
    metrics = Metrics()
    most = _LOADING_PER_CPU * available_cpus()
    registry = ModelRegistry(
        metrics,
        Placements(worker_endpoint(config)),
        read or functools.partial(load_model_config, server=config),
        default_model=config.default_model,
        prepare=functools.partial(_prepare, turns=asyncio.Semaphore(most)),
        turns=asyncio.Semaphore(most),
        drain_timeout_s=config.drain_timeout_s,
        max_workers=max_workers,
        load_on_request=config.load_on_request and max_workers is None,
        memory_budget=config.memory_budget,
        on_progress=on_progress,
        on_change=on_change,
    )
    return Parts(config, metrics, registry, all_dialects(), spans)


async def _prepare(config: ModelConfig, progress: Progress, turns: asyncio.Semaphore) -> ModelConfig:
    """Prepares a model for `ModelRegistry`. What workers on other machines need, their agents install there."""
    return config if is_remote(config) else await prepare(config, progress, turns)
