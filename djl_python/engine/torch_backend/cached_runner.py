"""Runs models whose attention can't be replaced, with transformers' own cache. Runs in the engine process.

Correct for every causal language model that `generate` can run, and as fast: sequences run one after the other, each
with a cache of its own. Scheduling, sampling and everything else are the same as for any model.
"""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from typing import Any, Final

import torch
from torch import Tensor

from ...core.types import SamplingParams
from ..adapters.peft_files import LoraAdapter
from ..attention.parameters import LayerShape
from ..batch.chunk import SequenceChunk
from ..batch.sequence import Sequence
from ..call_errors import CALL_ERRORS
from ..devices.transfers import indices
from ..runner.model_runner import rows_of
from ..runner.probe_steps import are_close, probe_step
from .adapters import TorchAdapters
from .images import model_inputs
from .recurrent import ModelContext
from .state_rows import has_states, states_of

# What transformers' forward functions call their cache: those of models with attention, and of recurrent models. From
# transformers 5.24 on all do by the last name.
_CACHE_ARGUMENTS: Final = ("past_key_values", "cache_params", "cache")
# Attribute where models with positions in three dimensions keep, for one batch, their offset from token counts.
_DELTAS: Final = "rope_deltas"


class CachedModelRunner:
    """Keeps a transformers cache for each sequence that has begun. Models without one read whole sequences each step.

    Args:
        functions: makes a context that is entered while the model runs.
        in_pieces: whether a prompt may be read in pieces. Some prefill functions begin with an empty state, whatever
            the cache has; a prompt that comes in pieces is then read again from its beginning.
        keeps: whether the model goes on from its cache; else whole sequences are read each step.

    Attributes:
        caches: the model's own caches, by sequence id.
        counter: the module that keeps how far a sequence's positions are from its tokens' numbers, if there is one.
    """

    def __init__(
        self,
        model: Any,
        device: torch.device,
        functions: ModelContext = nullcontext,
        in_pieces: bool = True,
        keeps: bool = True,
    ) -> None:
        self._model = model
        self._device = device
        self._adapters = TorchAdapters(model, device)
        self._functions = functions
        self.caches: dict[int, Any] = {}
        self._known = inspect.signature(model.forward).parameters
        self._argument = next((name for name in _CACHE_ARGUMENTS if keeps and name in self._known), "")
        self.counter = next((module for module in model.modules() if hasattr(module, _DELTAS)), None)
        self._deltas: dict[int, Any] = {}
        self.in_pieces = in_pieces

    @classmethod
    def tried(
        cls, model: Any, device: torch.device, functions: ModelContext, ids: list[int], tolerance: float
    ) -> CachedModelRunner:
        """Make a runner that reads prompts in pieces, if the model then has the same logits.

        Args:
            ids: a prompt to try with.
            tolerance: how much logits may differ, relative to the greatest of them.

        Raises:
            One of `CALL_ERRORS`: by the model's code, when it goes on with a token from its cache.
        """
        _read(cls(model, device, functions), ids, len(ids) - 1, 1)
        in_pieces = _reads_in_pieces(cls(model, device, functions), ids, tolerance)
        return cls(model, device, functions, in_pieces)

    def memory_of(self, ids: list[int]) -> tuple[dict[int, LayerShape], int]:
        """What a sequence leaves in the cache: the layers with keys and values, and the bytes of all its states.

        Args:
            ids: a prompt to try with.
        """
        sequence = Sequence(0, ids, len(ids), SamplingParams(max_new_tokens=1))
        probe_step(self, SequenceChunk(sequence, len(ids)))
        layers = getattr(self.caches.get(sequence.id), "layers", [])
        shapes: dict[int, LayerShape] = {}
        state_bytes = 0
        for index, layer in enumerate(layers):
            if has_states(layer):
                state_bytes += sum(state.nbytes for _, state in states_of(layer))
            if isinstance(keys := getattr(layer, "keys", None), Tensor):
                shapes[index] = LayerShape(keys.shape[1], keys.shape[1], keys.shape[3], layer.values.shape[3])
        self.forget(sequence)
        return shapes, state_bytes

    @torch.inference_mode()
    def run(self, chunks: list[SequenceChunk]) -> Tensor:
        rows = []
        for chunk in chunks:
            with self._functions(), self._adapters.alone(chunk.sequence.adapter_slot):
                rows.append((self._run_one(chunk), rows_of(chunk)))
        return torch.cat([logits[len(logits) - count :] for logits, count in rows])

    def load_adapter(self, slot: int, adapter: LoraAdapter) -> None:
        self._adapters.load(slot, adapter)

    def unload_adapter(self, slot: int) -> None:
        self._adapters.unload(slot)

    def operator_seconds(self) -> dict[str, float]:
        return {}

    def forget(self, sequence: Sequence) -> None:
        self.caches.pop(sequence.id, None)
        self._deltas.pop(sequence.id, None)

    def _run_one(self, chunk: SequenceChunk) -> Tensor:
        """Logits of (at least) the chunk's positions: (n, vocabulary)."""
        sequence, first = chunk.sequence, chunk.sequence.computed
        end = first + chunk.length
        if first and chunk.length > 1 and not self.in_pieces:
            first = 0
        if not first:  # new, or preempted: it begins again
            self.forget(sequence)
        if self.counter is not None:
            setattr(self.counter, _DELTAS, self._deltas.get(sequence.id))
        if sequence.images is not None and sequence.id not in self.caches:
            logits = self._begin_with_images(chunk)
        else:
            logits = self._continue(sequence, first, end, rows_of(chunk))
        if self.counter is not None:
            self._deltas[sequence.id] = getattr(self.counter, _DELTAS)
        return logits

    def _continue(self, sequence: Sequence, first: int, end: int, wanted: int) -> Tensor:
        """Read tokens `first` .. `end`-1 after the cache; logits of at least the last `wanted` of them, or of all."""
        keep = {"logits_to_keep": max(1, wanted)} if "logits_to_keep" in self._known else {}
        if not self._argument:
            output = self._model(input_ids=self._ids(sequence.tokens[:end]), use_cache=False, **keep)
        else:
            cache = self.caches.get(sequence.id)
            output = self._model(
                input_ids=self._ids(sequence.tokens[first:end]),
                use_cache=True,
                **{self._argument: cache},
                **self.positions(cache, first, end),
                **keep,
            )
            if output.get(self._argument) is None:  # it keeps its state to itself, for one batch only
                self._argument = ""
            else:
                self.caches[sequence.id] = output[self._argument]
        logits: Tensor = output.logits[0]
        return logits

    def positions(self, cache: Any, first: int, end: int) -> dict[str, Tensor]:
        """`position_ids` (1, end - first), where the model would get them wrong; else nothing, as some count from 1.

        Models ask the cache how many tokens it has, which answers for its first layer: 0 if that one has a state.
        """
        counted = getattr(cache, "get_seq_length", None)
        if not first or counted is None or "position_ids" not in self._known or counted() == first:
            return {}
        return {"position_ids": self._ids(list(range(first, end)))}

    def _begin_with_images(self, chunk: SequenceChunk) -> Tensor:
        """Read a prompt up to the end of its last image in one pass, as images may attend forward.

        A chunk that ends before that leaves no cache, so the next one comes here again.
        """
        sequence, images = chunk.sequence, chunk.sequence.images
        assert images is not None and self._argument
        end = sequence.computed + chunk.length
        output = self._model(
            input_ids=self._ids(sequence.tokens[: images.end]),
            use_cache=True,
            **model_inputs(images, images.end, self._model),
        )
        if end < images.end:
            return output.logits[0, :end]  # type: ignore[no-any-return]
        self.caches[sequence.id] = output[self._argument]
        if end == images.end:
            return output.logits[0]  # type: ignore[no-any-return]
        return torch.cat([output.logits[0], self._continue(sequence, images.end, end, end - images.end)])

    def _ids(self, tokens: list[int]) -> Tensor:
        return indices([tokens], self._device)


def _reads_in_pieces(runner: CachedModelRunner, ids: list[int], tolerance: float) -> bool:
    """Whether a prompt has the same logits in two pieces, the second of several tokens, as in one."""
    half = len(ids) // 2
    try:
        return are_close(_read(runner, ids, half, len(ids) - half), _read(runner, ids, len(ids)), tolerance)
    except CALL_ERRORS:
        return False


def _read(runner: CachedModelRunner, ids: list[int], *lengths: int) -> Tensor:
    """The last logits of a prompt that is read in pieces of these lengths."""
    sequence = Sequence(0, ids, len(ids), SamplingParams(max_new_tokens=1))
    for length in lengths:
        logits = probe_step(runner, SequenceChunk(sequence, length))
    runner.forget(sequence)
    return logits
