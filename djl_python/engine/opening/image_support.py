"""What a model that takes images needs to be opened. Runs in the engine process, once."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from ..attention.lookup import set_attention
from ..checkpoints.loading import LoadedModel
from ..settings import BuiltInSettings as EngineSettings
from ..torch_backend.images import PagedImages
from ..torch_backend.paging import TRIAL_BLOCK, Paging
from ..transformers_private import attention_name
from .agreement import check_ids, tolerance
from .image_check import ImageCheck


@dataclass(frozen=True)
class ImageSupport:
    """For a model that takes images: the check of its runners, and what encodes images if it can be paged."""

    check: ImageCheck
    paged: PagedImages | None


def open_image_support(settings: EngineSettings, loaded: LoadedModel, own_attention: str) -> ImageSupport | None:
    if settings.image_example is None:
        return None
    model, example = loaded.model, settings.image_example
    current = attention_name(model.config.get_text_config(decoder=True))
    set_attention(model, own_attention)
    check = ImageCheck(model, example, check_ids(loaded)[0], tolerance(loaded, None))
    image_support = ImageSupport(check, PagedImages.open(model, example))
    set_attention(model, current)
    return image_support


def images_agree_paged(paging: Paging, image_support: ImageSupport) -> bool:
    """Whether the model reads images right when it runs on a paged cache."""
    if image_support.paged is None:
        return False
    with ExitStack() as trials:
        blocks = image_support.check.blocks(TRIAL_BLOCK)
        return image_support.check.agrees(
            lambda: trials.enter_context(paging.trial(blocks, image_support.paged)), TRIAL_BLOCK, whole=False
        )
