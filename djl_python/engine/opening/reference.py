"""A model's own logits, which whatever runs it has to compute. Runs in the engine process, once.

If part of a model was replaced wrongly, the logits have little to do with the model's own. Rounding changes logits too:
little in a trained model, much in one with random weights, which may amplify every error. So logits far from the
model's own are compared with its fp32 logits: they pass if they are about as near to those as its own are.
`proof` has compared a native program before; here it is seen to be packed and rounded as it should.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from ...core.errors import ModelLoadError
from ..checkpoints.loading import LoadedModel
from ..checkpoints.quantization import Quantize
from ..devices.free_memory import available_bytes
from ..native.file_mapping import releasing_after_use
from ..reading.call_errors import CALL_ERRORS
from ..torch_backend.model_runner import ModelRunner
from .exact import ExactModel
from .trial import Trial, distance, read_in_pieces

log = logging.getLogger(__name__)

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


@dataclass(frozen=True)
class Reference:
    """A model's own logits at every position of a text.

    Attributes:
        model: the name of its class.
        logits: (tokens, vocabulary) fp32.
        quantize: what its runners' products round to, if they do.
        exact: gives the logits of the trial's rows in fp32, (tokens, rows); None if the model is fp32, not on a CPU,
            not whole, or too large. They are computed when they are first asked for, from the model as it is then.
    """

    model: str
    dtype: torch.dtype
    trial: Trial
    logits: Tensor
    quantize: Quantize | None
    exact: Callable[[], Tensor | None]

    @classmethod
    def of(cls, loaded: LoadedModel, quantize: Quantize | None, trial: Trial) -> Reference:
        """The logits of a model that has an attention of transformers' own.

        Raises:
            ModelLoadError: they are not numbers.
        """
        logits, name = _logits(loaded, trial), type(loaded.model).__name__
        if logits.isnan().all():
            raise ModelLoadError(
                f"{name}: its logits are not numbers (NaN) in {str(loaded.dtype).removeprefix('torch.')}: "
                "its weights are damaged, or its numbers overflow (option.dtype chooses others)"
            )
        exact = functools.cache(functools.partial(_exact_logits, loaded, trial))
        return cls(name, loaded.dtype, trial, logits, quantize, exact)

    def settled(self, loaded: LoadedModel) -> Reference:
        """The reference for when the model has been changed: with its fp32 logits if they are cheap, or without."""
        cheap = self.quantize is None and _fp32_bytes(loaded) <= _EXACT_AT_ONCE
        exact = self.exact() if cheap else None
        return replace(self, exact=lambda: exact)

    def accepts(self, runner: ModelRunner, blocks: int, block_size: int, *, proved: bool = False) -> bool:
        """Whether a runner that reads the text in pieces gets these logits.

        Logits of rounded weights are only near the reference, even where the model's own weights are rounded: what
        torch's kernels round depends on the number of rows.

        Args:
            blocks: of the runner's cache; the text is read into those from 1 on.
            proved: what it computes has been proved, but for its rounding.
        """
        ids = self.trial.ids[: (blocks - 1) * block_size]
        try:
            found = read_in_pieces(runner, ids, block_size)
            off = distance(found, self.logits[: len(ids)])
        except CALL_ERRORS as error:
            log.info("%s: %s", type(error).__name__, error)
            return False
        log.info("checked against the model's own code: logits are off by %.1e (0: equal, 1: unrelated)", off)
        if off > self._most(proved):
            return self._as_near_to_exact(found)
        if off > _MUCH:
            log.warning(
                "%s weights predict other tokens than %s's own: logits differ by %.2f (1: as much as unrelated ones)",
                self.quantize,
                self.model,
                off,
            )
        return True

    def _most(self, proved: bool) -> float:
        """How far a runner's logits may be from these."""
        if self.quantize is not None:
            return _MOST[self.quantize]
        if self.dtype == torch.float32:
            return _MOST_IN_FP32
        return _MOST[None] if proved else _MOST_UNPROVED

    def _as_near_to_exact(self, found: Tensor) -> bool:
        """Whether logits are about as near to the fp32 logits as the model's own are; False without fp32 logits."""
        exact = None if self.quantize is not None else self.exact()
        if exact is None:
            return False
        own, theirs = (
            distance(each[: len(found), self.trial.rows], exact[: len(found)]) for each in (self.logits, found)
        )
        return max(own, theirs) <= _MAX_USEFUL_DISTANCE and theirs <= _AS_NEAR * own


def _fp32_bytes(loaded: LoadedModel) -> int:
    numbers: int = sum(each.numel() for each in loaded.model.parameters())
    return 4 * numbers


def _exact_logits(loaded: LoadedModel, trial: Trial) -> Tensor | None:
    if loaded.dtype == torch.float32 or loaded.device.type != "cpu" or not loaded.is_whole:
        return None
    if _fp32_bytes(loaded) > available_bytes() * _EXACT_SHARE:
        return None
    return ExactModel(loaded, trial).logits()


@torch.inference_mode()
def _logits(loaded: LoadedModel, trial: Trial) -> Tensor:
    """fp32 logits (tokens, vocabulary) of the text."""
    with releasing_after_use(loaded.model):
        output = loaded.model(input_ids=torch.tensor([trial.ids], device=loaded.device), use_cache=False)
    logits: Tensor = output.logits[0].float()
    return logits
