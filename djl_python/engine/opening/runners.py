"""Chooses how a loaded model is run, and checks that it computes what the model computes.

Runs in the engine process, once. On a CPU, a model that can be read as a recipe runs as a native program. Otherwise, a
model whose attention can be replaced runs on torch over the paged cache, a hybrid one with its states beside it. The
few whose attention can't be (it is inside their own modules, or they have none) run with transformers' own cache.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import replace

import torch

from ...core.errors import ModelLoadError
from ..checkpoints.expert_stacks import holders_in, unpack_experts_
from ..checkpoints.loading import LoadedModel, can_page, load_model, products_rounding, rounding, set_attention
from ..checkpoints.misfits import MISFITS
from ..checkpoints.quantization import Quantize
from ..checkpoints.rotations import freeze_rope_
from ..checkpoints.stored_loading import unpack_linears_
from ..interface import EngineSettings, Progress
from ..native.file_mapping import releasing_after_use, trim_allocator
from ..native.library import UnavailableError
from ..native.modules.linears import NativeLinears
from ..native.modules.modules import replace_mlps_, replace_norms_
from ..native.modules.siblings import joined
from ..native.modules.stand_ins import StandIns
from ..native.prefault import PrefaultedRegions
from ..native.program.sampling import NativeChooser
from ..native.thread_pool import FORMATS
from ..torch_backend.attention import LayerShape
from ..torch_backend.linears import matrices, on_torch, replace_linears_, unrounded
from ..torch_backend.model_runner import probe
from ..torch_backend.paging import TRIAL_BLOCK, Paging
from ..torch_backend.recurrent import ModelContext, RecurrentLayers
from ..trial_text import sent_text
from .agreement import Agreement, run_once
from .draft_size import NOTHING, Beside
from .image_support import images_agree_paged, open_image_support
from .native_opening import open_native
from .opened_runner import OpenedRunner
from .torch_opening import open_cached, open_paged
from .trial import Trial, trial_ids

log = logging.getLogger(__name__)


def open_runner(
    settings: EngineSettings, progress: Progress, advance: PrefaultedRegions | None = None, beside: Beside = NOTHING
) -> OpenedRunner:
    """Load the model, decide how to run it, and make its cache.

    Args:
        advance: memory that is being taken for a native program.

    Raises:
        ModelLoadError: the checkpoint or a setting does not fit.
    """
    loaded = load_model(settings, progress)
    if settings.max_model_len and settings.max_model_len > loaded.longest:
        raise ModelLoadError(
            f"option.max_model_len={settings.max_model_len} is more than the checkpoint's context of {loaded.longest}"
        )
    progress("preparing the KV cache", 0, 0)
    wanted = settings.max_model_len or loaded.context
    freeze_rope_(loaded.model, wanted, but_long=settings.kernels != "torch")
    trial = Trial.of(trial_ids(loaded, settings.trial_ids or sent_text.ids()), loaded.vocabulary)
    agreement = _agreement(settings, loaded, trial)
    own_attention = loaded.model.config.get_text_config(decoder=True)._attn_implementation
    pages = can_page(loaded)
    if advance is not None:
        advance.stop()
    native = open_native(settings, loaded, wanted, agreement, advance, beside)
    if isinstance(native, OpenedRunner):
        return native
    if advance is not None:
        advance.give_back()
    if freeze_rope_(loaded.model, wanted):
        agreement = _agreement(settings, loaded, trial)
    layers, recurrent = _probed(loaded, wanted) if pages else ({}, None)
    if not layers:
        set_attention(loaded.model, own_attention)
    linears = _native_linears(settings, loaded)
    if linears is not None:
        agreement.before_changes()
    kept = _replace_modules_(loaded, linears, rounding(settings))
    if products_rounding(settings, loaded) is not None:
        agreement.rebase_on_rounded()
    functions: ModelContext = nullcontext if linears is None else StandIns(loaded.model, linears.pool).in_place
    if recurrent is not None:
        recurrent.functions = functions
    image_support = open_image_support(settings, loaded, own_attention)
    if layers:
        paging = Paging(loaded, layers, recurrent, None if linears is None else linears.pool)
        blocks = 2 + len(trial.ids) // TRIAL_BLOCK
        with paging.trial(blocks) as runner:
            agrees = agreement.with_runner(runner, blocks, TRIAL_BLOCK)
        if agrees and (image_support is None or images_agree_paged(paging, image_support)):
            opened = open_paged(settings, paging, wanted, image_support, beside)
            return _told(settings, _with_native(opened, linears), native, kept)
    set_attention(loaded.model, own_attention)
    log.warning(
        "%s can't run on a paged cache: it runs with transformers' own, without sharing prefixes",
        type(loaded.model).__name__,
    )
    opened = open_cached(settings, loaded, wanted, image_support, functions, agreement)
    return _told(settings, _with_native(opened, linears), native, kept)


def _probed(loaded: LoadedModel, wanted: int) -> tuple[dict[int, LayerShape], RecurrentLayers | None]:
    """Attention and recurrent layers of a model with paged attention; none if it fails without an attention mask.

    Args:
        wanted: most tokens of a sequence.
    """
    try:
        with releasing_after_use(loaded.model):
            return probe(loaded.model, loaded.device, wanted)
    except MISFITS as misfit:
        log.info("%s can't be paged: %s: %s", type(loaded.model).__name__, type(misfit).__name__, misfit)
        return {}, None


def _replace_modules_(loaded: LoadedModel, linears: NativeLinears | None, quantize: Quantize | None) -> str:
    """Have the native kernels, if there are any, compute what they can; round weights if that is asked for.

    Returns which weights are not rounded all the same.
    """
    unpack_experts_(loaded.model, loaded.device)
    before = matrices(loaded.model)
    if linears is not None:
        replace_mlps_(loaded.model, linears, quantize)
        replace_norms_(loaded.model, linears)
        replace_linears_(loaded.model, quantize, linears.make)
        with joined(loaded.model):
            run_once(loaded)
    else:
        replace_linears_(loaded.model, quantize, on_torch)
    if left := unpack_linears_(loaded.model, loaded.device):
        log.info("%d linears of codes that there are no kernels for are unpacked", left)
    return "" if quantize is None else unrounded(loaded.model, before, quantize)


def _told(settings: EngineSettings, opened: OpenedRunner, refusal: str, kept: str) -> OpenedRunner:
    """The model with what one would not expect of it, of which the log warns."""
    opened = replace(opened, refusal=refusal, unrounded=kept)
    for warning in opened.info(settings).warnings:
        log.warning("%s: %s", type(opened.loaded.model).__name__, warning)
    return opened


def _agreement(settings: EngineSettings, loaded: LoadedModel, trial: Trial) -> Agreement:
    """The model's `Agreement`; if it does not use experts' weights one by one, they become tensors first."""
    rounds = products_rounding(settings, loaded)
    try:
        return Agreement(loaded, rounds, trial)
    except MISFITS as misfit:
        if not holders_in(loaded.model):
            raise
        log.info("%s wants its experts' weights as tensors: %s", type(loaded.model).__name__, misfit)
        unpack_experts_(loaded.model, loaded.device)
        return Agreement(loaded, rounds, trial)


def _with_native(opened: OpenedRunner, linears: NativeLinears | None) -> OpenedRunner:
    """Give a model that torch runs the native chooser for rows of logits, if it has native kernels for its products."""
    if linears is None:
        return opened
    trim_allocator()
    description = opened.description.replace(" on cpu", " on cpu (native products)", 1)
    chooser = NativeChooser(linears.pool)

    def close() -> None:
        opened.close()
        chooser.close()
        linears.close()

    kind = f"{opened.kind} (native products)"
    return replace(opened, kind=kind, chooser=chooser, description=description, close=close)


def _native_linears(settings: EngineSettings, loaded: LoadedModel) -> NativeLinears | None:
    """The native kernels for a model whose other parts torch runs; None where there are none."""
    if settings.kernels == "torch" or loaded.device.type != "cpu" or loaded.dtype not in FORMATS:
        return None
    try:
        return NativeLinears(loaded.dtype, torch.get_num_threads())
    except UnavailableError:  # `open_native` has logged why
        return None
