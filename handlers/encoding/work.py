"""The engine's work for a request, and the function that makes the result. Runs in the worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from djl_python.core.text_tasks import TextTaskResult
from djl_python.ipc.encodings import EncoderInput

from .checkpoint import EncoderCheckpoint
from .texts import Texts

Numbers = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Work:
    """The work for one request.

    Attributes:
        inputs: the engine's inputs.
        finish: makes the result from the numbers for each input, in any thread; raises ParameterError if the model
            can't do what the request asks for.
        fillings: how many answers for masks that result has.
    """

    inputs: tuple[EncoderInput, ...]
    finish: Callable[[Sequence[Numbers]], TextTaskResult]
    fillings: int = 0


@dataclass(frozen=True)
class Plan:
    """What a request of several texts needs.

    Attributes:
        inputs: what the engine computes. Equal ones are computed once: a query beside many documents is one text.
        steps: the work for each text, and where the numbers of its inputs are among those of `inputs`.
    """

    inputs: list[EncoderInput]
    steps: list[tuple[Work, list[int]]]

    @classmethod
    def of(cls, works: Sequence[Work]) -> Plan:
        """Hashes every input once, which takes long where they are many: not in the event loop."""
        places: dict[tuple[Any, ...], int] = {}
        inputs: list[EncoderInput] = []
        steps = []
        for work in works:
            own = []
            for one in work.inputs:
                at = places.setdefault(_identity(one), len(inputs))
                if at == len(inputs):
                    inputs.append(one)
                own.append(at)
            steps.append((work, own))
        return cls(inputs, steps)


#: (texts, checkpoint, request) -> its work; raises ParameterError or PayloadError.
Planner = Callable[[Texts, EncoderCheckpoint, Any], Work]
#: The functions that make the work of requests, by their type.
Planners = Mapping[type, Planner]

_LEAST: Final = 1e-12


def _identity(one: EncoderInput) -> tuple[Any, ...]:
    """Equal for inputs that the engine computes the same for."""
    return (tuple(one.ids), tuple(one.type_ids), one.granularity, tuple(one.positions), one.unpooled)


def softmax(logits: Numbers) -> Numbers:
    """Softmax over the last axis."""
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities: Numbers = powers / powers.sum(-1, keepdims=True)
    return probabilities


def sigmoid(logits: Numbers) -> Numbers:
    """The sigmoid of each number; exact for large ones of either sign."""
    powers = np.exp(-np.abs(logits))
    return np.where(logits >= 0, 1 / (1 + powers), powers / (1 + powers)).astype(np.float32)


def unit(vectors: Numbers) -> Numbers:
    """The vectors of the last axis at unit length; zeros stay what they are."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    normalized: Numbers = vectors / np.maximum(lengths, _LEAST)
    return normalized
