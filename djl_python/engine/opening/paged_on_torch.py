"""Opens a model that torch runs over a paged KV cache. Runs in the engine process, once."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from ..native.file_mapping import releasing_after_use
from ..reading.call_errors import CALL_ERRORS
from ..torch_backend.model_runner import probe
from ..torch_backend.paging import TRIAL_BLOCK, Paging
from .cache_size import size_cache
from .candidate import OpeningRequest, Refusal
from .image_check import images_agree_paged
from .opened_model import OpenedModel, Scheduling, SequenceMemory, info_of, name_of
from .step_memory import step_bytes
from .torch_model import TorchModel


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
            blocks = 2 + len(request.reference.trial.ids) // TRIAL_BLOCK
            with paging.trial(blocks) as runner:
                if not request.reference.accepts(runner, blocks, TRIAL_BLOCK):
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
        taken = step_bytes(settings, loaded, request.length, lambda tokens: paging.trial(-(-tokens // TRIAL_BLOCK)))
        size = size_cache(
            settings, loaded, paging.layers, request.length, state_bytes, beside=request.beside, step_bytes=taken
        )
        cache = paging.cache(size.blocks, settings.block_size)
        return OpenedModel(
            loaded=loaded,
            runner=paging.runner(cache, None if images is None else images.paged),
            memory=SequenceMemory(size.length, size.blocks, share_prefixes=recurrent is None),
            scheduling=Scheduling(settings.max_prefill_tokens),
            info=info_of(loaded, settings, "torch-paged", loaded.weight_bytes, size.bytes),
            description=f"{name_of(loaded, settings)} on {loaded.device}, {size.description}",
            takes_images=images is not None,
            takes_drafts=recurrent is None,
            close=cache.close,
        )
