"""A model's own logits, which its runner has to reproduce. Runs in the engine process, once.

If part of a model was replaced wrongly, the logits have little to do with the model's own. Rounding changes logits too:
little in a trained model, much in one with random weights, which may amplify every error. So logits far from the
model's own are compared with its fp32 logits: they pass if they are about as near to these as the model's own logits.
`native.opening.proof` has compared a native program before; here its packing and rounding are checked.
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
from ..call_errors import CALL_ERRORS
from ..checkpoints.loading import LoadedModel
from ..checkpoints.rounding import Quantize
from ..devices.free_memory import available_bytes
from .file_mapping import releasing_after_use
from .model_runner import ModelRunner
from .probe import Probe, distance, logits_of, read_in_pieces
from .wide_products import wide_products

log = logging.getLogger(__name__)

# How far from the model's own logits a runner's may be (`probe.distance`). Another order of
# operations costs up to 0.0013 in bf16, rounded weights 0.003 (8 bits) and 0.1 (4 bits) in a trained model, and 0.3 and
# 0.9 in models with random weights and attention sinks; unrelated logits are at 1 and more.
_MOST: Final[dict[Quantize | None, float]] = {None: 0.05, "int8": 0.5, "int4": 1.0}
# Tolerance for a runner whose structure is not proved: a state lost between two pieces costs 0.01.
_MOST_UNPROVED: Final = 0.005
_MOST_IN_FP32: Final = 5e-4
# Rounding that costs more than this is reported: answers are not the model's.
_MUCH: Final = 0.3
# Share of the free memory that the model's weights may take in fp32.
_EXACT_SHARE: Final = 0.5
#: Up to this many bytes of fp32 weights, fp32 logits are computed before they are known to be needed: that takes a
#: second.
EXACT_AT_ONCE: Final = 4 << 30
# A runner's distance from the fp32 logits may be so many times the model's own: chance affects both.
_AS_NEAR: Final = 4.0
# Greatest distance from the fp32 logits at which a comparison still means something.
_MAX_USEFUL_DISTANCE: Final = 1.0

#: Computes a model's logits in fp32, for the tokens and rows of a probe.
ExactLogits = Callable[[LoadedModel, Probe], Tensor]


@dataclass(frozen=True)
class Reference:
    """A model's own logits at every position of a text.

    Attributes:
        model: the name of its class.
        logits: (tokens, vocabulary) fp32.
        quantize: the rounding of its runners' products, if any.
        exact: gives the logits of the probe's rows in fp32, (tokens, rows); None if the model is fp32, not on a CPU,
            not whole, or too large. They are computed when they are first asked for, from the model as it is then.
        exact_logits: computes them.
    """

    model: str
    dtype: torch.dtype
    probe: Probe
    logits: Tensor
    quantize: Quantize | None
    exact: Callable[[], Tensor | None]
    exact_logits: ExactLogits

    @classmethod
    def of(cls, loaded: LoadedModel, quantize: Quantize | None, probe: Probe, exact_logits: ExactLogits) -> Reference:
        """The logits of a model that has an attention of transformers' own.

        Raises:
            ModelLoadError: they are not numbers.
        """
        logits, name = _logits(loaded, probe), type(loaded.model).__name__
        if logits.isnan().all():
            raise ModelLoadError(
                f"{name}: its logits are not numbers (NaN) in {str(loaded.dtype).removeprefix('torch.')}: "
                "its weights are damaged, or its numbers overflow (option.dtype chooses others)"
            )
        exact = functools.cache(functools.partial(_affordable, exact_logits, loaded, probe))
        return cls(name, loaded.dtype, probe, logits, quantize, exact, exact_logits)

    def again(self, loaded: LoadedModel) -> Reference:
        """The reference of the model as it is now."""
        return Reference.of(loaded, self.quantize, self.probe, self.exact_logits)

    def chosen(self, loaded: LoadedModel) -> Reference:
        """The reference for when the model has been changed: with its fp32 logits if they are cheap, or without."""
        cheap = self.quantize is None and _fp32_bytes(loaded) <= EXACT_AT_ONCE
        exact = self.exact() if cheap else None
        return replace(self, exact=lambda: exact)

    def accepts(self, runner: ModelRunner, blocks: int, block_size: int, *, proved: bool = False) -> bool:
        """Whether a runner that reads the text in pieces gets these logits.

        Logits of rounded weights are only near the reference, even if the model's own weights are rounded: the rounding
        of torch's kernels depends on the number of rows.

        Args:
            blocks: of the runner's cache; the text is read into those from 1 on, what an encoder reads before it.
            proved: what it computes has been proved, but for its rounding.
        """
        encoder_ids = self.probe.encoder_ids
        ids = self.probe.ids[: (blocks - 1 + len(encoder_ids) // -block_size) * block_size]
        try:
            logits = read_in_pieces(runner, ids, block_size, encoder_ids)
            off = distance(logits, self.logits[: len(ids)])
        except CALL_ERRORS as error:
            log.info("%s: %s", type(error).__name__, error)
            return False
        log.info("checked against the model's own code: logits are off by %.1e (0: equal, 1: unrelated)", off)
        if off > self._most(proved):
            return self._as_near_to_exact(logits)
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

    def _as_near_to_exact(self, logits: Tensor) -> bool:
        """Whether logits are about as near to the fp32 logits as the model's own are; False without fp32 logits."""
        exact = None if self.quantize is not None else self.exact()
        if exact is None:
            return False
        own, theirs = (
            distance(each[: len(logits), self.probe.rows], exact[: len(logits)]) for each in (self.logits, logits)
        )
        return max(own, theirs) <= _MAX_USEFUL_DISTANCE and theirs <= _AS_NEAR * own


def _fp32_bytes(loaded: LoadedModel) -> int:
    numbers: int = sum(each.numel() for each in loaded.model.parameters())
    return 4 * numbers


def _affordable(exact_logits: ExactLogits, loaded: LoadedModel, probe: Probe) -> Tensor | None:
    if loaded.dtype == torch.float32 or loaded.device.type != "cpu" or not loaded.is_whole:
        return None
    if _fp32_bytes(loaded) > available_bytes() * _EXACT_SHARE:
        return None
    return exact_logits(loaded, probe)


def _logits(loaded: LoadedModel, probe: Probe) -> Tensor:
    """fp32 logits (tokens, vocabulary) of the text."""
    with releasing_after_use(loaded.model), wide_products(loaded.device):
        return logits_of(loaded.model, probe, loaded.device)
