"""Opens the engine of encoders. Runs in the engine process, once."""

from __future__ import annotations

import logging
from typing import Final

from ..interface import Progress
from .batching import BatchingEncoder
from .choosing import choose_runner
from .loading import load_encoder
from .queue import FairQueue
from .settings import EncoderSettings

log = logging.getLogger(__name__)

#: Tokens computed at once: a GPU is full, and a CPU is as fast as with more, while another request waits for less.
_MAX_BATCH_TOKENS: Final = {"cpu": 1024}
_MAX_BATCH_TOKENS_OF_GPUS: Final = 16384


def open_encoder(settings: EncoderSettings, progress: Progress) -> BatchingEncoder:
    """Load the model, choose what runs it, and find out whether it can be batched with padding, if it needs any.

    Raises:
        ModelLoadError: it can't be loaded, or not as a setting says.
    """
    loaded = load_encoder(settings, progress)
    most = settings.max_batch_tokens or _MAX_BATCH_TOKENS.get(loaded.device.type, _MAX_BATCH_TOKENS_OF_GPUS)
    chosen = choose_runner(loaded, settings, most)
    pads = chosen.packs or chosen.model.pads()
    if not pads:
        log.info("this model's numbers depend on padding: texts of equal lengths alone are computed together")
    batch_size = settings.batch_size if settings.batch_size > 1 else None
    return BatchingEncoder(
        chosen.model,
        FairQueue(most, batch_size, pads=pads, packs=chosen.packs),
        at_once=settings.max_batch_size,
        pooling=chosen.model.pooling,
        fewest=settings.batch_size,
        delay_s=settings.max_batch_delay_s,
        info=chosen.info,
    )
