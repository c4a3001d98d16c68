"""Steps that are recorded once for each of some sizes, and replayed with other numbers. Engine process, on GPUs.

A model's operations are launched one by one from Python, which takes the host some 30 ms a step however few tokens
there are. What is recorded is launched at once. A step of any mixture of prompts and decoding sequences runs so, if its
tokens are not more than are recorded; longer prompts keep the GPU busy for about as long as their launches take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..batch.chunk import SequenceChunk
from .token_plan import AttendByToken, TokenPlan, numbers_for
from .torch_cache import TorchCache

#: Tokens of the steps that are recorded. Each token reads all of its context by itself, which is why there are no more.
SIZES: Final = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
#: The sizes that a model is tried with: most tokens, those of a text's pieces, and single ones.
TRIED_SIZES: Final = (1, 8, 96, 512)


@dataclass(frozen=True)
class Recording:
    """How steps are recorded on a device.

    Attributes:
        by_token: the attention of recorded steps.
        record: does some work and records it; returns what does it again. Raises RuntimeError where it can't.
    """

    by_token: AttendByToken
    record: Callable[[Callable[[], None]], Callable[[], None]]


class StepGraphs:
    """The recorded steps of a model.

    They know nothing of what was recorded, so that its memory, and theirs, is free as soon as nobody has them.

    Args:
        max_rows: most positions of a step whose logits are wanted.
        max_blocks: most blocks that a step's sequences have together.
    """

    def __init__(
        self, cache: TorchCache, device: torch.device, recording: Recording, max_rows: int, max_blocks: int
    ) -> None:
        self._cache = cache
        self._recording = recording
        self._max_rows = min(SIZES[-1], max_rows)
        self._numbers = torch.zeros(
            numbers_for(SIZES[-1], self._max_rows) + max_blocks + 1, dtype=torch.long, device=device
        )
        self._logits = torch.empty(0, device=device)  # of all sizes
        self._recorded: list[tuple[TokenPlan, Callable[[], None]]] = []  # the fewest tokens first

    def record(self, forward: Callable[[TokenPlan], Tensor], sizes: Iterable[int]) -> None:
        """Record steps of so many tokens, the largest first: the others then fit its memory.

        Args:
            forward: the model's forward pass: (rows, vocabulary) logits of a plan's `keep`.

        Raises:
            RuntimeError: they can't be recorded.
        """
        for tokens in sorted(sizes, reverse=True):
            self._recorded.insert(0, self._step(forward, tokens))

    def run(self, chunks: list[SequenceChunk], keep: npt.NDArray[np.int64]) -> Tensor | None:
        """Compute the chunks, one after the other.

        Args:
            keep: rows of the flat batch whose logits are wanted.

        Returns:
            (len(keep), vocabulary), which the next run overwrites; None if no step of this size is recorded.
        """
        tokens = sum(chunk.length for chunk in chunks)
        for plan, replay in self._recorded:
            if plan.tokens >= tokens:
                if not plan.fill(chunks, keep):
                    return None
                replay()
                return self._logits[: len(keep)]
        return None

    def _step(self, forward: Callable[[TokenPlan], Tensor], tokens: int) -> tuple[TokenPlan, Callable[[], None]]:
        """A recorded step, of tokens that nobody reads."""
        rows = min(tokens, self._max_rows)
        plan = TokenPlan(
            self._numbers, tokens, rows, self._cache.block_size, self._cache.spare_block, self._recording.by_token
        )
        plan.fill([], np.zeros(0, np.int64))
        if not len(self._logits):
            logits = forward(plan)
            self._logits = logits.new_empty(self._max_rows, logits.shape[1])

        def work() -> None:
            self._logits[:rows].copy_(forward(plan))

        return plan, self._recording.record(work)
