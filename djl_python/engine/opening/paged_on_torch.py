"""Opens a model that torch runs over a paged KV cache. Runs in the engine process, once."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import torch

from ..call_errors import CALL_ERRORS
from ..runner.cache_size import size_cache
from ..runner.file_mapping import releasing_after_use
from ..runner.opened_model import OpenedModel, Scheduling, SequenceMemory, info_of, name_of
from ..runner.opening_request import OpeningRequest, Refusal
from ..runner.probe import LONGEST
from ..settings import BuiltInSettings
from ..torch_backend.cuda_graphs import cuda_recording
from ..torch_backend.paged_runner import PagedModelRunner, probe
from ..torch_backend.paging import PROBE_BLOCK, Paging
from ..torch_backend.step_graphs import SIZES, TRIED_SIZES
from .image_check import images_agree_paged
from .step_memory import step_bytes
from .torch_model import TorchModel

log = logging.getLogger(__name__)

# Most drafts of a sequence where no setting says it.
_DRAFTS: Final = 8


@dataclass(frozen=True)
class PagedOnTorch:
    """Any model whose attention can be replaced; hybrids with their states beside the cache."""

    model: TorchModel

    def open(self, request: OpeningRequest) -> OpenedModel | Refusal:
        with ExitStack() as undo:
            if not request.page_attention_(undo):
                return Refusal("its attention can't be replaced")
            paging = self._paging(request)
            if isinstance(paging, Refusal):
                return paging
            with paging.probe(_probe_blocks(request)) as runner:
                if not request.reference.accepts(runner, _probe_blocks(request), PROBE_BLOCK):
                    return Refusal("its logits are not its own there")
            if self.model.images is not None and not images_agree_paged(paging, self.model.images):
                return Refusal("its logits after an image are not its own there")
            opened = self._opened(request, paging)
            undo.pop_all()
        return self.model.completed(opened)

    def _paging(self, request: OpeningRequest) -> Paging | Refusal:
        """The model's layers with attention and with states."""
        loaded = request.loaded
        try:
            with releasing_after_use(loaded.model):
                layers, recurrent = probe(loaded.model, loaded.device, request.length)
        except CALL_ERRORS as error:
            return Refusal(f"{type(error).__name__}: {error}")
        if not layers:
            return Refusal("it has no attention")
        if recurrent is not None:
            recurrent.functions = self.model.functions
        return Paging(loaded, layers, recurrent, self.model.made_cache)

    def _opened(self, request: OpeningRequest, paging: Paging) -> OpenedModel:
        """The model, without shared prefixes and drafts if it has states: none are kept per block."""
        settings, loaded, recurrent, images = request.settings, request.loaded, paging.recurrent, self.model.images
        state_bytes = 0 if recurrent is None else recurrent.state_bytes
        taken = step_bytes(settings, loaded, request.length, lambda tokens: paging.probe(-(-tokens // PROBE_BLOCK)))
        recorded_bytes = _recorded_bytes(request, paging)
        size = size_cache(
            settings, loaded, paging.layers, request.length, state_bytes, draft=request.draft,
            step_bytes=taken + (recorded_bytes or 0) + request.adapter_bytes,
        )  # fmt: skip
        cache = paging.cache(size.blocks, settings.block_size)
        runner = paging.runner(cache, None if images is None else images.paged)
        blocks = settings.max_batch_size * -(-size.length // settings.block_size)
        recorded = recorded_bytes is not None and _record(runner, request, SIZES, blocks)
        name = "torch-paged (CUDA graphs)" if recorded else "torch-paged"
        return OpenedModel(
            loaded=loaded,
            runner=runner,
            memory=SequenceMemory(size.length, size.blocks, share_prefixes=recurrent is None),
            scheduling=Scheduling(settings.max_prefill_tokens),
            info=info_of(loaded, settings, name, loaded.weight_bytes, size.bytes),
            description=f"{name_of(loaded, settings)} on {loaded.device}, {size.description}",
            takes_images=images is not None,
            takes_drafts=recurrent is None,
            close=cache.close,
        )


def _recorded_bytes(request: OpeningRequest, paging: Paging) -> int | None:
    """The GPU memory of recorded steps, in addition to others; None if the model's steps are not recorded."""
    settings, loaded = request.settings, request.loaded
    if loaded.device.type != "cuda" or settings.enforce_eager or paging.recurrent is not None:
        return None
    if settings.ranks != 1 or settings.placement or loaded.offloaded:
        return None  # other devices don't record steps
    blocks = _probe_blocks(request)
    with paging.probe(blocks) as runner:
        before = torch.cuda.memory_reserved(loaded.device)
        if not _record(runner, request, TRIED_SIZES, blocks):
            return None
        taken = torch.cuda.memory_reserved(loaded.device) - before
        if request.reference.accepts(runner, blocks, PROBE_BLOCK):
            return taken
    log.warning("%s runs without CUDA graphs, which is slower: its logits are not its own there", request.name)
    return None


def _record(runner: PagedModelRunner, request: OpeningRequest, sizes: Sequence[int], blocks: int) -> bool:
    """Have steps of these sizes recorded, over as many blocks at most; returns whether that is possible."""
    try:
        runner.record_steps(sizes, cuda_recording(request.loaded.device), _max_rows(request.settings), blocks)
    except (*CALL_ERRORS, ImportError, OSError) as error:  # OSError: Triton can't write what it compiles
        log.warning("%s runs without CUDA graphs, which is slower: %s: %s", request.name, type(error).__name__, error)
        return False
    return True


def _probe_blocks(request: OpeningRequest) -> int:
    """Blocks of a cache that the probe's text has room in."""
    return 2 + len(request.reference.probe.ids) // PROBE_BLOCK


def _max_rows(settings: BuiltInSettings) -> int:
    """Most positions of a recorded step whose logits are wanted: of all sequences with drafts, or a probe's text."""
    drafts = 0 if settings.speculative == "none" else settings.spec_length or _DRAFTS
    return max(LONGEST, settings.max_batch_size * (1 + drafts))
