"""Checks that a native or paged runner gets the logits that its model gets. Runs in the engine process, once.

If part of a model was replaced wrongly, the logits have little to do with the model's own. Rounding changes logits too:
little in a trained model, much in one with random weights, which may amplify every error. So logits far from the
model's own are compared with its fp32 logits: they pass if they are about as near to those as its own are.
`native/program/proof` has compared a native program before; here it is seen to be packed and rounded as it should.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, Final

import torch
from torch import Tensor

from ...core.errors import ModelLoadError
from ..batch.scheduler import Chunk
from ..checkpoints.loading import LoadedModel, set_attention
from ..checkpoints.misfits import MISFITS
from ..checkpoints.quantization import Quantize
from ..devices.free_memory import available_bytes
from ..native.file_mapping import releasing_after_use
from ..torch_backend.attention import PAGED, watching
from ..torch_backend.model_runner import ModelRunner
from .exact import ExactModel
from .trial import Trial, distance, read_in_pieces

log = logging.getLogger(__name__)

_SHORT: Final = 12
# How far from the model's own logits a runner's may be (`trial.distance`). Another order of
# operations costs up to 0.0013 in bf16, rounded weights 0.003 (8 bits) and 0.1 (4 bits) in a trained model, and 0.3 and
# 0.9 in models with random weights and attention sinks; what has nothing to do with the model is at 1 and more.
_MOST: Final[dict[Quantize | None, float]] = {None: 0.05, "int8": 0.5, "int4": 1.0}
# Of a runner whose structure has not been proved: a state that is lost from one piece to the next costs 0.01.
_MOST_UNPROVED: Final = 0.005
_MOST_IN_FP32: Final = 5e-4
# Rounding that costs more than this is told: answers are not the model's.
_MUCH: Final = 0.3
# Share of the free memory that the model's weights may take in fp32.
_EXACT_SHARE: Final = 0.5
# Up to this many bytes of fp32 weights, fp32 logits are computed before they are known to be needed: it takes a second.
_EXACT_AT_ONCE: Final = 4 << 30
# How many times as far as the model's own logits a runner's may be from those in fp32: chance plays a part in both.
_AS_NEAR: Final = 4.0
# Greatest distance of either from the fp32 logits at which comparing still tells something.
_MAX_USEFUL_DISTANCE: Final = 1.0


def check_ids(loaded: LoadedModel) -> list[int]:
    """A few different token ids, the same at every start."""
    return [(7 * i + 3) % loaded.vocabulary for i in range(_SHORT)]


def tolerance(loaded: LoadedModel, quantize: Quantize | None) -> float:
    """How much logits may differ if computed in another way, relative to the greatest of them."""
    return 1e-3 if loaded.dtype == torch.float32 and quantize is None else 0.1


def near(found: Tensor, expected: Tensor, allowed: float) -> bool:
    """Whether logits differ by at most `allowed`, relative to the greatest expected logit, if above 1, else to 1."""
    return bool((found - expected).abs().max() <= allowed * max(1.0, float(expected.abs().max())))


def step(runner: ModelRunner, *chunks: Chunk) -> Tensor:
    """Run a trial step, and count the chunks' tokens as computed; returns the logits."""
    logits = runner.run(list(chunks))
    for chunk in chunks:
        chunk.sequence.computed += chunk.length
    return logits


@torch.inference_mode()
def run_once(loaded: LoadedModel, ids: list[int] | None = None) -> Any:
    """Run a short prompt with the attention that the model has now, and return the model's output."""
    given = torch.tensor([check_ids(loaded) if ids is None else ids], device=loaded.device)
    with watching(lambda *_: None):
        return loaded.model(input_ids=given, use_cache=False)


class Agreement:
    """The model's own logits at every position of a text, as a reference for those of runners.

    Args:
        quantize: what a native program rounds to, if it does.

    Raises:
        ModelLoadError: the model's own logits are not numbers.
    """

    def __init__(self, loaded: LoadedModel, quantize: Quantize | None, trial: Trial) -> None:
        self.trial = trial
        self._loaded = loaded
        self._quantize = quantize
        self._reference = _logits(loaded, trial)
        if self._reference.isnan().all():
            raise ModelLoadError(
                f"{type(loaded.model).__name__}: its logits are not numbers (NaN) in "
                f"{str(loaded.dtype).removeprefix('torch.')}: its weights are damaged, or its numbers overflow "
                "(option.dtype chooses others)"
            )

    def before_changes(self) -> None:
        """Get the fp32 logits, if they are cheap, before the model's modules are replaced; else do without them."""
        size = 4 * sum(each.numel() for each in self._loaded.model.parameters())
        self._exact = None if self._quantize is not None or size > _EXACT_AT_ONCE else self._exact

    def rebase_on_rounded(self) -> None:
        """Compute the reference again: the model's own weights have been rounded since."""
        self._reference = _logits(self._loaded, self.trial)

    def with_runner(self, runner: ModelRunner, blocks: int, block_size: int, *, proved: bool = False) -> bool:
        """Whether a runner that reads the text in pieces gets the reference logits.

        Logits of rounded weights are only near the reference, even where the model's own weights are rounded: what
        torch's kernels round depends on the number of rows.

        Args:
            blocks: of the runner's cache; the text is read into those from 1 on.
            proved: what it computes has been proved, but for its rounding.
        """
        ids = self.trial.ids[: (blocks - 1) * block_size]
        try:
            found = read_in_pieces(runner, ids, block_size)
            off = distance(found, self._reference[: len(ids)])
        except MISFITS as misfit:
            log.info("%s: %s", type(misfit).__name__, misfit)
            return False
        most = _MOST[self._quantize]
        if self._quantize is None and self._loaded.dtype == torch.float32:
            most = _MOST_IN_FP32
        elif self._quantize is None and not proved:
            most = _MOST_UNPROVED
        log.info("logits differ from the model's own by %.1e (0: not at all, 1: as much as unrelated ones)", off)
        if off > most:
            return self._as_near(found)
        if off > _MUCH:
            log.warning(
                "%s weights predict other tokens than %s's own: logits differ by %.2f (1: as much as unrelated ones)",
                self._quantize,
                type(self._loaded.model).__name__,
                off,
            )
        return True

    def _as_near(self, logits: Tensor) -> bool:
        """Whether `logits` are about as near to the fp32 logits as the model's own are; False without fp32 logits."""
        if self._quantize is not None or self._exact is None:
            return False
        exact, rows = self._exact[: len(logits)], self.trial.rows
        own, theirs = (distance(each[: len(logits), rows], exact) for each in (self._reference, logits))
        return max(own, theirs) <= _MAX_USEFUL_DISTANCE and theirs <= _AS_NEAR * own

    @functools.cached_property
    def _exact(self) -> Tensor | None:
        """The model's logits in fp32; None if it is fp32, not on a CPU, or too large."""
        loaded = self._loaded
        size = 4 * sum(each.numel() for each in loaded.model.parameters())
        if loaded.dtype == torch.float32 or loaded.device.type != "cpu" or size > available_bytes() * _EXACT_SHARE:
            return None
        return ExactModel(loaded, self.trial).logits()


@torch.inference_mode()
def _logits(loaded: LoadedModel, trial: Trial) -> Tensor:
    """fp32 logits (tokens, vocabulary) of the text, with an attention of transformers' own."""
    configured = loaded.model.config.get_text_config(decoder=True)._attn_implementation
    if configured == PAGED:
        set_attention(loaded.model, "eager")
    try:
        with releasing_after_use(loaded.model):
            output = run_once(loaded, trial.ids)
    finally:
        set_attention(loaded.model, configured)
    logits: Tensor = output.logits[0].float()
    return logits
