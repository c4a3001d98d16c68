"""Proves a recipe: checks that its program gives the model's own logits, before anything is rounded.

Runs in the engine process, once. Both are computed in fp32, where rounding is no excuse: a wrong program is off by a
    thousand times as much as a right one. Layers of the same structure are equivalent for this, so only the first
    layers of a large model are computed, enough to see every structure.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor

from ...batch.state_slots import StateSlots
from ...call_errors import CALL_ERRORS
from ...checkpoints.dequantizing_linear import QuantizedWeight
from ...checkpoints.expert_stacks import ExpertStack
from ...checkpoints.linears import Linear
from ...checkpoints.loading import LoadedModel
from ...checkpoints.weights import Weight, dense
from ...devices.free_memory import available_bytes
from ...reading.recipe.decoder import Recipe
from ...reading.recipe.primitives import ExpertLinears, NotUnderstoodError
from ...reading.watching.copies import is_by_token
from ...runner.probe import Probe, distances, read_in_pieces
from ..program.program import Program
from ..program.runner import NativeModelRunner
from .exact import ExactModel

log = logging.getLogger(__name__)

_BLOCK: Final = 16
_FP32_BYTES: Final = 4
_MEMORY_SHARE: Final = 0.5  # of the memory that is available
#: Below this size of weights (fp32 bytes), more layers are computed than needed to see every structure. What is packed
#: of all layers is compared in the end, with logits of the model's own format (`runner.reference`).
ALL_UP_TO: Final = 32 << 20
# A program's tolerance (`probe.distances`), at three quarters of the positions and at any: a multiple of the model's
# own distance after its embedded text is disturbed in the last digits, and a little more. Right programs are below 1
# and 10 times that, nearly all wrong ones at thousands.
_DISTURBANCE: Final = 1e-6
_QUARTERS: Final = (30.0, 1e-10)
_ANY: Final = (300.0, 1e-9)
#: Weights that stay in their checkpoint: what they are made of is not the recipe's.
_IN_CHECKPOINTS: Final = (ExpertStack, QuantizedWeight)


def prove(recipe: Recipe, loaded: LoadedModel, probe: Probe, threads: int) -> None:
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
        Proof(loaded, probe, layers).check(recipe, threads)
    except CALL_ERRORS as error:
        raise NotUnderstoodError(f"{type(error).__name__}: {error}") from error


class Proof:
    """The fp32 result of a model's first `layers` layers for a text, and the effect of rounding alone."""

    def __init__(self, loaded: LoadedModel, probe: Probe, layers: int) -> None:
        self._probe, self._layers = probe, layers
        exact = ExactModel(loaded, probe, layers)
        self._expected = exact.logits()
        self._rounding = distances(exact.logits(_DISTURBANCE), self._expected)

    def check(self, recipe: Recipe, threads: int) -> None:
        """Raise NotUnderstoodError if the recipe's program computes something else."""
        logits = program_logits(narrowed(recipe, self._probe, self._layers), self._probe, threads)
        off = distances(logits, self._expected)
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


def program_logits(recipe: Recipe, probe: Probe, threads: int) -> Tensor:
    """(tokens, rows) logits of a recipe's program in fp32."""
    states = StateSlots(1, 0) if recipe.state_bytes(torch.float32) else None
    program = Program(
        recipe, torch.float32, blocks=2 + len(probe.ids) // _BLOCK, block_size=_BLOCK,
        states=0 if states is None else states.count, max_tokens=len(probe.ids), threads=threads,
    )  # fmt: skip
    try:
        runner = NativeModelRunner(program, _BLOCK, states)
        return read_in_pieces(runner, probe.places.tolist(), _BLOCK)
    finally:
        program.close()


def narrowed(recipe: Recipe, probe: Probe, layers: int) -> Recipe:
    """The recipe's first layers, for the probe's tokens only; without codes, as these multiply rounded numbers."""
    inputs = recipe.token_inputs
    if inputs is not None and is_by_token(inputs.table, len(recipe.embedding)):
        inputs = dataclasses.replace(inputs, table=inputs.table[probe.rows.clamp(max=len(inputs.table) - 1)])
    bias = recipe.head.bias
    return dataclasses.replace(
        recipe,
        embedding=_rows(recipe.embedding, probe.rows),
        layers=_without_codes(recipe.layers[:layers]),
        head=Linear(_rows(recipe.head.weight, probe.rows), None if bias is None else bias[probe.rows]),
        token_inputs=inputs,
    )


def _rows(weight: Weight, rows: Tensor) -> Tensor:
    """Some rows of a weight, as numbers."""
    return dense(weight[rows]) if isinstance(weight, QuantizedWeight) else dense(weight)[rows]


def _without_codes(part: Any) -> Any:
    """A part of a recipe with numbers in the place of a checkpoint's codes."""
    if isinstance(part, Linear):
        return part if isinstance(part.weight, Tensor) else dataclasses.replace(part, weight=part.numbers)
    if isinstance(part, ExpertLinears):
        weight = part.weight
        if isinstance(weight, Tensor) or not isinstance(weight.experts[0], QuantizedWeight):
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
        elif size <= ALL_UP_TO:
            count = i + 1
    return count


def _structure(part: Any) -> Any:
    """A part of a recipe without its weights: equal for two layers that compute the same with other weights."""
    if dataclasses.is_dataclass(part) and not isinstance(part, _IN_CHECKPOINTS):
        return type(part).__name__, tuple((name, _structure(value)) for name, value in _fields(part))
    if isinstance(part, (list, tuple)):
        return tuple(map(_structure, part))
    return tuple(part.shape) if hasattr(part, "shape") else part


def _numbers(part: Any) -> Iterator[int]:
    """The sizes of the weights in a part of a recipe."""
    if isinstance(part, _IN_CHECKPOINTS) or (hasattr(part, "shape") and not dataclasses.is_dataclass(part)):
        yield math.prod(part.shape)
    elif dataclasses.is_dataclass(part):
        for _, value in _fields(part):
            yield from _numbers(value)
    elif isinstance(part, (list, tuple)):
        for each in part:
            yield from _numbers(each)


def _fields(part: Any) -> Iterator[tuple[str, Any]]:
    """Name and value of a part's fields, but those that tell where weights come from."""
    return ((each.name, getattr(part, each.name)) for each in dataclasses.fields(part) if each.compare)
