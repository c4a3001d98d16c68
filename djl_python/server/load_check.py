"""Loads a model once, to see whether and how it would be served: `djl-serving check --load`.

Runs in the front end, without a port. One worker is started, whatever their number is to be, and ended again.
"""

from __future__ import annotations

import asyncio

import msgspec

from ..config import ModelConfig, ModelSpec, ServerConfig
from ..core.engine_info import EngineInfo
from ..core.errors import ModelLoadError
from ..ipc import event_loop
from .announcer import Announcer
from .composition import compose


def load_once(spec: ModelSpec, config: ModelConfig, server: ServerConfig) -> str:
    """The model's runner, warnings and memory, in indented lines.

    Raises:
        ModelLoadError: it does not load.
    """
    return event_loop.run(_load(spec, config, server))


async def _load(spec: ModelSpec, config: ModelConfig, server: ServerConfig) -> str:
    announcer = Announcer()
    registry = compose(
        server, max_workers=1, on_progress=lambda model, status: announcer.progress(model.config, status)
    ).registry
    once = msgspec.structs.replace(config, serving=msgspec.structs.replace(config.serving, retry_threshold=0))
    try:
        loading = registry.register(spec, once, at_startup=True)
        await asyncio.wait({loading})
        (model,) = registry.models
        if (failure := loading.exception()) is not None:
            raise ModelLoadError(f"it does not load: {model.failure}") from failure
        engine = model.engine
    finally:
        await registry.close()
    announcer.clear()
    return "  the model's own handler runs it" if engine is None else _described(engine)


def _described(engine: EngineInfo) -> str:
    lines = [("runner", engine.summary)]
    if engine.weight_bytes:
        lines.append(("weights", _mebibytes(engine.weight_bytes)))
    if engine.cache_bytes:
        lines.append(("cache", f"up to {_mebibytes(engine.cache_bytes)}"))
    lines += [("warning:", warning) for warning in engine.warnings]
    return "\n".join(f"  {name:8} {value}" for name, value in lines)


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
