"""Requests to a classifier of texts: labels, relevance of documents, labels that the request defines.

Runs in the worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from djl_python.core.errors import ParameterError
from djl_python.core.text_tasks import (
    Activation,
    Classification,
    ClassifyRequest,
    Granularity,
    Label,
    Score,
    ScoreRequest,
    ZeroShotRequest,
)

from .checkpoint import EncoderCheckpoint
from .texts import Texts
from .work import Numbers, Planner, Work, sigmoid, softmax


def score(texts: Texts, checkpoint: EncoderCheckpoint, request: ScoreRequest) -> Work:
    """The relevance of a document to a query, from a cross-encoder: a model with one label."""
    if len(checkpoint.labels) != 1:
        raise ParameterError(
            f"scores of two texts are for models with one label; this one has {len(checkpoint.labels)}: "
            f"{', '.join(checkpoint.labels[:5])}",
            request.text.field,
        )
    read = texts.read(request.text)

    def finish(outputs: Sequence[Numbers]) -> Score:
        (value,) = _scores(outputs[0], request.activation, checkpoint)
        return Score(value=float(value), tokens=len(read.sequence))

    return Work((read.input(Granularity.TEXT),), finish)


def classify(texts: Texts, checkpoint: EncoderCheckpoint, request: ClassifyRequest) -> Work:
    """The labels of a text, the best first."""
    read = texts.read(request.text)

    def finish(outputs: Sequence[Numbers]) -> Classification:
        scores = _scores(outputs[0], request.activation, checkpoint).tolist()
        labels = [Label(name, value) for name, value in zip(checkpoint.labels, scores, strict=True)]
        best = sorted(labels, key=lambda label: -label.score)[: request.top]
        return Classification(labels=tuple(best), values=tuple(scores), tokens=len(read.sequence))

    return Work((read.input(Granularity.TEXT),), finish)


def choose(texts: Texts, checkpoint: EncoderCheckpoint, request: ZeroShotRequest) -> Work:
    """The request's labels that fit a text: it entails a sentence about each."""
    entailment = checkpoint.entailment
    if entailment is None or len(checkpoint.labels) < 2:
        raise ParameterError(
            "labels of a request's own are for models of natural language inference, with a label entailment; this one "
            f"has {', '.join(checkpoint.labels[:5])}",
            "candidate_labels",
        )
    contradiction = _contradiction(checkpoint, entailment)
    premises = (
        msgspec.structs.replace(request.text, pair=request.hypothesis.replace("{}", label)) for label in request.labels
    )
    reads = [texts.read(premise, "first") for premise in premises]

    def finish(outputs: Sequence[Numbers]) -> Classification:
        logits = np.stack(outputs)
        if request.multi_label or len(reads) == 1:
            scores = softmax(logits[:, [contradiction, entailment]])[:, 1]
        else:
            scores = softmax(logits[:, entailment])
        labels = [Label(name, value) for name, value in zip(request.labels, scores.tolist(), strict=True)]
        return Classification(
            labels=tuple(sorted(labels, key=lambda label: -label.score)),
            tokens=sum(len(read.sequence) for read in reads),
        )

    return Work(tuple(read.input(Granularity.TEXT) for read in reads), finish)


def _contradiction(checkpoint: EncoderCheckpoint, entailment: int) -> int:
    """The label of a text that contradicts another; transformers takes the one at the other end."""
    return len(checkpoint.labels) - 1 if entailment == 0 else 0


def _scores(logits: Numbers, asked: Activation, checkpoint: EncoderCheckpoint) -> Numbers:
    activation = checkpoint.activation if asked is Activation.MODEL else asked
    if activation is Activation.NONE:
        return logits
    return sigmoid(logits) if activation is Activation.SIGMOID else softmax(logits)


#: By type of the request.
CLASSES: Final[Mapping[type, Planner]] = {ScoreRequest: score, ClassifyRequest: classify, ZeroShotRequest: choose}
