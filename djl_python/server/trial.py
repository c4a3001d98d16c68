"""Loads a model once, to see whether and how it would be served: `djl-serving check --load`.

Runs in the front end, without a port. One worker is started, whatever their number is to be, and ended again.
"""

from __future__ import annotations

import msgspec

from ..config import ModelConfig
from ..core.engine_info import EngineInfo
from ..core.errors import ModelLoadError
from ..ipc import event_loop
from .announcer import Announcer
from .environments import prepare
from .metrics import Metrics
from .models.placement import placement
from .models.served_model import ServedModel


def load_once(config: ModelConfig) -> str:
    """What runs the model, what is not as one would expect, and what memory it takes, in indented lines.

    Raises:
        ModelLoadError: it does not load.
    """
    return event_loop.run(_load(config))


async def _load(config: ModelConfig) -> str:
    announcer = Announcer()
    config = await prepare(config, lambda status: announcer.progress(config, status))
    once = msgspec.structs.replace(config, serving=msgspec.structs.replace(config.serving, retry_threshold=0))
    model = ServedModel(
        once,
        Metrics().model(config.name, config.version),
        placement(),
        on_progress=lambda _, status: announcer.progress(config, status),
    )
    model.start(most=1)
    try:
        await model.settled.wait()
        if not model.ready:
            raise ModelLoadError(model.failure)
        engine = model.engine
    finally:
        await model.stop()
    announcer.clear()
    return "  it loads, and what runs it is the handler's business" if engine is None else _told(engine)


def _told(engine: EngineInfo) -> str:
    lines = [("runner", engine.summary)]
    if engine.weight_bytes:
        lines.append(("weights", _mebibytes(engine.weight_bytes)))
    if engine.cache_bytes:
        lines.append(("cache", f"up to {_mebibytes(engine.cache_bytes)}"))
    lines += [("warning:", warning) for warning in engine.warnings]
    return "\n".join(f"  {name:8} {value}" for name, value in lines)


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
