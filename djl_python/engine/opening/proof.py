"""Proves a recipe: the program that it becomes gives the model's own logits, before anything is rounded.

Runs in the engine process, once. Both are computed in fp32, where rounding is no excuse: a program that does anything
else than the model is off by a thousand times what a right one is. Layers of the same structure are as good as one
another for that, so of a large model only the first are computed, as many as it takes to see every structure.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor

from ..batch.state_slots import StateSlots
from ..checkpoints.expert_stacks import ExpertStack
from ..checkpoints.loading import LoadedModel
from ..checkpoints.weights import dense
from ..devices.free_memory import available_bytes
from ..native.program.program import Program
from ..native.program.runner import NativeModelRunner
from ..reading.call_errors import CALL_ERRORS
from ..reading.recipe.decoder import Recipe
from ..reading.recipe.primitives import ExpertLinears, Linear, NotUnderstoodError
from ..reading.watching.copies import is_by_token
from .exact import ExactModel
from .trial import Trial, distances, read_in_pieces

log = logging.getLogger(__name__)

_BLOCK: Final = 16
_FP32_BYTES: Final = 4
_MEMORY_SHARE: Final = 0.5  # of the memory that is available
# Weights (fp32 bytes) of which more layers are computed than it takes to see every structure.
_ALL_UP_TO: Final = 128 << 20
# What a program may be off by (`trial.distances`), at three quarters of the positions and at any: so many times what
# the model itself is off by once its embedded text has been disturbed in its last digits, and a little more. Right
# programs are below 1 and 10 times that, nearly all wrong ones at thousands.
_DISTURBANCE: Final = 1e-6
_QUARTERS: Final = (30.0, 1e-10)
_ANY: Final = (300.0, 1e-9)


def prove(recipe: Recipe, loaded: LoadedModel, trial: Trial, threads: int) -> None:
    """Compare the recipe's program to the model, if there is memory for some layers of both in fp32.

    Raises:
        NotUnderstoodError: it computes something else.
    """
    layers = layers_to_see(recipe)
    taken = 2 * _FP32_BYTES * sum(_numbers(recipe.layers[:layers]))
    if taken > available_bytes() * _MEMORY_SHARE:
        log.warning("what the native kernels compute is not proved in fp32: that would take %d MiB", taken >> 20)
        return
    try:
        Proof(loaded, trial, layers).check(recipe, threads)
    except CALL_ERRORS as error:
        raise NotUnderstoodError(f"{type(error).__name__}: {error}") from error


class Proof:
    """What a model's first `layers` layers make of a text in fp32, and how far rounding alone puts that off."""

    def __init__(self, loaded: LoadedModel, trial: Trial, layers: int) -> None:
        self._trial, self._layers = trial, layers
        exact = ExactModel(loaded, trial, layers)
        self._expected = exact.logits()
        self._rounding = distances(exact.logits(_DISTURBANCE), self._expected)

    def check(self, recipe: Recipe, threads: int) -> None:
        """Raise NotUnderstoodError if the recipe's program computes something else."""
        found = program_logits(narrowed(recipe, self._trial, self._layers), self._trial, threads)
        off = distances(found, self._expected)
        for measure, (times, most) in ((_three_quarters, _QUARTERS), (torch.max, _ANY)):
            if not measure(off) <= times * measure(self._rounding) + most:
                raise NotUnderstoodError(f"its logits in fp32 are not the model's own, but off by {measure(off):.1e}")
        log.info(
            "checked in fp32 against the model's own code, layers 1 to %d: logits are off by %.1e",
            self._layers,
            off.median(),
        )


def _three_quarters(x: Tensor) -> Tensor:
    return x.quantile(0.75)


def program_logits(recipe: Recipe, trial: Trial, threads: int) -> Tensor:
    """(tokens, rows) logits of a recipe's program in fp32."""
    states = StateSlots(1, 0) if recipe.state_bytes(torch.float32) else None
    program = Program(
        recipe, torch.float32, blocks=2 + len(trial.ids) // _BLOCK, block_size=_BLOCK,
        states=0 if states is None else states.count, max_tokens=len(trial.ids), threads=threads,
    )  # fmt: skip
    try:
        runner = NativeModelRunner(program, _BLOCK, states)
        return read_in_pieces(runner, trial.places.tolist(), _BLOCK)
    finally:
        program.close()


def narrowed(recipe: Recipe, trial: Trial, layers: int) -> Recipe:
    """The recipe's first layers, for the trial's tokens only; without codes, as these multiply rounded numbers."""
    inputs = recipe.token_inputs
    if inputs is not None and is_by_token(inputs.table, len(recipe.embedding)):
        inputs = dataclasses.replace(inputs, table=inputs.table[trial.rows.clamp(max=len(inputs.table) - 1)])
    bias = recipe.head.bias
    return dataclasses.replace(
        recipe,
        embedding=recipe.embedding[trial.rows],
        layers=_without_codes(recipe.layers[:layers]),
        head=Linear(dense(recipe.head.weight)[trial.rows], None if bias is None else bias[trial.rows]),
        token_inputs=inputs,
    )


def _without_codes(part: Any) -> Any:
    """A part of a recipe with numbers in the place of a checkpoint's codes."""
    if isinstance(part, Linear):
        return part if isinstance(part.weight, Tensor) else dataclasses.replace(part, weight=part.numbers)
    if isinstance(part, ExpertLinears):
        weight = part.weight
        if isinstance(weight, Tensor) or weight.experts[0].codes() is None:
            return part
        return dataclasses.replace(part, weight=weight.dense())
    if isinstance(part, list):
        return [_without_codes(each) for each in part]
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return part
    changed = {each.name: _without_codes(getattr(part, each.name)) for each in dataclasses.fields(part)}
    return dataclasses.replace(part, **changed)


def layers_to_see(recipe: Recipe) -> int:
    """How many of the first layers are computed: of every structure at least one."""
    if recipe.token_inputs is not None:  # all layers' are made at once
        return len(recipe.layers)
    seen: list[Any] = []
    count = size = 0
    for i, layer in enumerate(recipe.layers):
        structure = _structure(layer)
        size += _FP32_BYTES * sum(_numbers(layer))
        if structure not in seen:
            seen.append(structure)
            count = i + 1
        elif size <= _ALL_UP_TO:
            count = i + 1
    return count


def _structure(part: Any) -> Any:
    """A part of a recipe without its weights: equal for two layers that compute the same with other weights."""
    if dataclasses.is_dataclass(part) and not isinstance(part, ExpertStack):
        values = ((each.name, _structure(getattr(part, each.name))) for each in dataclasses.fields(part))
        return type(part).__name__, tuple(values)
    if isinstance(part, (list, tuple)):
        return tuple(map(_structure, part))
    return tuple(part.shape) if hasattr(part, "shape") else part


def _numbers(part: Any) -> Iterator[int]:
    """The sizes of the weights in a part of a recipe."""
    if isinstance(part, ExpertStack) or (hasattr(part, "shape") and not dataclasses.is_dataclass(part)):
        yield math.prod(part.shape)
    elif dataclasses.is_dataclass(part):
        for each in dataclasses.fields(part):
            yield from _numbers(getattr(part, each.name))
    elif isinstance(part, (list, tuple)):
        for each in part:
            yield from _numbers(each)
