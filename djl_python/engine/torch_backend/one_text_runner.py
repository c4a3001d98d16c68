"""Runs models whose layers keep keys and values themselves, of the text that they read last. Engine process.

DeepSpeed's inference kernels do. They go on with one token at a time; several tokens begin a text.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from ..batch.chunk import SequenceChunk
from ..batch.sequence import Sequence
from ..devices.transfers import indices
from ..runner.model_runner import rows_of


class OneTextRunner:
    """Reads a text again from its beginning, unless it goes on by one token from what the layers have."""

    def __init__(self, model: Any, device: torch.device) -> None:
        self._model = model
        self._device = device
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        self._held: tuple[int, int] | None = None  # a sequence, and how many of its tokens the layers have

    @torch.inference_mode()
    def run(self, chunks: list[SequenceChunk]) -> Tensor:
        rows = [(self._run_one(chunk), rows_of(chunk)) for chunk in chunks]
        return torch.cat([logits[len(logits) - count :] for logits, count in rows])

    def operator_seconds(self) -> dict[str, float]:
        return {}

    def forget(self, sequence: Sequence) -> None:
        if self._held is not None and self._held[0] == sequence.id:
            self._held = None

    def _run_one(self, chunk: SequenceChunk) -> Tensor:
        """Logits of (at least) the chunk's positions: (n, vocabulary)."""
        sequence, first = chunk.sequence, chunk.sequence.computed
        end = first + chunk.length
        if chunk.length > 1 or self._held != (sequence.id, first):
            first = 0
        ids = sequence.tokens[first:end]
        if end == 1:  # one token alone would go on from the text before: it is read twice, and has not seen the second
            self._held = None
            return self._logits(ids * 2, 0)[:1]
        self._held = sequence.id, end
        return self._logits(ids, first)

    def _logits(self, ids: list[int], first: int) -> Tensor:
        places = indices([list(range(first, first + len(ids)))], self._device)
        positions = {"position_ids": places} if self._takes_positions else {}
        output = self._model(input_ids=indices([ids], self._device), use_cache=False, **positions)
        logits: Tensor = output.logits[0]
        return logits
