"""Opens a model: loads it, and finds the best runner with the model's logits. Engine process, once.

On a CPU, a model that can be read as a recipe runs as a native program. Otherwise, a model whose attention can be
replaced runs on torch over the paged cache, a hybrid one with its states beside it. The few whose attention can't be
(it is inside their own modules, or they have none) run with transformers' own cache. An encoder-decoder model runs on
torch over the paged cache, or not at all.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from ...core.errors import ModelLoadError
from ..adapters.targets import adapter_targets
from ..call_errors import CALL_ERRORS
from ..checkpoints.directory import context_fault
from ..checkpoints.draft_size import NO_DRAFT, DraftMemory
from ..checkpoints.expert_stacks import modules_with_stacks, unpack_experts_
from ..checkpoints.loading import LoadedModel, load_model, products_rounding
from ..checkpoints.rope import freeze_rope_
from ..interface import ProbeIds, Progress
from ..native.api import PrefaultedRegions, exact_logits, lacking, native_parts, open_native_program, unpack_blocks
from ..runner.opened_model import OpenedModel
from ..runner.opening_request import OpeningRequest, Refusal
from ..runner.probe import Probe, ids_of_probe
from ..runner.reference import Reference
from ..settings import BuiltInSettings
from .cached_on_torch import CachedOnTorch
from .encoder_decoder import EncoderDecoder
from .encoder_decoder import exact_logits as exact_encoder_decoder_logits
from .one_text import OneText
from .paged_on_torch import PagedOnTorch
from .torch_model import TorchModel, prepare_for_torch

log = logging.getLogger(__name__)


class Attempt:
    """The input of the candidates, which are tried one after the other.

    Args:
        prefaulted: memory that is being taken for a native program.
    """

    def __init__(self, request: OpeningRequest, prefaulted: PrefaultedRegions | None) -> None:
        self.request = request
        self.prefaulted = prefaulted

    @functools.cached_property
    def on_torch(self) -> tuple[OpeningRequest, TorchModel]:
        """The model, changed for good to what torch runs: torch is not given back what rounding took."""
        parts = None if _is_encoder_decoder(self.request) else native_parts(self.request.settings, self.request.loaded)
        return prepare_for_torch(self.request, parts)


@dataclass(frozen=True)
class Candidate:
    """One way to run a model.

    Attributes:
        suits: whether it is tried.
        open: opens the model in this way, if its logits are then the reference's; else leaves it as it was. Raises
            ModelLoadError if there is no memory for it, or a setting does not fit.
        takes_adapters: whether its runner is an `AdapterRunner`.
    """

    suits: Callable[[OpeningRequest], bool]
    open: Callable[[Attempt], OpenedModel | Refusal]
    takes_adapters: bool = False


def _keeps_one_text(request: OpeningRequest) -> bool:
    return request.loaded.keeps_one_text


def _is_encoder_decoder(request: OpeningRequest) -> bool:
    return request.loaded.decoder is not None


def _may_be_native(request: OpeningRequest) -> bool:
    return _may_be_torch(request) and request.settings.kernels != "torch"


def _may_be_torch(request: OpeningRequest) -> bool:
    return not request.loaded.keeps_one_text and not _is_encoder_decoder(request)


def _open_native(attempt: Attempt) -> OpenedModel | Refusal:
    return open_native_program(attempt.request, attempt.prefaulted)


def _open_paged(attempt: Attempt) -> OpenedModel | Refusal:
    request, model = attempt.on_torch
    return PagedOnTorch(model).open(request)


def _open_encoder_decoder(attempt: Attempt) -> OpenedModel | Refusal:
    request, model = attempt.on_torch
    outcome = EncoderDecoder().open(request)
    return outcome if isinstance(outcome, Refusal) else model.completed(outcome)


def _open_cached(attempt: Attempt) -> OpenedModel | Refusal:
    request, model = attempt.on_torch
    return CachedOnTorch(model).open(request)


#: The ways to run a model, best first.
CANDIDATES: Final[Mapping[str, Candidate]] = {
    "one text": Candidate(_keeps_one_text, lambda attempt: OneText().open(attempt.request)),
    "an encoder-decoder": Candidate(_is_encoder_decoder, _open_encoder_decoder),
    "a native program": Candidate(_may_be_native, _open_native, takes_adapters=True),
    "torch over the paged cache": Candidate(_may_be_torch, _open_paged, takes_adapters=True),
    "torch over transformers' cache": Candidate(_may_be_torch, _open_cached, takes_adapters=True),
}


def open_model(
    settings: BuiltInSettings,
    progress: Progress,
    prefaulted: PrefaultedRegions | None = None,
    draft: DraftMemory = NO_DRAFT,
    probe_ids: ProbeIds = lambda: [],
) -> OpenedModel:
    """Load the model, decide how to run it, and make its cache.

    Args:
        prefaulted: memory that is being taken for a native program.
        probe_ids: a text to try the model on, where the settings have none.

    Raises:
        ModelLoadError: the checkpoint or a setting does not fit.
    """
    loaded = load_model(settings, progress, None if settings.kernels == "torch" else unpack_blocks)
    if fault := context_fault(settings.max_model_len, loaded.longest):
        raise ModelLoadError(fault)
    targets = adapter_targets(loaded.model) if settings.enable_lora else {}
    progress("preparing the KV cache", 0, 0)
    length = settings.max_model_len or loaded.context
    freeze_rope_(loaded.model, length, but_long=settings.kernels != "torch")
    ids = ids_of_probe(loaded, settings.probe_ids or probe_ids())[:length]
    probe = Probe.of(ids, loaded.vocabulary, encoded=loaded.decoder is not None)
    request = OpeningRequest(settings, loaded, length, _reference(settings, loaded, probe), draft, targets)
    attempt = Attempt(request, prefaulted)
    refusals: list[Refusal] = []
    for name, candidate in CANDIDATES.items():
        if not candidate.suits(request):
            continue
        outcome = _refused_for_adapters(request, candidate) or candidate.open(attempt)
        if isinstance(outcome, OpenedModel):
            return _with_reasons(replace(outcome, targets=outcome.targets or targets), refusals)
        log.info("%s does not run as %s: %s", request.name, name, outcome.reason)
        refusals.append(outcome)
    adapters = " with LoRA adapters (option.enable_lora)" if settings.enable_lora else ""
    why = "; ".join(refusal.reason for refusal in refusals if refusal.shown)
    instead = "; with option.rolling_batch=disable it is served, one request at a time" * (loaded.decoder is not None)
    raise ModelLoadError(f"{request.name}: nothing here can run it{adapters}{f' ({why})' if why else ''}{instead}")


def _refused_for_adapters(request: OpeningRequest, candidate: Candidate) -> Refusal | None:
    """Why a candidate is passed over that can't compute adapters, where the model is to have some."""
    if not request.settings.enable_lora or candidate.takes_adapters:
        return None
    on_kernels = request.loaded.device.type == "cpu" and not lacking()
    return Refusal("they don't compute LoRA adapters (option.enable_lora)", shown=on_kernels)


def _with_reasons(opened: OpenedModel, refusals: list[Refusal]) -> OpenedModel:
    """The model with the reasons of refusals, which the log shows as a warning."""
    shown = "; ".join(refusal.reason for refusal in refusals if refusal.shown)
    info = msgspec.structs.replace(opened.info, refusal=shown)
    for warning in info.warnings:
        log.warning("%s: %s", type(opened.loaded.model).__name__, warning)
    return replace(opened, info=info)


def _reference(settings: BuiltInSettings, loaded: LoadedModel, probe: Probe) -> Reference:
    """The model's own logits; if it does not use experts' weights one by one, they become tensors first."""
    rounds = products_rounding(settings, loaded)
    if loaded.decoder is not None:
        return Reference.of(loaded, rounds, probe, exact_encoder_decoder_logits)
    try:
        return Reference.of(loaded, rounds, probe, exact_logits)
    except CALL_ERRORS as error:
        if not modules_with_stacks(loaded.model):
            raise
        log.info("%s wants its experts' weights as tensors: %s", type(loaded.model).__name__, error)
        unpack_experts_(loaded.model, loaded.device)
        return Reference.of(loaded, rounds, probe, exact_logits)
