"""Short steps to try a runner before it runs a model. Runs in the engine process, once."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from ..batch.chunk import SequenceChunk
from .model_runner import ModelRunner

_SHORT: Final = 12


def probe_prompt(vocabulary: int) -> list[int]:
    """A few different token ids, the same at every start."""
    return [(7 * i + 3) % vocabulary for i in range(_SHORT)]


def probe_step(runner: ModelRunner, *chunks: SequenceChunk) -> Tensor:
    """Run a step, and count the chunks' tokens as computed; returns the logits."""
    logits = runner.run(list(chunks))
    for chunk in chunks:
        chunk.sequence.computed += chunk.length
    return logits


def are_close(actual: Tensor, expected: Tensor, allowed: float) -> bool:
    """Whether logits differ by at most `allowed`, relative to the greatest expected logit, if above 1, else to 1."""
    return bool((actual - expected).abs().max() <= allowed * max(1.0, float(expected.abs().max())))
