"""Sizes the KV cache: how many blocks there is memory for. Runs in the engine process, once."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

import torch

from ...core.errors import MemoryLoadError
from ..attention.parameters import LayerShape
from ..checkpoints.draft_size import NO_DRAFT, DraftMemory
from ..checkpoints.loading import LoadedModel
from ..devices.free_memory import available_bytes, cpu_cache_bytes
from ..devices.tensor_parallel import least
from ..settings import BuiltInSettings

log = logging.getLogger(__name__)


# Largest share of the memory for keys, values and states that saved states get.
_SAVED_SHARE: Final = 1 / 4
# Share of a GPU's memory that is left where others have taken more than their share: they need some for their steps.
_LEFT_SHARE: Final = 0.05


@dataclass(frozen=True)
class CacheSize:
    """The size of a cache.

    Attributes:
        blocks: number of blocks.
        length: most tokens of a sequence.
        saved_states: for how many states there is room beside those of running sequences.
        bytes: that blocks and states may take together.
        description: for the log.
    """

    blocks: int
    length: int
    saved_states: int
    bytes: int
    description: str


def size_cache(
    settings: BuiltInSettings,
    loaded: LoadedModel,
    layers: dict[int, LayerShape],
    wanted: int,
    state_bytes: int = 0,
    saves: bool = False,
    draft: DraftMemory = NO_DRAFT,
    step_bytes: int = 0,
) -> CacheSize:
    """Compute how many blocks there is memory for, and how long a sequence may be with them.

    Args:
        wanted: tokens that a sequence should be able to have.
        state_bytes: memory that each sequence takes beside its blocks.
        saves: whether states are saved too, as many as the batch has sequences if there is room.
        draft: the memory of a draft model.
        step_bytes: a step's GPU memory, without its copies of keys and values.

    Raises:
        MemoryLoadError: there is no room for two blocks.
    """
    size = settings.block_size
    block_bytes = sum(layer.block_bytes(size, loaded.dtype) for layer in layers.values())
    # Two at least: runners are tried in the second one.
    enough = max(2, settings.max_batch_size * -(-wanted // size))
    room = _cache_bytes(settings, loaded.device, draft)
    copied = 0
    if _measures(settings, loaded.device):
        room -= step_bytes
        # A layer's keys and values are copied to where its sequences have them in a row, while the last layer's copies
        # may not be free yet.
        copied = 2 * max((layer.block_bytes(size, loaded.dtype) for layer in layers.values()), default=0)
    saved = min(settings.max_batch_size, int(room * _SAVED_SHARE) // state_bytes) if saves and state_bytes else 0
    states = (settings.max_batch_size + saved) * state_bytes
    room -= states
    each_bytes = block_bytes + copied + draft.token_bytes * size
    blocks = settings.kv_blocks or min(enough, room // each_bytes if each_bytes else enough)
    if settings.ranks != 1:
        blocks = least(blocks, loaded.device)
    length = min(wanted, blocks * size)
    if blocks < 2:
        taken = f"a block of {size} tokens takes {each_bytes / 2**20:.1f} MiB"
        if states:
            taken += f", and the states of {settings.max_batch_size} sequences {states / 2**20:.1f} MiB"
        raise MemoryLoadError(f"no room for a KV cache: {taken}; set option.kv_cache_memory_mb")
    if length < wanted:
        log.warning("the KV cache has room for %d tokens: a sequence can't use the whole context of %d", length, wanted)
    reserved = blocks * block_bytes + states
    if loaded.device.type == "cpu" and reserved > (free := available_bytes()):
        log.warning(
            "the KV cache may grow to %d MiB, and %d MiB are free: see option.kv_cache_memory_mb",
            reserved >> 20,
            free >> 20,
        )
    memory = f"KV cache {blocks} blocks of {size} tokens ({blocks * block_bytes / 2**20:.0f} MiB)"
    if states:
        memory += f" and {settings.max_batch_size + saved} states ({states / 2**20:.0f} MiB)"
    return CacheSize(blocks, length, saved, reserved, f"context {length}, {memory}")


def _measures(settings: BuiltInSettings, device: torch.device) -> bool:
    """Whether the cache gets the rest of a GPU's memory."""
    return device.type == "cuda" and settings.kv_cache_memory_mb is None


def _cache_bytes(settings: BuiltInSettings, device: torch.device, draft: DraftMemory) -> int:
    """Bytes for this rank's part of the cache."""
    if not _measures(settings, device):
        return cpu_cache_bytes(settings) // settings.ranks
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    # This worker's share of the device, whatever others have taken of theirs by now; but no more than there is.
    utilization = settings.gpu_memory_utilization
    share = utilization * total / settings.workers - torch.cuda.memory_reserved(device)
    there = free - min(_LEFT_SHARE, 1 - utilization) * total
    if there < share:
        log.warning(
            "others use %s too: %d MiB are left for this cache, not the %d MiB that option.gpu_memory_utilization says",
            device,
            max(0, int(there)) >> 20,
            int(share) >> 20,
        )
    return max(0, int(min(share, there)) - draft.weight_bytes)
