"""Opens the drafter that `option.speculative` names. Runs in the engine process, once."""

from __future__ import annotations

import logging
from typing import Final

import msgspec
import torch

from ...core.errors import ModelLoadError
from ..checkpoints.leaving import rounding
from ..checkpoints.loading import threads_of
from ..interface import Progress
from ..opening.open_model import open_model
from ..runner.opened_model import NATIVE, OpenedModel
from ..sampling.sampler import Sampler
from ..settings import BuiltInSettings
from .draft_model import ModelDrafter
from .ngram import NgramDrafter
from .speculation import Drafter, Speculation

log = logging.getLogger(__name__)

# Looking up costs nothing, so that repetitions may have many drafts at once.
_NGRAM_LENGTH: Final = 8
_MODEL_LENGTH: Final = 5


def open_speculation(
    settings: BuiltInSettings, opened: OpenedModel, sampler: Sampler, progress: Progress
) -> Speculation | None:
    """Open the drafter of the opened model; None without one.

    Raises:
        ModelLoadError: the draft model does not fit the model.
    """
    if settings.speculative == "none":
        return None
    if not opened.takes_drafts:
        log.warning("option.speculative=%s has no effect: %s", settings.speculative, opened.description)
        return None
    drafter: Drafter
    if settings.speculative == "ngram":
        drafter, length = NgramDrafter(), settings.spec_length or _NGRAM_LENGTH
    else:
        drafter, length = _open_model(settings, opened, sampler, progress), settings.spec_length or _MODEL_LENGTH
    return Speculation(drafter, length, opened.memory.max_model_len)


def _open_model(settings: BuiltInSettings, opened: OpenedModel, sampler: Sampler, progress: Progress) -> ModelDrafter:
    draft = open_model(
        msgspec.structs.replace(
            settings,
            model_path=settings.draft_model_path,
            quantize=rounding(settings) or "none",  # the model's checkpoint is of GPTQ or AWQ; this one need not be
            max_model_len=None,
            kv_blocks=opened.memory.kv_blocks,
            tensor_parallel_degree=1,
            placement="",
            pipeline_parallel_degree=1,
            image_example=None,
            enable_lora=False,  # its guesses are the base's
        ),
        progress,
    )
    if opened.info.runner != NATIVE:  # a draft model on native kernels needs one thread of torch's, the model all
        torch.set_num_threads(threads_of(settings))
    if draft.loaded.vocabulary != opened.loaded.vocabulary:
        raise ModelLoadError(
            f"option.draft_model_id: its vocabulary has {draft.loaded.vocabulary} tokens, the model's "
            f"{opened.loaded.vocabulary}; expected the same"
        )
    if not draft.takes_drafts:
        raise ModelLoadError(
            "option.draft_model_id: a draft model needs a KV cache that can be truncated where drafts were wrong; "
            f"recurrent states and transformers' own cache can't be: {draft.description}"
        )
    log.info("drafts by %s", draft.description)
    # Sequences change to long RoPE where the model's do. A draft model that changes elsewhere drafts up to there.
    short_context = draft.scheduling.short_context
    limit = short_context if short_context != opened.scheduling.short_context else 0
    return ModelDrafter(draft, sampler, limit or draft.memory.max_model_len, settings.block_size)
