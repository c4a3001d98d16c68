"""Chooses how a loaded model is run, sizes its cache, and checks that it computes what the model computes.

Runs in the engine process, once. On a CPU, a model that can be read as a recipe runs as a native program. Elsewhere, a
model whose attention can be replaced runs on torch over the paged cache; the few that can't (a position bias inside the
attention, a recurrent state) run with transformers' own cache, one sequence after the other.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import torch
from torch import Tensor

from ..errors import ModelLoadError
from ..types import SamplingParams
from .attention import KVCache, LayerShape
from .cached_runner import CachedModelRunner
from .loading import LoadedModel, can_page, load_model
from .model_runner import ModelRunner, PagedModelRunner, probe
from .native.build import UnavailableError
from .native.program import KEYS, Program
from .native.read import read_recipe
from .native.recipe import NotUnderstoodError
from .native.runner import NativeModelRunner
from .rolling_batch import EngineSettings, Progress
from .scheduler import Chunk
from .sequence import Sequence

log = logging.getLogger(__name__)

# Without a setting, the cache may take this share of the memory that is free once the weights are loaded. It is
# reserved, not taken: the operating system gives a block's memory when the block is first used.
CPU_CACHE_SHARE: Final = 0.4
_CHECK_TOKENS: Final = 12
_CHECK_BLOCK: Final = 16


@dataclass(frozen=True)
class OpenedRunner:
    """A model ready to step."""

    loaded: LoadedModel
    weight_bytes: int  # what a decode step has to read at least
    runner: ModelRunner
    max_model_len: int
    max_prefill_tokens: int
    kv_blocks: int
    share_prefixes: bool
    description: str


def open_runner(settings: EngineSettings, progress: Progress) -> OpenedRunner:
    """Load the model, decide how to run it, and make its cache.

    Raises:
        ModelLoadError: the checkpoint or a setting does not fit.
    """
    loaded = load_model(settings, progress)
    if settings.max_model_len and settings.max_model_len > loaded.context:
        raise ModelLoadError(
            f"option.max_model_len={settings.max_model_len} is more than the checkpoint's context of {loaded.context}"
        )
    progress("preparing the KV cache", 0, 0)
    wanted = settings.max_model_len or loaded.context
    reference = _reference_logits(loaded)
    if can_page(loaded):
        layers = probe(loaded.model, loaded.device)
        if layers:
            opened = _open_native(settings, loaded, layers, wanted, reference)
            if opened is not None:
                return opened
            cache = KVCache(list(layers.values()), 2, _CHECK_BLOCK, loaded.dtype, loaded.device)
            trial = PagedModelRunner(loaded.model, layers, cache, loaded.device)
            if _agrees(loaded, trial, reference):
                return _open_paged(settings, loaded, layers, wanted)
    log.warning(
        "%s can't run on a paged cache: sequences run one after the other, with transformers' own cache",
        type(loaded.model).__name__,
    )
    return _open_cached(settings, loaded, wanted)


def _open_native(
    settings: EngineSettings, loaded: LoadedModel, layers: dict[int, LayerShape], wanted: int, reference: Tensor
) -> OpenedRunner | None:
    """The model as a native program; None, with the reason in the log, where that can't be."""
    if settings.kernels == "torch":
        return None
    try:
        if loaded.device.type != "cpu" or loaded.dtype not in (torch.bfloat16, torch.float32):
            raise UnavailableError(f"{loaded.dtype} on {loaded.device} has none")
        if settings.block_size % KEYS:
            raise UnavailableError(f"option.block_size={settings.block_size} is not a multiple of {KEYS}")
        size = _size_cache(settings, loaded, layers, wanted)
        program = Program(
            read_recipe(loaded.model, wanted),
            loaded.dtype,
            blocks=size.blocks,
            block_size=settings.block_size,
            max_tokens=settings.max_batch_size + max(settings.max_prefill_tokens, _CHECK_TOKENS),
            threads=torch.get_num_threads(),
        )
    except (UnavailableError, NotUnderstoodError) as reason:
        if settings.kernels == "native":
            raise ModelLoadError(f"option.kernels=native: {reason}") from reason
        log.info("no native kernels: %s; the model runs on torch", reason)
        return None
    runner = NativeModelRunner(program, settings.block_size)
    if not _agrees(loaded, runner, reference):
        program.close()
        log.warning("the native kernels disagree with %s: it runs on torch", type(loaded.model).__name__)
        return None
    # Its weights are in the program, and idle threads of torch's would only spin beside the program's.
    weight_bytes = loaded.weight_bytes
    for parameter in loaded.model.parameters():
        parameter.data = torch.empty(0, dtype=parameter.dtype)
    torch.set_num_threads(1)
    return OpenedRunner(
        loaded=loaded,
        weight_bytes=weight_bytes,
        runner=runner,
        max_model_len=size.length,
        max_prefill_tokens=settings.max_prefill_tokens,
        kv_blocks=size.blocks,
        share_prefixes=True,
        description=f"{_name(loaded)} on cpu (native kernels), {size.description}",
    )


@dataclass(frozen=True)
class _CacheSize:
    blocks: int
    length: int
    description: str


def _size_cache(
    settings: EngineSettings, loaded: LoadedModel, layers: dict[int, LayerShape], wanted: int
) -> _CacheSize:
    """How many blocks there is room for, and how long a sequence may be with them.

    Raises:
        ModelLoadError: not even one block's worth.
    """
    size = settings.block_size
    block_bytes = KVCache.bytes_per_block(list(layers.values()), size, loaded.dtype)
    enough = settings.max_batch_size * -(-wanted // size)
    blocks = min(enough, _cache_bytes(settings, loaded.device) // block_bytes)
    length = min(wanted, blocks * size)
    if blocks < 2:
        raise ModelLoadError(
            f"no room for a KV cache: a block of {size} tokens takes {block_bytes / 2**20:.1f} MiB; "
            "set option.kv_cache_memory_mb"
        )
    if length < wanted:
        log.warning("the KV cache has room for %d tokens: a sequence can't use the whole context of %d", length, wanted)
    memory = f"KV cache {blocks} blocks of {size} tokens ({blocks * block_bytes / 2**20:.0f} MiB)"
    return _CacheSize(blocks, length, f"context {length}, {memory}")


def _name(loaded: LoadedModel) -> str:
    return f"{type(loaded.model).__name__}, {str(loaded.dtype).removeprefix('torch.')}"


def _open_paged(
    settings: EngineSettings, loaded: LoadedModel, layers: dict[int, LayerShape], wanted: int
) -> OpenedRunner:
    size = _size_cache(settings, loaded, layers, wanted)
    cache = KVCache(list(layers.values()), size.blocks, settings.block_size, loaded.dtype, loaded.device)
    return OpenedRunner(
        loaded=loaded,
        weight_bytes=loaded.weight_bytes,
        runner=PagedModelRunner(loaded.model, layers, cache, loaded.device),
        max_model_len=size.length,
        max_prefill_tokens=settings.max_prefill_tokens,
        kv_blocks=size.blocks,
        share_prefixes=True,
        description=f"{_name(loaded)} on {loaded.device}, {size.description}",
    )


def _open_cached(settings: EngineSettings, loaded: LoadedModel, wanted: int) -> OpenedRunner:
    """Blocks bound only how many tokens are in memory; a prompt is read in one piece (recurrent states need it)."""
    size = settings.block_size
    return OpenedRunner(
        loaded=loaded,
        weight_bytes=loaded.weight_bytes,
        runner=CachedModelRunner(loaded.model, loaded.device),
        max_model_len=wanted,
        max_prefill_tokens=wanted,
        kv_blocks=settings.max_batch_size * -(-wanted // size),
        share_prefixes=False,
        description=f"{_name(loaded)} on {loaded.device}, context {wanted}, transformers' own cache",
    )


def _cache_bytes(settings: EngineSettings, device: torch.device) -> int:
    if settings.kv_cache_memory_mb is not None:
        return settings.kv_cache_memory_mb * 2**20
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return max(0, int(free - (1 - settings.gpu_memory_utilization) * total))
    return int(_available_bytes() * CPU_CACHE_SHARE)


def _available_bytes() -> int:
    """Memory that is free: the machine's, or what the container (cgroup v2) may still take if that is less."""
    available = int(psutil.virtual_memory().available)
    limit, current = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and (text := limit.read_text().strip()) != "max":
        available = min(available, max(0, int(text) - int(current.read_text())))
    return available


def _check_ids(loaded: LoadedModel) -> list[int]:
    """A few different ids, the same at every start."""
    return [(7 * i + 3) % loaded.vocabulary for i in range(_CHECK_TOKENS)]


@torch.inference_mode()
def _reference_logits(loaded: LoadedModel) -> Tensor:
    """The model's own logits after a short prompt, before anything of it is replaced."""
    output = loaded.model(input_ids=torch.tensor([_check_ids(loaded)], device=loaded.device), use_cache=False)
    logits: Tensor = output.logits[0, -1].float()
    return logits


def _agrees(loaded: LoadedModel, runner: ModelRunner, reference: Tensor) -> bool:
    """Whether a runner, reading the prompt in pieces into its block 1, comes to the model's own logits."""
    sequence = Sequence(0, _check_ids(loaded), _CHECK_TOKENS, SamplingParams(max_new_tokens=1), blocks=[1])
    for length in (_CHECK_TOKENS - 5, 4, 1):
        logits = runner.run([Chunk(sequence, length)])
        sequence.computed += length
    difference = (logits[0].float() - reference).abs().max()
    tolerance = (1e-3 if loaded.dtype == torch.float32 else 0.1) * max(1.0, float(reference.abs().max()))
    return bool(difference <= tolerance)
