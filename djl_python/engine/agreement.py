"""Checks that a native or paged runner gets the logits that its model gets. Runs in the engine process, once.

If part of a model was read or replaced wrongly, the logits have little to do with the model's own. Rounding changes
logits too: little in a trained model, much in one with random weights, which may amplify every error. So logits far
from the model's own are compared with its fp32 logits: they pass if they are about as near to those as its own are.
"""

from __future__ import annotations

import functools
import itertools
import logging
from typing import Any, Final

import torch
from torch import Tensor

from ..errors import ModelLoadError
from ..types import SamplingParams
from .attention import PAGED, watching
from .expert_stacks import holders_in
from .free_memory import available_bytes
from .loading import LoadedModel, set_attention
from .misfits import MISFITS
from .model_runner import ModelRunner
from .native.mapped import in_passing
from .quantization import Quantize
from .routes import Routes, Routing, routing
from .scheduler import Chunk
from .sequence import Sequence

log = logging.getLogger(__name__)

CHECK_TOKENS: Final = 12
# Allowed error with rounded weights, relative to the norm of all logits. Rounding costs up to 0.07 and 0.55 in models
# with random weights; unrelated logits differ by 1.4.
_ROUNDED_TOLERANCE: Final[dict[Quantize, float]] = {"int8": 0.25, "int4": 0.9}
# How far a runner's own choices of experts may be from the model's (`Routes.furthest`): others for some tokens, nearly
# the same weights for most. 4 bits choose others as often as not; their tolerance has room for that.
_OTHER_EXPERTS: Final[dict[Quantize | None, tuple[float, float]]] = {None: (0.2, 0.05), "int8": (0.25, 0.1)}
# Share of the free memory that the model's weights may take in fp32.
_EXACT_SHARE: Final = 0.5
# Up to this many bytes of fp32 weights, fp32 logits are computed before they are known to be needed: it takes a second.
_EXACT_AT_ONCE: Final = 4 << 30
# A difference beyond this, relative to the greatest logit, is more than rounding, unless the model amplifies that:
# trained models, and most random ones, are within 0.02.
_SURE_TOLERANCE: Final = 0.06
# How many times as far as the model's own logits a runner's may be from those in fp32: chance plays a part in both.
_AS_NEAR: Final = 2.0
# Greatest distance of either from the fp32 logits, relative to their norm, at which comparing still tells something.
_MAX_USEFUL_ERROR: Final = 1.0


def check_ids(loaded: LoadedModel) -> list[int]:
    """A few different token ids, the same at every start."""
    return [(7 * i + 3) % loaded.vocabulary for i in range(CHECK_TOKENS)]


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
def run_once(loaded: LoadedModel) -> Any:
    """Run a short prompt with the attention that the model has now, and return the model's output."""
    with watching(lambda *_: None):
        return loaded.model(input_ids=torch.tensor([check_ids(loaded)], device=loaded.device), use_cache=False)


class Agreement:
    """The model's own logits after a short prompt, as a reference for those of runners.

    Args:
        quantize: what a native program rounds to, if it does.

    Raises:
        ModelLoadError: the model's own logits are not numbers.
    """

    def __init__(self, loaded: LoadedModel, quantize: Quantize | None) -> None:
        self._loaded = loaded
        self._quantize = quantize
        self._on_torch = False
        self._note_reference()
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
        self._on_torch = True
        self._note_reference()

    def _note_reference(self) -> None:
        self._routes = Routes()
        with routing(self._loaded.model, self._routes.note):
            self._reference = _logits(self._loaded)

    def with_runner(self, runner: ModelRunner, routed: Routing | None = None) -> bool:
        """Whether a runner that reads the prompt in pieces into its block 1 gets the reference logits.

        Logits of rounded weights are only near the reference, even where the model's own weights are rounded: what
        torch's kernels round depends on the number of rows.

        Args:
            routed: gives the runner the model's choice of experts, if it gets other logits with its own.
        """
        found = self._tried(runner)
        if found is None:
            return False
        return self._agrees(found) or (routed is not None and self._agrees_if_routed(runner, routed))

    def _agrees_if_routed(self, runner: ModelRunner, routed: Routing) -> bool:
        """Whether a runner gets the reference logits with the model's choice of experts, and makes nearly the same."""
        if not self._routes or self._quantize not in _OTHER_EXPERTS:
            return False
        self._routes.off.clear()
        with routed(self._routes.give):
            found = self._tried(runner, every_row=True)
        furthest = self._routes.furthest()
        nearly = all(off <= allowed for off, allowed in zip(furthest, _OTHER_EXPERTS[self._quantize], strict=True))
        agrees = nearly and found is not None and self._agrees(found)
        log.info(
            "with the experts that %s chooses, logits %s; its own choices are off by %.2f, of most tokens by %.3f",
            type(self._loaded.model).__name__,
            "agree" if agrees else "disagree",
            *furthest,
        )
        return agrees

    def _tried(self, runner: ModelRunner, *, every_row: bool = False) -> Tensor | None:
        """fp32 logits (vocabulary,) of a runner; None if it fails.

        Args:
            every_row: have the last layer, too, compute every token.
        """
        sampling = SamplingParams(max_new_tokens=1, prompt_logprobs=0 if every_row else None)
        sequence = Sequence(0, check_ids(self._loaded), CHECK_TOKENS, sampling, blocks=[1])
        try:
            for length in (CHECK_TOKENS - 5, 4, 1):
                logits = step(runner, Chunk(sequence, length))
        except MISFITS as misfit:
            log.info("%s: %s", type(misfit).__name__, misfit)
            return None
        runner.forget(sequence)
        return logits[-1].float()

    def _agrees(self, found: Tensor) -> bool:
        loaded, reference = self._loaded, self._reference
        if self._quantize is not None and not self._on_torch:
            return bool((found - reference).norm() <= _ROUNDED_TOLERANCE[self._quantize] * reference.norm())
        if not near(found, reference, tolerance(loaded, self._quantize)):
            return self._as_near(found)
        sure = near(found, reference, _SURE_TOLERANCE) or self._quantize is not None or self._exact is None
        return sure or self._as_near(found)

    def _as_near(self, logits: Tensor) -> bool:
        """Whether `logits` are about as near to the fp32 logits as the model's own are; False without fp32 logits."""
        if self._quantize is not None or self._exact is None:
            return False
        own, theirs = (float((each - self._exact).norm()) for each in (self._reference, logits))
        return max(own, theirs) <= _MAX_USEFUL_ERROR * float(self._exact.norm()) and theirs <= _AS_NEAR * own

    @functools.cached_property
    def _exact(self) -> Tensor | None:
        """The model's logits in fp32, with the experts it chose; None if it is fp32, not on a CPU, or too large."""
        loaded = self._loaded
        tensors = [
            each
            for each in itertools.chain(loaded.model.parameters(), loaded.model.buffers())
            if each.is_floating_point() and each.dtype != torch.float32
        ]
        size = 4 * sum(each.numel() for each in tensors)
        if not tensors or loaded.device.type != "cpu" or size > available_bytes() * _EXACT_SHARE:
            return None
        rounded = [each.data for each in tensors]
        holders = holders_in(loaded.model)
        try:
            for each in tensors:
                each.data = each.data.float()
            for module, stacks in holders:
                vars(module).update((name, stack.to(torch.float32)) for name, stack in stacks.items())
            with routing(loaded.model, self._routes.give):
                return _logits(loaded)
        finally:
            for each, data in zip(tensors, rounded, strict=True):
                each.data = data
            for module, stacks in holders:
                vars(module).update(stacks)


@torch.inference_mode()
def _logits(loaded: LoadedModel) -> Tensor:
    """fp32 logits (vocabulary,) after the prompt, with an attention of transformers' own."""
    configured = loaded.model.config.get_text_config(decoder=True)._attn_implementation
    if configured == PAGED:
        set_attention(loaded.model, "eager")
    try:
        with in_passing(loaded.model):
            output = run_once(loaded)
    finally:
        set_attention(loaded.model, configured)
    logits: Tensor = output.logits[0, -1].float()
    return logits
