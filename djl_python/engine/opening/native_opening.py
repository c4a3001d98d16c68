"""Opens a loaded model as a native program, if it can be read as a recipe. Runs in the engine process, once."""

from __future__ import annotations

import errno
import logging
from typing import Final

import torch

from ...core.errors import ModelLoadError
from ..batch.state_slots import StateSlots
from ..checkpoints.loading import LoadedModel, rounding
from ..drafting.speculation import MAX_ROWS
from ..interface import EngineSettings
from ..native.abi.enums import KEYS_PER_GROUP
from ..native.file_mapping import trim_allocator
from ..native.library import UnavailableError, library
from ..native.prefault import PrefaultedRegions
from ..native.program.program import Program
from ..native.program.runner import NativeModelRunner
from ..native.program.sampling import NativeChooser
from ..native.thread_pool import FORMATS
from ..reading.read import read_recipe
from ..reading.recipe import Recipe
from ..reading.recipe_parts import NotUnderstoodError
from .agreement import Agreement
from .cache_size import CacheSize, size_cache
from .draft_size import Beside
from .opened_runner import OpenedRunner, name_of
from .proof import prove
from .trial import LONGEST, Trial

log = logging.getLogger(__name__)

#: Longest context that a model is read for before it is known what the cache can hold: rotations have a row for each
#: position, which of millions took longer to make, and more memory, than all the rest.
_READ_POSITIONS: Final = 1 << 17


def open_native(
    settings: EngineSettings,
    loaded: LoadedModel,
    wanted: int,
    agreement: Agreement,
    advance: PrefaultedRegions | None,
    beside: Beside,
) -> OpenedRunner | str:
    """Open the model as a native program; else why the kernels refuse it, "" where there are none to run it."""
    if settings.kernels == "torch":
        return ""
    try:
        program, recipe, size, states = _open_program(settings, loaded, wanted, agreement.trial, advance, beside)
    except (UnavailableError, NotUnderstoodError) as reason:
        if settings.kernels == "native":
            raise ModelLoadError(f"option.kernels=native: {reason}") from reason
        return _refusal(reason)
    runner = NativeModelRunner(program, settings.block_size, states)
    if not agreement.with_runner(runner, size.blocks, settings.block_size, proved=True):
        program.close()
        if settings.kernels == "native":
            raise ModelLoadError(
                f"option.kernels=native: the kernels' logits are not those of {type(loaded.model).__name__}"
            )
        return "their logits are not the model's own"
    # The program has the weights now, and torch's idle threads would only spin beside the program's.
    for parameter in loaded.model.parameters():
        parameter.data = torch.empty(0, dtype=parameter.dtype)
    torch.set_num_threads(1)
    trim_allocator()
    chooser = NativeChooser(program.pool, program.maxima_of)

    def close() -> None:
        chooser.close()
        program.close()

    return OpenedRunner(
        loaded=loaded,
        kind="native",
        weight_bytes=program.weight_bytes,
        cache_bytes=size.bytes,
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
        pick=runner.pick,
        close=close,
        resident_blocks=lambda: program.resident_blocks,
        description=f"{name_of(loaded, settings)} on cpu (native kernels, {program.pool.vectors}), {size.description}",
    )


def _refusal(reason: UnavailableError | NotUnderstoodError) -> str:
    """Why the kernels refuse a model; "", with a line in the log, if there are none to run it, whatever it is."""
    if isinstance(reason, NotUnderstoodError):
        try:
            library()
            return str(reason)
        except UnavailableError as lacking:
            reason = lacking
    log.info("no native kernels: %s; the model runs on torch", reason)
    return ""


def _open_program(
    settings: EngineSettings,
    loaded: LoadedModel,
    wanted: int,
    trial: Trial,
    advance: PrefaultedRegions | None,
    beside: Beside,
) -> tuple[Program, Recipe, CacheSize, StateSlots | None]:
    """The program, its recipe, its cache's size, and the slots of its recurrent states if it has any.

    Raises:
        UnavailableError: there are no kernels for its numbers, or on this machine.
        NotUnderstoodError: the model can't be read as a recipe, or a setting keeps it from the kernels.
        ModelLoadError: there is no memory for it.
    """
    if loaded.device.type != "cpu" or loaded.dtype not in FORMATS:
        raise UnavailableError(f"they do not compute {loaded.dtype} on {loaded.device}")
    if settings.image_example is not None:
        raise NotUnderstoodError("they do not run models that take images")
    if settings.block_size % KEYS_PER_GROUP:
        raise NotUnderstoodError(f"option.block_size={settings.block_size} is not a multiple of {KEYS_PER_GROUP}")
    recipe, size = _read_and_size(settings, loaded, wanted, beside)
    prove(recipe, loaded, trial, torch.get_num_threads())
    states = StateSlots(settings.max_batch_size, size.saved_states) if recipe.state_bytes(loaded.dtype) else None
    try:
        program = Program(
            recipe,
            loaded.dtype,
            rounding(settings),
            blocks=size.blocks,
            block_size=settings.block_size,
            states=0 if states is None else states.count,
            max_tokens=settings.max_batch_size + max(settings.max_prefill_tokens, LONGEST, MAX_ROWS),
            threads=torch.get_num_threads(),
            prefaulted=advance,
        )
    except OSError as exc:
        if exc.errno != errno.ENOMEM:
            raise
        raise ModelLoadError(f"no memory for the weights and what is reserved: {size.description}") from exc
    return program, recipe, size, states


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
