"""Checks that a runner reads images as the model does, and makes the image encoder of paged runners.

Runs in the engine process, once, at load.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from ...core.types import ImagePrompt, SamplingParams
from ..batch.chunk import SequenceChunk
from ..batch.sequence import Sequence
from ..call_errors import CALL_ERRORS
from ..checkpoints.loading import LoadedModel
from ..runner.model_runner import ModelRunner
from ..runner.probe import tolerance
from ..runner.probe_steps import are_close, probe_prompt, probe_step
from ..settings import BuiltInSettings
from ..torch_backend.images import PagedImages, model_inputs
from ..torch_backend.paging import PROBE_BLOCK, Paging

log = logging.getLogger(__name__)

_NEIGHBOUR_TOKENS: Final = 4


class ImageCheck:
    """The model's own logits after a prompt with an image, after one without, and after one token more of each.

    Make it while the model has its own attention.

    Args:
        next_id: any token.
        tolerance: how much logits may differ, relative to the greatest if that is above 1.
    """

    def __init__(self, model: Any, example: ImagePrompt, next_id: int, tolerance: float) -> None:
        self._example = example
        self._neighbour = example.ids[-_NEIGHBOUR_TOKENS:]
        self._next_id = next_id
        self._tolerance = tolerance
        self._reference = self._logits(model)

    def blocks(self, block_size: int) -> int:
        """How many blocks the cache of a probing runner must have."""
        return -(-(len(self._example.ids) + 1) // block_size) + 2

    def agrees(self, make_runner: Callable[[], ModelRunner], block_size: int, *, whole: bool) -> bool:
        """Whether a runner gets the same logits when it runs both prompts side by side.

        Args:
            make_runner: makes the runner; it may raise whatever the model's code raises.
            whole: read the prompt at once; otherwise in two pieces, the first of which ends before the image does.
        """
        try:
            logits = self._run(make_runner(), block_size, whole)
        except CALL_ERRORS as error:
            log.info("%s: %s", type(error).__name__, error)
            return False
        return are_close(logits, self._reference, self._tolerance)

    @torch.inference_mode()
    def _logits(self, model: Any) -> Tensor:
        """Logits of both sequences, after their prompts and after one token more: (4, vocabulary)."""
        rows = []
        for prompt, images in ((self._example.ids, self._example.images), (self._neighbour, None)):
            ids = [*prompt, self._next_id]
            inputs = {} if images is None else model_inputs(images, len(ids), model)
            output = model(input_ids=torch.tensor([ids], device=model.device), use_cache=False, **inputs)
            rows.append(output.logits[0, -2:].float())
        return torch.cat(rows)

    def _run(self, runner: ModelRunner, block_size: int, whole: bool) -> Tensor:
        """The same logits, by a runner."""
        ids, images = self._example.ids, self._example.images
        last = self.blocks(block_size) - 1
        sampling = SamplingParams(max_new_tokens=2)
        seeing = Sequence(0, list(ids), len(ids), sampling, images=images, blocks=list(range(1, last)))
        neighbour = Sequence(1, list(self._neighbour), _NEIGHBOUR_TOKENS, sampling, blocks=[last])
        first = len(ids) if whole else max(1, images.end - 2)
        rows = probe_step(runner, SequenceChunk(seeing, first), SequenceChunk(neighbour, _NEIGHBOUR_TOKENS))
        if not whole:
            rows = torch.cat([probe_step(runner, SequenceChunk(seeing, len(ids) - first)), rows])
        for sequence in (seeing, neighbour):
            sequence.tokens.append(self._next_id)
        following = probe_step(runner, SequenceChunk(seeing, 1), SequenceChunk(neighbour, 1))
        for sequence in (seeing, neighbour):
            runner.forget(sequence)
        return torch.stack([rows[0], following[0], rows[1], following[1]]).float()


@dataclass(frozen=True)
class ImageSupport:
    """For a model that takes images: the check of its runners, and the image encoder if it can be paged."""

    check: ImageCheck
    paged: PagedImages | None


def open_image_support(settings: BuiltInSettings, loaded: LoadedModel) -> ImageSupport | None:
    """The image support of a model with transformers' own attention; None if it takes no images."""
    if settings.image_example is None:
        return None
    example = settings.image_example
    check = ImageCheck(loaded.model, example, probe_prompt(loaded.vocabulary)[0], tolerance(loaded, None))
    return ImageSupport(check, PagedImages.open(loaded.model, example))


def images_agree_paged(paging: Paging, image_support: ImageSupport) -> bool:
    """Whether the model reads images right when it runs on a paged cache."""
    if image_support.paged is None:
        return False
    with ExitStack() as probes:
        blocks = image_support.check.blocks(PROBE_BLOCK)
        return image_support.check.agrees(
            lambda: probes.enter_context(paging.probe(blocks, image_support.paged)), PROBE_BLOCK, whole=False
        )
