"""How many blocks of keys and values there is room for. Runs in the engine process, once."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from ..errors import ModelLoadError
from .attention import LayerShape
from .free_memory import cpu_cache_bytes
from .loading import LoadedModel
from .rolling_batch import EngineSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CacheSize:
    blocks: int
    length: int
    description: str


def size_cache(
    settings: EngineSettings, loaded: LoadedModel, layers: dict[int, LayerShape], wanted: int, state_bytes: int = 0
) -> CacheSize:
    """How many blocks there is room for, and how long a sequence may be with them.

    Args:
        state_bytes: of each sequence, beside its blocks.

    Raises:
        ModelLoadError: not even one block's worth.
    """
    size = settings.block_size
    block_bytes = sum(layer.block_bytes(size, loaded.dtype) for layer in layers.values())
    states = settings.max_batch_size * state_bytes
    enough = settings.max_batch_size * -(-wanted // size)
    room = _cache_bytes(settings, loaded.device) - states
    blocks = settings.kv_blocks or min(enough, room // block_bytes if block_bytes else enough)
    length = min(wanted, blocks * size)
    if blocks < 2:
        raise ModelLoadError(
            f"no room for a KV cache: a block of {size} tokens takes {block_bytes / 2**20:.1f} MiB; "
            "set option.kv_cache_memory_mb"
        )
    if length < wanted:
        log.warning("the KV cache has room for %d tokens: a sequence can't use the whole context of %d", length, wanted)
    memory = f"KV cache {blocks} blocks of {size} tokens ({blocks * block_bytes / 2**20:.0f} MiB)"
    if states:
        memory += f" and states of {settings.max_batch_size} sequences ({states / 2**20:.0f} MiB)"
    return CacheSize(blocks, length, f"context {length}, {memory}")


def _cache_bytes(settings: EngineSettings, device: torch.device) -> int:
    if device.type != "cuda" or settings.kv_cache_memory_mb is not None:
        return cpu_cache_bytes(settings)
    free, total = torch.cuda.mem_get_info(device)
    return max(0, int(free - (1 - settings.gpu_memory_utilization) * total))
