"""Runs models whose attention can't be replaced, with transformers' own cache. Runs in the engine process.

Correct for every causal language model that `generate` can run, and slow: one forward pass a sequence. Scheduling,
sampling and everything around it are the same.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

import torch
from torch import Tensor

from .model_runner import rows_of
from .scheduler import Chunk
from .sequence import Sequence

# What the forward functions of transformers call their cache: attention's, and recurrent models'.
_CACHE_ARGUMENTS: Final = ("past_key_values", "cache_params")


class CachedModelRunner:
    """Keeps a transformers cache for every sequence that has begun; without one, reads the sequence again each step."""

    def __init__(self, model: Any, device: torch.device) -> None:
        self._model = model
        self._device = device
        self._caches: dict[int, Any] = {}
        known = inspect.signature(model.forward).parameters
        self._argument = next((name for name in _CACHE_ARGUMENTS if name in known), None)

    @torch.inference_mode()
    def run(self, chunks: list[Chunk]) -> Tensor:
        return torch.cat([self._run_one(chunk)[-rows_of(chunk) :] for chunk in chunks])

    def forget(self, sequence: Sequence) -> None:
        self._caches.pop(sequence.id, None)

    def _run_one(self, chunk: Chunk) -> Tensor:
        """Logits of (at least) the chunk's positions: (n, vocabulary)."""
        sequence, first = chunk.sequence, chunk.sequence.computed
        end = first + chunk.length
        if self._argument is None:
            output = self._model(input_ids=self._ids(sequence.tokens[:end]), use_cache=False)
        else:
            # A sequence that was preempted begins again.
            cache = self._caches.get(sequence.id) if first else None
            output = self._model(
                input_ids=self._ids(sequence.tokens[first:end]), use_cache=True, **{self._argument: cache}
            )
            self._caches[sequence.id] = output[self._argument]
        logits: Tensor = output.logits[0]
        return logits

    def _ids(self, tokens: list[int]) -> Tensor:
        return torch.tensor([tokens], device=self._device)
