"""Runs models whose attention can't be replaced, with transformers' own cache. Runs in the engine process.

Correct for every causal language model that `generate` can run, and slow: one forward pass a sequence. Scheduling,
sampling and everything around it are the same.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

import torch
from torch import Tensor

from .images import model_inputs
from .model_runner import rows_of
from .scheduler import Chunk
from .sequence import Sequence

# What the forward functions of transformers call their cache: attention's, and recurrent models'.
_CACHE_ARGUMENTS: Final = ("past_key_values", "cache_params")
# Where models with positions in three dimensions remember, for one batch, how far these are from counting tokens.
_DELTAS: Final = "rope_deltas"


class CachedModelRunner:
    """Keeps a transformers cache for every sequence that has begun; without one, reads the sequence again each step."""

    def __init__(self, model: Any, device: torch.device) -> None:
        self._model = model
        self._device = device
        self._caches: dict[int, Any] = {}
        known = inspect.signature(model.forward).parameters
        self._argument = next((name for name in _CACHE_ARGUMENTS if name in known), None)
        self._counter = next((module for module in model.modules() if hasattr(module, _DELTAS)), None)
        self._deltas: dict[int, Any] = {}

    @torch.inference_mode()
    def run(self, chunks: list[Chunk]) -> Tensor:
        found = [(self._run_one(chunk), rows_of(chunk)) for chunk in chunks]
        return torch.cat([logits[len(logits) - rows :] for logits, rows in found])

    def operator_seconds(self) -> dict[str, float]:
        return {}

    def forget(self, sequence: Sequence) -> None:
        self._caches.pop(sequence.id, None)
        self._deltas.pop(sequence.id, None)

    def _run_one(self, chunk: Chunk) -> Tensor:
        """Logits of (at least) the chunk's positions: (n, vocabulary)."""
        sequence, first = chunk.sequence, chunk.sequence.computed
        if not first:  # new, or preempted: it begins again
            self.forget(sequence)
        if self._counter is not None:
            setattr(self._counter, _DELTAS, self._deltas.get(sequence.id))
        if sequence.images is not None and sequence.id not in self._caches:
            logits = self._begin_with_images(chunk)
        else:
            logits = self._continue(sequence, first, first + chunk.length)
        if self._counter is not None:
            self._deltas[sequence.id] = getattr(self._counter, _DELTAS)
        return logits

    def _continue(self, sequence: Sequence, first: int, end: int) -> Tensor:
        """Read what follows the cache."""
        if self._argument is None:
            output = self._model(input_ids=self._ids(sequence.tokens[:end]), use_cache=False)
        else:
            output = self._model(
                input_ids=self._ids(sequence.tokens[first:end]),
                use_cache=True,
                **{self._argument: self._caches.get(sequence.id)},
            )
            self._caches[sequence.id] = output[self._argument]
        logits: Tensor = output.logits[0]
        return logits

    def _begin_with_images(self, chunk: Chunk) -> Tensor:
        """Read a prompt from its beginning to the end of its last image at once: images may look forward.

        A chunk that ends before that leaves no cache, and the next one comes by here again.
        """
        sequence, images = chunk.sequence, chunk.sequence.images
        assert images is not None and self._argument is not None
        end = sequence.computed + chunk.length
        output = self._model(
            input_ids=self._ids(sequence.tokens[: images.end]),
            use_cache=True,
            **model_inputs(images, images.end, self._model),
        )
        if end < images.end:
            return output.logits[0, :end]  # type: ignore[no-any-return]
        self._caches[sequence.id] = output[self._argument]
        if end == images.end:
            return output.logits[0]  # type: ignore[no-any-return]
        return torch.cat([output.logits[0], self._continue(sequence, images.end, end)])

    def _ids(self, tokens: list[int]) -> Tensor:
        return torch.tensor([tokens], device=self._device)
