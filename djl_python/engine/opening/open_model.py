"""Opens a model: loads it, and finds what runs it and computes what the model computes. Engine process, once.

On a CPU, a model that can be read as a recipe runs as a native program. Otherwise, a model whose attention can be
replaced runs on torch over the paged cache, a hybrid one with its states beside it. The few whose attention can't be
(it is inside their own modules, or they have none) run with transformers' own cache.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import msgspec

from ...core.errors import ModelLoadError
from ..checkpoints.directory import context_fault
from ..checkpoints.draft_size import NOTHING, Beside
from ..checkpoints.expert_stacks import modules_with_stacks, unpack_experts_
from ..checkpoints.loading import LoadedModel, load_model, products_rounding
from ..checkpoints.rope import freeze_rope_
from ..interface import Progress
from ..native.prefault import PrefaultedRegions
from ..reading.call_errors import CALL_ERRORS
from ..settings import BuiltInSettings
from ..trial_text import sent_text
from .cached_on_torch import CachedOnTorch
from .candidate import Candidate, OpeningRequest, Refusal
from .native_program import NativeProgram
from .one_text import OneText
from .opened_model import OpenedModel
from .paged_on_torch import PagedOnTorch
from .reference import Reference
from .torch_model import prepare_for_torch
from .trial import Trial, trial_ids

log = logging.getLogger(__name__)


def open_model(
    settings: BuiltInSettings, progress: Progress, prefaulted: PrefaultedRegions | None = None, beside: Beside = NOTHING
) -> OpenedModel:
    """Load the model, decide how to run it, and make its cache.

    Args:
        prefaulted: memory that is being taken for a native program.

    Raises:
        ModelLoadError: the checkpoint or a setting does not fit.
    """
    loaded = load_model(settings, progress)
    if fault := context_fault(settings.max_model_len, loaded.longest):
        raise ModelLoadError(fault)
    progress("preparing the KV cache", 0, 0)
    length = settings.max_model_len or loaded.context
    freeze_rope_(loaded.model, length, but_long=settings.kernels != "torch")
    ids = trial_ids(loaded, settings.trial_ids or sent_text.ids())[:length]
    trial = Trial.of(ids, loaded.vocabulary)
    request = OpeningRequest(settings, loaded, length, _reference(settings, loaded, trial), beside)
    refusals: list[Refusal] = []
    for candidate, asked in _candidates(request, prefaulted):
        found = candidate.open(asked)
        if isinstance(found, OpenedModel):
            return _told(found, refusals)
        log.info("%s is no %s: %s", request.name, type(candidate).__name__, found.reason)
        refusals.append(found)
    raise ModelLoadError(f"{request.name}: nothing here can run it")


def _candidates(
    request: OpeningRequest, prefaulted: PrefaultedRegions | None
) -> Iterator[tuple[Candidate, OpeningRequest]]:
    """What may run the model, best first, with what each is given."""
    if request.loaded.keeps_one_text:
        yield OneText(), request
        return
    if request.settings.kernels != "torch":
        yield NativeProgram(prefaulted), request
    # Now the model is changed for good: torch is not given back what rounding took.
    request, prepared = prepare_for_torch(request)
    yield PagedOnTorch(prepared), request
    yield CachedOnTorch(prepared), request


def _told(opened: OpenedModel, refusals: list[Refusal]) -> OpenedModel:
    """The model with what one would not expect of it, of which the log warns."""
    told = "; ".join(refusal.reason for refusal in refusals if refusal.told)
    info = msgspec.structs.replace(opened.info, refusal=told)
    for warning in info.warnings:
        log.warning("%s: %s", type(opened.loaded.model).__name__, warning)
    return replace(opened, info=info)


def _reference(settings: BuiltInSettings, loaded: LoadedModel, trial: Trial) -> Reference:
    """The model's own logits; if it does not use experts' weights one by one, they become tensors first."""
    rounds = products_rounding(settings, loaded)
    try:
        return Reference.of(loaded, rounds, trial)
    except CALL_ERRORS as error:
        if not modules_with_stacks(loaded.model):
            raise
        log.info("%s wants its experts' weights as tensors: %s", type(loaded.model).__name__, error)
        unpack_experts_(loaded.model, loaded.device)
        return Reference.of(loaded, rounds, trial)
