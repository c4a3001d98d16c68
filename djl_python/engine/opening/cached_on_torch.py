"""Opens a model that torch runs with transformers' own cache. Runs in the engine process, once."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import dataclass

from ..call_errors import CALL_ERRORS
from ..checkpoints.loading import products_rounding
from ..runner.cache_size import size_cache
from ..runner.opened_model import OpenedModel, Scheduling, SequenceMemory, info_of, name_of
from ..runner.opening_request import OpeningRequest, Refusal
from ..runner.probe import tolerance
from ..runner.probe_steps import probe_prompt
from ..torch_backend.cached_runner import CachedModelRunner
from .step_memory import step_bytes
from .torch_model import TorchModel

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CachedOnTorch:
    """Any model that `generate` can run. If continuing from its cache changes a model's logits, no cache is used."""

    model: TorchModel

    def open(self, request: OpeningRequest) -> OpenedModel | Refusal:
        settings, loaded = request.settings, request.loaded
        log.warning(
            "%s can't run on a paged cache: it runs with transformers' own, without sharing prefixes", request.name
        )
        takes_images = self._takes_images(request)
        runner = self._runner(request)
        shapes, state_bytes = runner.memory_of(probe_prompt(loaded.vocabulary))
        taken = step_bytes(settings, loaded, request.length, lambda tokens: nullcontext(runner)) + request.adapter_bytes
        # The cache has no blocks: their number only bounds the tokens in memory.
        size = size_cache(settings, loaded, shapes, request.length, state_bytes, step_bytes=taken)
        how = "transformers' own cache, sequences one after the other"
        opened = OpenedModel(
            loaded=loaded,
            runner=runner,
            memory=SequenceMemory(size.length, size.blocks, share_prefixes=False),
            scheduling=Scheduling(max_prefill_tokens=size.length, whole_prompts=not runner.in_pieces),
            info=info_of(loaded, settings, "transformers-cache", loaded.weight_bytes, size.bytes),
            description=f"{name_of(loaded, settings)} on {loaded.device}, context {size.length}, {how}",
            takes_images=takes_images,
        )
        return self.model.completed(opened)

    def _takes_images(self, request: OpeningRequest) -> bool:
        """Whether the model reads images right; with a word in the log if it takes them and does not."""
        images, loaded = self.model.images, request.loaded
        if images is None:
            return False
        agrees = images.check.agrees(
            lambda: CachedModelRunner(loaded.model, loaded.device), request.settings.block_size, whole=True
        )
        if not agrees:
            log.warning(
                "images are refused: the logits of %s after a prompt with an image are not those that it has in "
                "transformers",
                request.name,
            )
        return agrees

    def _runner(self, request: OpeningRequest) -> CachedModelRunner:
        """A runner that goes on from the model's cache, if that gives the logits that it has without one."""
        loaded, functions = request.loaded, self.model.functions
        allowed = tolerance(loaded, products_rounding(request.settings, loaded))
        without = CachedModelRunner(loaded.model, loaded.device, functions, keeps=False)
        try:
            prompt = probe_prompt(loaded.vocabulary)
            runner = CachedModelRunner.tried(loaded.model, loaded.device, functions, prompt, allowed)
        except CALL_ERRORS as error:
            log.info("%s does not go on from its cache: %s: %s", request.name, type(error).__name__, error)
            runner = without

        def agrees(tried: CachedModelRunner) -> bool:
            return request.reference.accepts(tried, 2, len(request.reference.probe.ids))

        # Where both disagree, the cache is not to blame: other products than the model's own choose other experts.
        if runner is without or (not agrees(runner) and agrees(without)):
            log.warning(
                "%s goes on from its cache with other logits than it has without: every step reads whole sequences",
                request.name,
            )
            return without
        return runner
