"""Opens a loaded model as a native program, if it can be read as a recipe. Runs in the engine process, once."""

from __future__ import annotations

import errno
import logging
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import torch

from ....core.errors import MemoryLoadError, ModelLoadError
from ...batch.scheduler import MAX_DRAFT_ROWS
from ...batch.state_slots import StateSlots
from ...checkpoints.leaving import rounding
from ...reading.inference.decoder import read_recipe
from ...reading.recipe.decoder import Recipe
from ...reading.recipe.primitives import NotUnderstoodError
from ...runner.cache_size import CacheSize, size_cache
from ...runner.file_mapping import trim_allocator
from ...runner.opened_model import NATIVE, OpenedModel, Scheduling, SequenceMemory, TokenSampling, info_of, name_of
from ...runner.opening_request import OpeningRequest, Refusal
from ...runner.probe import LONGEST
from ..abi.enums import KEYS_PER_GROUP
from ..library import KernelsUnavailableError, library
from ..prefault import PrefaultedRegions
from ..program.program import Program
from ..program.runner import NativeModelRunner
from ..program.sampling import NativeRowSampler
from ..thread_pool import FORMATS
from .proof import prove

log = logging.getLogger(__name__)

#: Longest context for which a model is read before the cache's size is known. Rotations have a row for each position:
#: millions of rows would take more time and memory than everything else.
READ_POSITIONS: Final = 1 << 17


@dataclass(frozen=True)
class NativeProgram:
    """The fused operations of the CPU kernels.

    Attributes:
        prefaulted: memory that is being taken for it.
    """

    prefaulted: PrefaultedRegions | None

    def open(self, request: OpeningRequest) -> OpenedModel | Refusal:
        outcome = self._open(request)
        if isinstance(outcome, Refusal) and request.settings.kernels == "native":
            raise ModelLoadError(f"option.kernels=native: {outcome.reason}")
        return outcome

    def _open(self, request: OpeningRequest) -> OpenedModel | Refusal:
        with ExitStack() as undo:
            if self.prefaulted is not None:
                self.prefaulted.stop()
                undo.callback(self.prefaulted.give_back)
            request.page_attention_(undo)  # reading takes attention's geometry from its arguments
            try:
                program, recipe, size, states = _open_program(request, self.prefaulted)
            except (KernelsUnavailableError, NotUnderstoodError) as reason:
                return _refusal(reason)
            undo.callback(program.close)
            if lack := _lacks_targets(request, program):
                return Refusal(lack, shown=True)
            runner = NativeModelRunner(program, request.settings.block_size, states)
            if not request.reference.accepts(runner, size.blocks, request.settings.block_size, proved=True):
                return Refusal("their logits are not the model's own", shown=True)
            undo.pop_all()
        return _opened(request, program, recipe, size, states, runner)


def _lacks_targets(request: OpeningRequest, program: Program) -> str:
    """Why a program can't compute each adapter that the model may get; "": it can.

    A table of positions is not looked up by a token's id; hardly an adapter changes one.
    """
    linears = [name for name, target in request.targets.items() if not target.embedding]
    missing = next((name for name in linears if name not in program.adapters.modules), None)
    return "" if missing is None else f"they can't add what a LoRA adapter may do to {missing}"


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
        targets={name: each for name, each in request.targets.items() if name in runner.adaptable_modules},
        close=close,
    )


def _refusal(reason: KernelsUnavailableError | NotUnderstoodError) -> Refusal:
    """Why the kernels refuse a model; logs a line if there are no kernels at all."""
    if isinstance(reason, NotUnderstoodError):
        try:
            library()
            return Refusal(str(reason), shown=True)
        except KernelsUnavailableError as lacking:
            reason = lacking
    log.info("no native kernels: %s; the model runs on torch", reason)
    return Refusal(str(reason))


def _open_program(
    request: OpeningRequest, prefaulted: PrefaultedRegions | None
) -> tuple[Program, Recipe, CacheSize, StateSlots | None]:
    """The program, its recipe, its cache's size, and the slots of its recurrent states if it has any.

    Raises:
        KernelsUnavailableError: there are no kernels for its numbers, or on this machine.
        NotUnderstoodError: the model can't be read as a recipe, or a setting keeps it from the kernels.
        MemoryLoadError: there is no memory for it.
    """
    settings, loaded = request.settings, request.loaded
    if loaded.device.type != "cpu" or loaded.dtype not in FORMATS:
        raise KernelsUnavailableError(f"they do not compute {loaded.dtype} on {loaded.device}")
    if settings.image_example is not None:
        raise NotUnderstoodError("they do not run models that take images")
    if settings.block_size % KEYS_PER_GROUP:
        raise NotUnderstoodError(f"option.block_size={settings.block_size} is not a multiple of {KEYS_PER_GROUP}")
    recipe, size = _read_and_size(request)
    prove(recipe, loaded, request.reference.probe, torch.get_num_threads())
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
            names={module: name for name, module in loaded.model.named_modules() if name in request.targets},
        )
    except OSError as exc:
        if exc.errno != errno.ENOMEM:
            raise
        raise MemoryLoadError(f"no memory for the weights and what is reserved: {size.description}") from exc
    return program, recipe, size, states


def _read_and_size(request: OpeningRequest) -> tuple[Recipe, CacheSize]:
    """The model's recipe, for as many positions as its cache can hold, and the cache's size."""
    loaded = request.loaded
    recipe = read_recipe(loaded.model, min(request.length, READ_POSITIONS))
    shapes = {index: attention.shape for index, attention in enumerate(recipe.caches)}
    state_bytes = recipe.state_bytes(loaded.dtype)
    size = size_cache(
        request.settings, loaded, shapes, request.length, state_bytes, saves=True, draft=request.draft,
        step_bytes=request.adapter_bytes,
    )  # fmt: skip
    if size.length > READ_POSITIONS:
        recipe = read_recipe(loaded.model, size.length)
    return recipe, size
