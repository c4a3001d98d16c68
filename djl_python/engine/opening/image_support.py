"""What a model that takes images needs to be opened. Runs in the engine process, once."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from ..checkpoints.loading import LoadedModel
from ..settings import BuiltInSettings as EngineSettings
from ..torch_backend.images import PagedImages
from ..torch_backend.paging import TRIAL_BLOCK, Paging
from ..torch_backend.trials import trial_prompt
from .image_check import ImageCheck
from .trial import tolerance


@dataclass(frozen=True)
class ImageSupport:
    """For a model that takes images: the check of its runners, and what encodes images if it can be paged."""

    check: ImageCheck
    paged: PagedImages | None


def open_image_support(settings: EngineSettings, loaded: LoadedModel) -> ImageSupport | None:
    """What a model that has an attention of transformers' own needs; None if it takes no images."""
    if settings.image_example is None:
        return None
    example = settings.image_example
    check = ImageCheck(loaded.model, example, trial_prompt(loaded.vocabulary)[0], tolerance(loaded, None))
    return ImageSupport(check, PagedImages.open(loaded.model, example))


def images_agree_paged(paging: Paging, image_support: ImageSupport) -> bool:
    """Whether the model reads images right when it runs on a paged cache."""
    if image_support.paged is None:
        return False
    with ExitStack() as trials:
        blocks = image_support.check.blocks(TRIAL_BLOCK)
        return image_support.check.agrees(
            lambda: trials.enter_context(paging.trial(blocks, image_support.paged)), TRIAL_BLOCK, whole=False
        )
