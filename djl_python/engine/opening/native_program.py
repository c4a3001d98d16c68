"""Opens a loaded model as a native program, if it can be read as a recipe. Runs in the engine process, once."""

from __future__ import annotations

import errno
import logging
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import torch

from ...core.errors import MemoryLoadError, ModelLoadError
from ..batch.scheduler import MAX_DRAFT_ROWS
from ..batch.state_slots import StateSlots
from ..checkpoints.loading import rounding
from ..native.abi.enums import KEYS_PER_GROUP
from ..native.file_mapping import trim_allocator
from ..native.library import UnavailableError, library
from ..native.prefault import PrefaultedRegions
from ..native.program.program import Program
from ..native.program.runner import NativeModelRunner
from ..native.program.sampling import NativeRowSampler
from ..native.thread_pool import FORMATS
from ..reading.inference.decoder import read_recipe
from ..reading.recipe.decoder import Recipe
from ..reading.recipe.primitives import NotUnderstoodError
from .cache_size import CacheSize, size_cache
from .candidate import OpeningRequest, Refusal
from .opened_model import NATIVE, OpenedModel, Scheduling, SequenceMemory, TokenSampling, info_of, name_of
from .proof import prove
from .trial import LONGEST

log = logging.getLogger(__name__)

#: Longest context that a model is read for before it is known what the cache can hold: rotations have a row for each
#: position, which of millions took longer to make, and more memory, than all the rest.
_READ_POSITIONS: Final = 1 << 17


@dataclass(frozen=True)
class NativeProgram:
    """The fused operations of the CPU kernels.

    Attributes:
        prefaulted: memory that is being taken for it.
    """

    prefaulted: PrefaultedRegions | None

    def open(self, request: OpeningRequest) -> OpenedModel | Refusal:
        found = self._open(request)
        if isinstance(found, Refusal) and request.settings.kernels == "native":
            raise ModelLoadError(f"option.kernels=native: {found.reason}")
        return found

    def _open(self, request: OpeningRequest) -> OpenedModel | Refusal:
        with ExitStack() as undo:
            if self.prefaulted is not None:
                self.prefaulted.stop()
                undo.callback(self.prefaulted.give_back)
            request.page_attention_(undo)  # which is read by what it is called with
            try:
                program, recipe, size, states = _open_program(request, self.prefaulted)
            except (UnavailableError, NotUnderstoodError) as reason:
                return _refusal(reason)
            undo.callback(program.close)
            runner = NativeModelRunner(program, request.settings.block_size, states)
            if not request.reference.accepts(runner, size.blocks, request.settings.block_size, proved=True):
                return Refusal("their logits are not the model's own", told=True)
            undo.pop_all()
        return _opened(request, program, recipe, size, states, runner)


def _opened(
    request: OpeningRequest,
    program: Program,
    recipe: Recipe,
    size: CacheSize,
    states: StateSlots | None,
    runner: NativeModelRunner,
) -> OpenedModel:
    settings, loaded = request.settings, request.loaded
    # The program has the weights now, and torch's idle threads would only spin beside the program's.
    for parameter in loaded.model.parameters():
        parameter.data = torch.empty(0, dtype=parameter.dtype)
    torch.set_num_threads(1)
    trim_allocator()
    row_sampler = NativeRowSampler(program.pool, program.maxima_of)

    def close() -> None:
        row_sampler.close()
        program.close()

    return OpenedModel(
        loaded=loaded,
        runner=runner,
        memory=SequenceMemory(
            max_model_len=size.length,
            kv_blocks=size.blocks,
            share_prefixes=True,
            states=states,
            resident_blocks=lambda: program.resident_blocks,
        ),
        scheduling=Scheduling(max_prefill_tokens=settings.max_prefill_tokens, short_context=recipe.short_context),
        info=info_of(loaded, settings, NATIVE, program.weight_bytes, size.bytes),
        description=f"{name_of(loaded, settings)} on cpu (native kernels, {program.pool.vectors}), {size.description}",
        sampling=TokenSampling(row_sampler, runner.pick),
        takes_drafts=states is None,
        close=close,
    )


def _refusal(reason: UnavailableError | NotUnderstoodError) -> Refusal:
    """Why the kernels refuse a model; with a line in the log, if there are none to run it, whatever it is."""
    if isinstance(reason, NotUnderstoodError):
        try:
            library()
            return Refusal(str(reason), told=True)
        except UnavailableError as lacking:
            reason = lacking
    log.info("no native kernels: %s; the model runs on torch", reason)
    return Refusal(str(reason))


def _open_program(
    request: OpeningRequest, prefaulted: PrefaultedRegions | None
) -> tuple[Program, Recipe, CacheSize, StateSlots | None]:
    """The program, its recipe, its cache's size, and the slots of its recurrent states if it has any.

    Raises:
        UnavailableError: there are no kernels for its numbers, or on this machine.
        NotUnderstoodError: the model can't be read as a recipe, or a setting keeps it from the kernels.
        MemoryLoadError: there is no memory for it.
    """
    settings, loaded = request.settings, request.loaded
    if loaded.device.type != "cpu" or loaded.dtype not in FORMATS:
        raise UnavailableError(f"they do not compute {loaded.dtype} on {loaded.device}")
    if settings.image_example is not None:
        raise NotUnderstoodError("they do not run models that take images")
    if settings.block_size % KEYS_PER_GROUP:
        raise NotUnderstoodError(f"option.block_size={settings.block_size} is not a multiple of {KEYS_PER_GROUP}")
    recipe, size = _read_and_size(request)
    prove(recipe, loaded, request.reference.trial, torch.get_num_threads())
    states = StateSlots(settings.max_batch_size, size.saved_states) if recipe.state_bytes(loaded.dtype) else None
    try:
        program = Program(
            recipe,
            loaded.dtype,
            rounding(settings),
            blocks=size.blocks,
            block_size=settings.block_size,
            states=0 if states is None else states.count,
            max_tokens=settings.max_batch_size + max(settings.max_prefill_tokens, LONGEST, MAX_DRAFT_ROWS),
            threads=torch.get_num_threads(),
            prefaulted=prefaulted,
        )
    except OSError as exc:
        if exc.errno != errno.ENOMEM:
            raise
        raise MemoryLoadError(f"no memory for the weights and what is reserved: {size.description}") from exc
    return program, recipe, size, states


def _read_and_size(request: OpeningRequest) -> tuple[Recipe, CacheSize]:
    """The model's recipe, for as many positions as its cache can hold, and the cache's size."""
    loaded = request.loaded
    recipe = read_recipe(loaded.model, min(request.length, _READ_POSITIONS))
    shapes = {index: attention.shape for index, attention in enumerate(recipe.caches)}
    state_bytes = recipe.state_bytes(loaded.dtype)
    size = size_cache(request.settings, loaded, shapes, request.length, state_bytes, saves=True, beside=request.beside)
    if size.length > _READ_POSITIONS:
        recipe = read_recipe(loaded.model, size.length)
    return recipe, size
