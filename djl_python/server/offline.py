"""The models of a command line in this process, without a port: for `djl-serving batch`.

Runs in the front end's event loop. Requests get the server's answers, without HTTP in between.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec

from ..config import ModelConfig, ModelSpec, ServerConfig
from ..core.errors import ModelLoadError
from ..ipc import event_loop
from ..ipc.protocol import Status
from .announcer import Announcer
from .batches.calls import Calls
from .composition import compose
from .dispatch.dispatch import Dispatch
from .models.health import Health
from .models.registry import ModelRegistry
from .models.served_model import ServedModel
from .routes import RouteTable


@asynccontextmanager
async def loaded_models(
    config: ServerConfig, configs: Mapping[ModelSpec, ModelConfig]
) -> AsyncIterator[tuple[Calls, int]]:
    """Load the models; returns a function that answers requests, and how many the workers take at a time.

    Raises:
        ModelLoadError: one did not load.
    """
    announcer = Announcer()

    def on_progress(model: ServedModel, status: Status) -> None:
        if sys.stderr.isatty():
            announcer.progress(model.config, status)

    parts = compose(config, on_progress=on_progress)
    registry = parts.registry
    try:
        models = await asyncio.gather(*(_load(registry, spec, config) for spec, config in configs.items()))
        announcer.clear()
        for model in models:
            for warning in (*model.config.warnings, *(model.engine.warnings if model.engine is not None else ())):
                announcer.note(f"model {model.config.name}: warning: {warning}")
        event_loop.freeze_heap()
        dispatch = Dispatch(parts.dialects, registry.models, residence=registry.residence)
        calls = Calls(RouteTable(parts.dialects), dispatch, parts.metrics)
        yield calls, sum(model.pool.workers.capacity for model in models)
    finally:
        announcer.clear()
        await registry.close()


async def _load(registry: ModelRegistry, spec: ModelSpec, config: ModelConfig) -> ServedModel:
    """A model whose slots are all for batches."""
    whole = msgspec.structs.replace(
        config, serving=msgspec.structs.replace(config.serving, batch_share=1.0, batch_busy_share=1.0)
    )
    model = await registry.register(spec, whole, at_startup=True)
    if model.health is Health.FAILED:
        raise ModelLoadError(model.failure)
    return model
