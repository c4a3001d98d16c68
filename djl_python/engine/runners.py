"""Chooses how a loaded model is run, and checks that it computes what the model computes.

Runs in the engine process, once. On a CPU, a model that can be read as a recipe runs as a native program. Otherwise, a
model whose attention can be replaced runs on torch over the paged cache, a hybrid one with its states beside it. The
few whose attention can't be (it is inside their own modules, or they have none) run with transformers' own cache.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from typing import Final

import torch

from ..errors import ModelLoadError
from .agreement import CHECK_TOKENS, Agreement, check_ids, run_once, tolerance
from .attention import LayerShape
from .cache_size import CacheSize, size_cache
from .cached_runner import CachedModelRunner
from .choosing import Chooser
from .draft_size import NOTHING, Beside
from .expert_stacks import holders_in, unpack_experts_
from .image_check import ImageCheck
from .images import PagedImages
from .linears import on_torch, replace_linears_
from .loading import LoadedModel, can_page, load_model, rounding, set_attention
from .misfits import MISFITS
from .model_runner import ModelRunner, probe
from .native.advance import Advance
from .native.chooser import NativeChooser
from .native.library import UnavailableError
from .native.linears import NativeLinears
from .native.mapped import in_passing, trim
from .native.modules import replace_mlps_, replace_norms_
from .native.places import KEYS_PER_GROUP
from .native.pool import FORMATS
from .native.program import Program
from .native.read import read_recipe
from .native.recipe import Recipe
from .native.recipe_parts import NotUnderstoodError
from .native.runner import NativeModelRunner
from .native.siblings import joined
from .native.stand_ins import StandIns
from .paging import TRIAL_BLOCK, Paging
from .quantization import Quantize
from .recurrent import ModelContext, RecurrentLayers
from .rolling_batch import EngineSettings, Progress
from .rotations import freeze_rope_
from .speculation import MAX_ROWS
from .state_slots import StateSlots
from .step_memory import step_bytes
from .stored_loading import unpack_linears_
from .torch_chooser import TorchChooser

log = logging.getLogger(__name__)

#: Longest context that a model is read for before it is known what the cache can hold: rotations have a row for each
#: position, which of millions took longer to make, and more memory, than all the rest.
_READ_POSITIONS: Final = 1 << 17
_ROWS_GROWTH: Final = 3  # memory of `cache_rows` for that of its tokens: 2.6 was seen


@dataclass(frozen=True)
class OpenedRunner:
    """A model ready to step."""

    loaded: LoadedModel
    weight_bytes: int  # bytes that a decode step has to read at least
    runner: ModelRunner
    max_model_len: int
    max_prefill_tokens: int
    kv_blocks: int
    share_prefixes: bool
    description: str
    takes_images: bool = False
    takes_drafts: bool = False
    chooser: Chooser = field(default_factory=TorchChooser)
    resident_blocks: Callable[[], int] | None = None  # `BlockManager`'s `resident_blocks`
    states: StateSlots | None = None  # of recurrent layers, where prefixes are shared
    near: int = 0  # `Scheduler`'s `near`
    whole_prompts: bool = False  # likewise
    on_torch: bool = True
    close: Callable[[], None] = lambda: None  # ends the threads of what was opened


def open_runner(
    settings: EngineSettings, progress: Progress, advance: Advance | None = None, beside: Beside = NOTHING
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
    agreement = _agreement(settings, loaded)
    own_attention = loaded.model.config.get_text_config(decoder=True)._attn_implementation
    pages = can_page(loaded)
    if advance is not None:
        advance.stop()
    if opened := _open_native(settings, loaded, wanted, agreement, advance, beside):
        return opened
    if advance is not None:
        advance.give_back()
    if freeze_rope_(loaded.model, wanted):
        agreement = _agreement(settings, loaded)
    layers, recurrent = _probed(loaded, wanted) if pages else ({}, None)
    if not layers:
        set_attention(loaded.model, own_attention)
    linears = _native_linears(settings, loaded)
    if linears is not None:
        agreement.before_changes()
    _replace_modules_(loaded, linears, rounding(settings))
    if _rounds(settings, loaded) is not None:
        agreement.rebase_on_rounded()
    functions: ModelContext = nullcontext if linears is None else StandIns(loaded.model, linears.pool).in_place
    if recurrent is not None:
        recurrent.functions = functions
    image_support = _open_image_support(settings, loaded, own_attention)
    if layers:
        paging = Paging(loaded, layers, recurrent, None if linears is None else linears.pool)
        with paging.trial(2) as runner:
            agrees = agreement.with_runner(runner)
        if agrees and (image_support is None or _images_agree_paged(paging, image_support)):
            return _with_native(_open_paged(settings, paging, wanted, image_support, beside), linears)
    set_attention(loaded.model, own_attention)
    log.warning(
        "%s can't run on a paged cache: it runs with transformers' own, without sharing prefixes",
        type(loaded.model).__name__,
    )
    return _with_native(_open_cached(settings, loaded, wanted, image_support, functions, agreement), linears)


def _probed(loaded: LoadedModel, wanted: int) -> tuple[dict[int, LayerShape], RecurrentLayers | None]:
    """Attention and recurrent layers of a model with paged attention; none if it fails without an attention mask.

    Args:
        wanted: most tokens of a sequence.
    """
    try:
        with in_passing(loaded.model):
            return probe(loaded.model, loaded.device, wanted)
    except MISFITS as misfit:
        log.info("%s can't be paged: %s: %s", type(loaded.model).__name__, type(misfit).__name__, misfit)
        return {}, None


def _replace_modules_(loaded: LoadedModel, linears: NativeLinears | None, quantize: Quantize | None) -> None:
    """Have the native kernels, if there are any, compute what they can; round weights if that is asked for."""
    unpack_experts_(loaded.model, loaded.device)
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


def _agreement(settings: EngineSettings, loaded: LoadedModel) -> Agreement:
    """The model's `Agreement`; if it does not use experts' weights one by one, they become tensors first."""
    rounds = _rounds(settings, loaded)
    try:
        return Agreement(loaded, rounds)
    except MISFITS as misfit:
        if not holders_in(loaded.model):
            raise
        log.info("%s wants its experts' weights as tensors: %s", type(loaded.model).__name__, misfit)
        unpack_experts_(loaded.model, loaded.device)
        return Agreement(loaded, rounds)


def _rounds(settings: EngineSettings, loaded: LoadedModel) -> Quantize | None:
    """What products of integers round to: weights and activations, or with stored codes only the activations."""
    return rounding(settings) if loaded.method is None else "int8"


def _with_native(opened: OpenedRunner, linears: NativeLinears | None) -> OpenedRunner:
    """Give a model that torch runs the native chooser for rows of logits, if it has native kernels for its products."""
    if linears is None:
        return opened
    trim()
    description = opened.description.replace(" on cpu", " on cpu (native products)", 1)
    chooser = NativeChooser(linears.pool)

    def close() -> None:
        opened.close()
        chooser.close()
        linears.close()

    return replace(opened, chooser=chooser, description=description, close=close)


@dataclass(frozen=True)
class _ImageSupport:
    """For a model that takes images: the check of its runners, and what encodes images if it can be paged."""

    check: ImageCheck
    paged: PagedImages | None


def _open_image_support(settings: EngineSettings, loaded: LoadedModel, own_attention: str) -> _ImageSupport | None:
    if settings.image_example is None:
        return None
    model, example = loaded.model, settings.image_example
    current = model.config.get_text_config(decoder=True)._attn_implementation
    set_attention(model, own_attention)
    check = ImageCheck(model, example, check_ids(loaded)[0], tolerance(loaded, None))
    image_support = _ImageSupport(check, PagedImages.open(model, example))
    set_attention(model, current)
    return image_support


def _images_agree_paged(paging: Paging, image_support: _ImageSupport) -> bool:
    """Whether the model reads images right when it runs on a paged cache."""
    if image_support.paged is None:
        return False
    with ExitStack() as trials:
        blocks = image_support.check.blocks(TRIAL_BLOCK)
        return image_support.check.agrees(
            lambda: trials.enter_context(paging.trial(blocks, image_support.paged)), TRIAL_BLOCK, whole=False
        )


def _open_native(
    settings: EngineSettings,
    loaded: LoadedModel,
    wanted: int,
    agreement: Agreement,
    advance: Advance | None,
    beside: Beside,
) -> OpenedRunner | None:
    """Open the model as a native program; None, with the reason in the log, if that can't be done."""
    if settings.kernels == "torch":
        return None
    quantize = rounding(settings)
    try:
        if loaded.device.type != "cpu" or loaded.dtype not in FORMATS:
            raise UnavailableError(f"they do not compute {loaded.dtype} on {loaded.device}")
        if settings.image_example is not None:
            raise UnavailableError("they do not run models that take images")
        if settings.block_size % KEYS_PER_GROUP:
            raise UnavailableError(f"option.block_size={settings.block_size} is not a multiple of {KEYS_PER_GROUP}")
        recipe, size = _read_and_size(settings, loaded, wanted, beside)
        states = None
        if recipe.state_bytes(loaded.dtype):
            states = StateSlots(settings.max_batch_size, size.saved_states)
        program = Program(
            recipe,
            loaded.dtype,
            quantize,
            blocks=size.blocks,
            block_size=settings.block_size,
            states=0 if states is None else states.count,
            max_tokens=settings.max_batch_size + max(settings.max_prefill_tokens, CHECK_TOKENS, MAX_ROWS),
            threads=torch.get_num_threads(),
            advance=advance,
        )
    except (UnavailableError, NotUnderstoodError) as reason:
        if settings.kernels == "native":
            raise ModelLoadError(f"option.kernels=native: {reason}") from reason
        log.info("no native kernels: %s; the model runs on torch", reason)
        return None
    runner = NativeModelRunner(program, settings.block_size, states)
    if not agreement.with_runner(runner):
        program.close()
        if settings.kernels == "native":
            raise ModelLoadError(
                f"option.kernels=native: the kernels' logits are not those of {type(loaded.model).__name__}"
            )
        log.warning("the native kernels disagree with %s: it runs on torch", type(loaded.model).__name__)
        return None
    # The program has the weights now, and torch's idle threads would only spin beside the program's.
    for parameter in loaded.model.parameters():
        parameter.data = torch.empty(0, dtype=parameter.dtype)
    torch.set_num_threads(1)
    trim()
    chooser = NativeChooser(program.pool, program.maxima_of)

    def close() -> None:
        chooser.close()
        program.close()

    return OpenedRunner(
        loaded=loaded,
        weight_bytes=program.weight_bytes,
        runner=runner,
        max_model_len=size.length,
        max_prefill_tokens=settings.max_prefill_tokens,
        kv_blocks=size.blocks,
        share_prefixes=True,
        takes_drafts=states is None,
        states=states,
        near=recipe.near,
        on_torch=False,
        chooser=chooser,
        close=close,
        resident_blocks=lambda: program.resident_blocks,
        description=f"{_name(loaded, settings)} on cpu (native kernels, {program.pool.vectors}), {size.description}",
    )


def _read_and_size(
    settings: EngineSettings, loaded: LoadedModel, wanted: int, beside: Beside
) -> tuple[Recipe, CacheSize]:
    """The model's recipe, for as many positions as its cache can hold, and the cache's size."""
    recipe = read_recipe(loaded.model, min(wanted, _READ_POSITIONS))
    shapes = {index: attention.shape for index, attention in enumerate(recipe.caches)}
    state_bytes = recipe.state_bytes(loaded.dtype)
    size = size_cache(settings, loaded, shapes, wanted, state_bytes, saves=True, beside=beside)
    if size.length > _READ_POSITIONS:
        recipe = read_recipe(loaded.model, size.length)
    return recipe, size


def _native_linears(settings: EngineSettings, loaded: LoadedModel) -> NativeLinears | None:
    """The native kernels for a model whose other parts torch runs; None where there are none."""
    if settings.kernels == "torch" or loaded.device.type != "cpu" or loaded.dtype not in FORMATS:
        return None
    try:
        return NativeLinears(loaded.dtype, torch.get_num_threads())
    except UnavailableError:  # `_open_native` has logged why
        return None


def _name(loaded: LoadedModel, settings: EngineSettings) -> str:
    how = loaded.method or rounding(settings)
    rounded = "" if how is None else f" with {how} weights"
    return f"{type(loaded.model).__name__}, {str(loaded.dtype).removeprefix('torch.')}{rounded}"


def _open_paged(
    settings: EngineSettings, paging: Paging, wanted: int, image_support: _ImageSupport | None, beside: Beside
) -> OpenedRunner:
    """Open the model on a paged cache, without shared prefixes and drafts if it has states: none are kept per block."""
    loaded, recurrent = paging.loaded, paging.recurrent
    state_bytes = 0 if recurrent is None else recurrent.state_bytes
    taken = step_bytes(settings, loaded, wanted, lambda tokens: paging.trial(-(-tokens // TRIAL_BLOCK)))
    size = size_cache(settings, loaded, paging.layers, wanted, state_bytes, beside=beside, step_bytes=taken)
    cache = paging.cache(size.blocks, settings.block_size)
    return OpenedRunner(
        loaded=loaded,
        weight_bytes=loaded.weight_bytes,
        runner=paging.runner(cache, None if image_support is None else image_support.paged),
        max_model_len=size.length,
        max_prefill_tokens=settings.max_prefill_tokens,
        kv_blocks=size.blocks,
        share_prefixes=recurrent is None,
        description=f"{_name(loaded, settings)} on {loaded.device}, {size.description}",
        takes_images=image_support is not None,
        takes_drafts=recurrent is None,
        close=cache.close,
    )


def _open_cached(
    settings: EngineSettings,
    loaded: LoadedModel,
    wanted: int,
    image_support: _ImageSupport | None,
    functions: ModelContext,
    agreement: Agreement,
) -> OpenedRunner:
    """Open with transformers' cache. It has no blocks: their number only bounds the tokens in memory.

    A model that does not go on from its cache as it reads the whole is run without one.
    """
    takes_images = image_support is not None and image_support.check.agrees(
        lambda: CachedModelRunner(loaded.model, loaded.device), settings.block_size, whole=True
    )
    if image_support is not None and not takes_images:
        log.warning(
            "images are refused: the logits of %s after a prompt with an image are not those it has in transformers",
            type(loaded.model).__name__,
        )
    allowed = tolerance(loaded, _rounds(settings, loaded))
    runner = CachedModelRunner.tried(loaded.model, loaded.device, functions, check_ids(loaded), allowed)
    without = CachedModelRunner(loaded.model, loaded.device, functions, keeps=False)
    # Where both disagree, the cache is not to blame: other products than the model's own choose other experts.
    if not agreement.with_runner(runner) and agreement.with_runner(without):
        log.warning(
            "%s goes on from its cache with other logits than it has without: every step reads whole sequences",
            type(loaded.model).__name__,
        )
        runner = without
    shapes, state_bytes = runner.memory_of(check_ids(loaded))
    taken = step_bytes(settings, loaded, wanted, lambda tokens: nullcontext(runner))
    # Rows that are held together have room for more keys, and all are as wide as the longest.
    size = size_cache(settings, loaded, shapes, wanted, state_bytes, step_bytes=taken, growth=_ROWS_GROWTH)
    how = "transformers' own cache" + ("" if runner.together else ", sequences one after the other")
    return OpenedRunner(
        loaded=loaded,
        weight_bytes=loaded.weight_bytes,
        runner=runner,
        max_model_len=size.length,
        max_prefill_tokens=size.length,
        kv_blocks=size.blocks,
        share_prefixes=False,
        description=f"{_name(loaded, settings)} on {loaded.device}, context {size.length}, {how}",
        takes_images=takes_images,
        whole_prompts=not runner.in_pieces,
    )
