"""Requests to a model of embeddings: vectors of texts and of tokens, sparse weights, similarities.

Runs in the worker. The engine pools; the rest is done here: how many dimensions are kept, and the length.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from djl_python.core.errors import ParameterError, TaskError
from djl_python.core.text_tasks import Embedding, EmbedRequest, Granularity, Score, ScoreRequest

from .checkpoint import EncoderCheckpoint
from .texts import Texts
from .work import Numbers, Planner, Work, unit


def embed(texts: Texts, checkpoint: EncoderCheckpoint, request: EmbedRequest) -> Work:
    """An embedding of a text, or of each of its tokens."""
    if request.granularity is Granularity.SPARSE:
        raise TaskError("this model's embeddings are dense: it has no weights of the vocabulary's tokens (SPLADE)")
    read = texts.read(request.text)
    normalizes = checkpoint.normalizes if request.normalize is None else request.normalize
    if request.granularity is Granularity.TOKENS:
        normalizes = bool(request.normalize)  # the checkpoint's modules are about the pooled one

    def finish(outputs: Sequence[Numbers]) -> Embedding:
        return _embedding(_shortened(outputs[0], request.dimensions, normalizes), len(read.sequence))

    return Work((read.input(request.granularity),), finish)


def embed_sparsely(texts: Texts, checkpoint: EncoderCheckpoint, request: EmbedRequest) -> Work:
    """A SPLADE model's weights of the vocabulary's tokens, as far as they are above zero."""
    if request.granularity is Granularity.TOKENS or request.dimensions is not None:
        raise ParameterError("this model's embeddings are sparse: one for each text, of all dimensions", "dimensions")
    read = texts.read(request.text)

    def finish(outputs: Sequence[Numbers]) -> Embedding:
        weights = unit(outputs[0]) if request.normalize else outputs[0]
        indices = np.flatnonzero(weights > 0)
        return Embedding(
            values=_values(weights[indices]),
            shape=(len(indices),),
            indices=tuple(indices.tolist()),
            tokens=len(read.sequence),
        )

    return Work((read.input(Granularity.SPARSE),), finish)


def compare(granularity: Granularity, texts: Texts, checkpoint: EncoderCheckpoint, request: ScoreRequest) -> Work:
    """The cosine of two texts' embeddings."""
    if request.text.pair is None:
        raise ParameterError("expected two texts to compare", request.text.field)
    # A named prompt belongs to the query; documents get the checkpoint's default one.
    query = texts.read(msgspec.structs.replace(request.text, pair=None))
    document = texts.read(msgspec.structs.replace(request.text, text=request.text.pair, pair=None, prompt_name=None))

    def finish(outputs: Sequence[Numbers]) -> Score:
        one, other = (unit(vector.astype(np.float64)) for vector in outputs)
        return Score(value=float(one @ other), tokens=len(query.sequence) + len(document.sequence))

    return Work((query.input(granularity), document.input(granularity)), finish)


def _shortened(vectors: Numbers, dimensions: int | None, normalizes: bool) -> Numbers:
    width = vectors.shape[-1]
    if dimensions is not None and not 1 <= dimensions <= width:
        raise ParameterError(f"dimensions: expected 1 to {width}, got {dimensions}", "dimensions")
    kept = vectors[..., :dimensions]
    return unit(kept) if normalizes else kept


def _embedding(numbers: Numbers, tokens: int) -> Embedding:
    return Embedding(values=_values(numbers), shape=tuple(numbers.shape), tokens=tokens)


def _values(numbers: Numbers) -> array[float]:
    values = array("f")
    values.frombytes(np.ascontiguousarray(numbers, np.float32).tobytes())
    return values


#: By type of the request.
DENSE: Final[Mapping[type, Planner]] = {
    EmbedRequest: embed,
    ScoreRequest: functools.partial(compare, Granularity.TEXT),
}
SPARSE: Final[Mapping[type, Planner]] = {
    EmbedRequest: embed_sparsely,
    ScoreRequest: functools.partial(compare, Granularity.SPARSE),
}
