"""The models of a command line in this process, without a port: for `djl-serving batch`.

Runs in the front end's event loop. Requests get what the server would answer, without HTTP between.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec

from ..config import ModelConfig, ModelSpec, ServerConfig, load_model_config
from ..core.cpu_limit import available_cpus
from ..core.errors import ModelLoadError
from ..dialects import all_dialects
from ..ipc import event_loop
from .announcer import Announcer
from .batches.calls import Calls
from .environments import prepare
from .lifecycle import LOADING_PER_CPU
from .metrics import Metrics
from .models.placement import placement
from .models.registry import ModelRegistry
from .models.served_model import Health, ServedModel
from .routes import RouteTable


@asynccontextmanager
async def loaded_models(
    config: ServerConfig, found: Mapping[ModelSpec, ModelConfig]
) -> AsyncIterator[tuple[Calls, int]]:
    """Load the models; gives what answers requests, and how many of them their workers take at a time.

    Raises:
        ModelLoadError: one did not load.
    """
    announcer = Announcer()
    cpus = available_cpus()
    metrics = Metrics()
    registry = ModelRegistry(
        metrics,
        placement(),
        lambda spec: load_model_config(spec, config),
        default_model=config.default_model,
        prepare=functools.partial(prepare, turns=asyncio.Semaphore(LOADING_PER_CPU * cpus)),
        turns=asyncio.Semaphore(LOADING_PER_CPU * cpus),
        on_progress=lambda model, status: announcer.progress(model.config, status) if sys.stderr.isatty() else None,
    )
    try:
        models = await asyncio.gather(*(_load(registry, spec, one) for spec, one in found.items()))
        announcer.clear()
        for model in models:
            for warning in (*model.config.warnings, *(model.engine.warnings if model.engine is not None else ())):
                announcer.note(f"model {model.config.name}: warning: {warning}")
        event_loop.settle()
        dialects = all_dialects()
        calls = Calls(RouteTable(dialects), dialects, registry.models, metrics)
        yield calls, sum(model.pool.capacity for model in models)
    finally:
        announcer.clear()
        await registry.close()


async def _load(registry: ModelRegistry, spec: ModelSpec, config: ModelConfig) -> ServedModel:
    """A model whose places are all for batches."""
    whole = msgspec.structs.replace(
        config, serving=msgspec.structs.replace(config.serving, batch_share=1.0, batch_busy_share=1.0)
    )
    model = await registry.register(spec, whole, at_startup=True)
    if model.health is Health.FAILED:
        raise ModelLoadError(model.failure)
    return model
