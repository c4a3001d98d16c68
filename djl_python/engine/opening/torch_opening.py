"""Opens a loaded model that torch runs, on a paged cache or with transformers' own.

Runs in the engine process, once.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import Final

from ..checkpoints.loading import LoadedModel, products_rounding
from ..checkpoints.misfits import MISFITS
from ..settings import BuiltInSettings as EngineSettings
from ..torch_backend.cached_runner import CachedModelRunner
from ..torch_backend.paging import TRIAL_BLOCK, Paging
from ..torch_backend.recurrent import ModelContext
from .agreement import Agreement, check_ids, tolerance
from .cache_size import size_cache
from .draft_size import Beside
from .image_support import ImageSupport
from .opened_runner import OpenedRunner, name_of
from .step_memory import step_bytes

log = logging.getLogger(__name__)

_ROWS_GROWTH: Final = 3  # memory of `cache_rows` for that of its tokens: 2.6 was seen


def open_paged(
    settings: EngineSettings, paging: Paging, wanted: int, image_support: ImageSupport | None, beside: Beside
) -> OpenedRunner:
    """Open the model on a paged cache, without shared prefixes and drafts if it has states: none are kept per block."""
    loaded, recurrent = paging.loaded, paging.recurrent
    state_bytes = 0 if recurrent is None else recurrent.state_bytes
    taken = step_bytes(settings, loaded, wanted, lambda tokens: paging.trial(-(-tokens // TRIAL_BLOCK)))
    size = size_cache(settings, loaded, paging.layers, wanted, state_bytes, beside=beside, step_bytes=taken)
    cache = paging.cache(size.blocks, settings.block_size)
    return OpenedRunner(
        loaded=loaded,
        kind="torch-paged",
        weight_bytes=loaded.weight_bytes,
        cache_bytes=size.bytes,
        runner=paging.runner(cache, None if image_support is None else image_support.paged),
        max_model_len=size.length,
        max_prefill_tokens=settings.max_prefill_tokens,
        kv_blocks=size.blocks,
        share_prefixes=recurrent is None,
        description=f"{name_of(loaded, settings)} on {loaded.device}, {size.description}",
        takes_images=image_support is not None,
        takes_drafts=recurrent is None,
        close=cache.close,
    )


def open_cached(
    settings: EngineSettings,
    loaded: LoadedModel,
    wanted: int,
    image_support: ImageSupport | None,
    functions: ModelContext,
    agreement: Agreement,
) -> OpenedRunner:
    """Open with transformers' cache. It has no blocks: their number only bounds the tokens in memory.

    A model that does not go on from its cache as it reads the whole is run without one.
    """
    takes_images = image_support is not None and image_support.check.agrees(
        lambda: CachedModelRunner(loaded.model, loaded.device), settings.block_size, whole=True
    )
    if image_support is not None and not takes_images:
        log.warning(
            "images are refused: the logits of %s after a prompt with an image are not those it has in transformers",
            type(loaded.model).__name__,
        )
    allowed = tolerance(loaded, products_rounding(settings, loaded))
    without = CachedModelRunner(loaded.model, loaded.device, functions, keeps=False)
    try:
        runner = CachedModelRunner.tried(loaded.model, loaded.device, functions, check_ids(loaded), allowed)
    except MISFITS as misfit:
        log.info("%s does not go on from its cache: %s: %s", type(loaded.model).__name__, type(misfit).__name__, misfit)
        runner = without

    def agrees(tried: CachedModelRunner) -> bool:
        return agreement.with_runner(tried, 2, len(agreement.trial.ids))

    # Where both disagree, the cache is not to blame: other products than the model's own choose other experts.
    if runner is without or (not agrees(runner) and agrees(without)):
        log.warning(
            "%s goes on from its cache with other logits than it has without: every step reads whole sequences",
            type(loaded.model).__name__,
        )
        runner = without
    shapes, state_bytes = runner.memory_of(check_ids(loaded))
    taken = step_bytes(settings, loaded, wanted, lambda tokens: nullcontext(runner))
    # Rows that are held together have room for more keys, and all are as wide as the longest.
    size = size_cache(settings, loaded, shapes, wanted, state_bytes, step_bytes=taken, growth=_ROWS_GROWTH)
    how = "transformers' own cache" + ("" if runner.together else ", sequences one after the other")
    return OpenedRunner(
        loaded=loaded,
        kind="transformers-cache",
        weight_bytes=loaded.weight_bytes,
        cache_bytes=size.bytes,
        runner=runner,
        max_model_len=size.length,
        max_prefill_tokens=size.length,
        kv_blocks=size.blocks,
        share_prefixes=False,
        description=f"{name_of(loaded, settings)} on {loaded.device}, context {size.length}, {how}",
        takes_images=takes_images,
        whole_prompts=not runner.in_pieces,
    )
