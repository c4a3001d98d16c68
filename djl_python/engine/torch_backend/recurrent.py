"""Runs layers with a recurrent state instead of keys and values on a flat batch of tokens. Engine process.

Hybrid models mix attention with such layers (gated delta nets, state-space models, short convolutions). Each of their
modules takes a transformers cache, and reads and writes one layer of it: its state after the tokens so far. Here a
module is called once for all decoding sequences, a row each, and once for each chunk of a prompt, with a cache that
holds the states of those sequences. Attention layers are not handled here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache

from ..batch.chunk import SequenceChunk
from ..devices.transfers import indices
from .state_rows import StateRows, states_of

#: Makes a context that is entered while a model runs, to put better functions into its modules.
ModelContext = Callable[[], AbstractContextManager[None]]

_UPDATES: Final = ("update_conv_state", "update_recurrent_state")
# What forward functions call their cache: some know two of the names. From transformers 5.24 on it is the last.
_CACHE_ARGUMENTS: Final = ("cache_params", "past_key_values", "cache")


def returned_cache(output: Any) -> Any:
    """The cache in what a model returns, whatever its transformers calls it; None if it returns none."""
    return next((output[name] for name in ("cache", "past_key_values") if output.get(name) is not None), None)


@dataclass(frozen=True)
class _Part:
    """Chunks of one length that are read in one call: their rows of the flat batch, in order, and their states.

    `rows` is a slice where possible, because an index tensor has to be on the device and copies rows.
    """

    rows: slice | Tensor
    length: int
    cache: Any

    def of(self, value: Any, tokens: int) -> Any:
        """This part, (sequences, length, ...), of an argument (1, tokens, ...); other arguments are returned as is."""
        if isinstance(value, tuple):
            return tuple(self.of(each, tokens) for each in value)
        if isinstance(value, dict):
            return {name: self.of(each, tokens) for name, each in value.items()}
        if not isinstance(value, Tensor) or value.shape[:2] != (1, tokens):
            return value
        return value[0, self.rows].reshape(-1, self.length, *value.shape[2:])


class RecurrentLayers:
    """A model's modules with recurrent states, and the states of the sequences that have begun.

    Args:
        config: of the model's decoder.
        modules: each with the index of its layer in the cache.
        state_bytes: memory of one sequence's states.
    """

    def __init__(self, config: Any, modules: dict[nn.Module, int], state_bytes: int) -> None:
        self.state_bytes = state_bytes
        self._config = config
        self._modules = modules
        self._signatures = [inspect.signature(module.forward) for module in modules]
        # A sequence's states, one cache layer for each module, are in `_alone`, or a row of `_together`.
        self._alone: dict[int, list[Any]] = {}
        self._together = StateRows()
        self.functions: ModelContext = nullcontext

    @classmethod
    def seen_in(cls, model: Any, run: Callable[[], Any]) -> RecurrentLayers | None:
        """Let the model run with a cache, and find the modules that write states to it; None if there are none.

        Args:
            run: calls the model, and returns its output.
        """
        if not all(hasattr(Cache, name) for name in _UPDATES):  # an older transformers with several kinds of cache
            run()
            return None
        modules: dict[nn.Module, int] = {}
        running: list[nn.Module] = []

        def noting(update: Callable[..., Any]) -> Callable[..., Any]:
            def noted(cache: Any, states: Tensor, layer_idx: int, *more: Any, **named: Any) -> Any:
                owner = next((m for m in reversed(running) if getattr(m, "layer_idx", None) == layer_idx), None)
                if owner is not None:
                    modules[owner] = layer_idx
                return update(cache, states, layer_idx, *more, **named)

            return noted

        with ExitStack() as stack:
            for name in _UPDATES:
                stack.callback(setattr, Cache, name, getattr(Cache, name))
                setattr(Cache, name, noting(getattr(Cache, name)))
            for module in model.modules():
                if hasattr(module, "layer_idx"):
                    stack.callback(module.register_forward_pre_hook(lambda owner, _: running.append(owner)).remove)
                    stack.callback(module.register_forward_hook(lambda *_: _drop_last(running)).remove)
            cache = returned_cache(run())
        if not modules or type(cache) is not DynamicCache:
            return None
        layers = [cache.layers[place] for place in modules.values()]
        state_bytes = sum(state.nbytes for layer in layers for _, state in states_of(layer))
        return cls(model.config.get_text_config(decoder=True), modules, state_bytes)

    @contextmanager
    def over(
        self,
        flat: Sequence[SequenceChunk],
        device: torch.device,
        narrowed: Callable[[slice | Tensor], AbstractContextManager[None]] = lambda rows: nullcontext(),
    ) -> Iterator[None]:
        """Context in which the model reads these chunks, one after the other in a flat batch.

        Args:
            narrowed: makes a context that is entered while a layer computes these rows of it alone.
        """
        parts = self._parts(flat, device)
        with ExitStack() as stack:
            stack.enter_context(self.functions())
            for module, signature in zip(self._modules, self._signatures, strict=True):
                forward = _in_parts(module.forward, signature, parts, narrowed)
                stack.callback(delattr, module, "forward")
                module.forward = forward
            yield

    def forget(self, sequence_id: int) -> None:
        """Drop the states of a sequence that has ended, or begins again."""
        self._alone.pop(sequence_id, None)
        if sequence_id in self._together.ids:
            self._together.remove(sequence_id)

    def _parts(self, flat: Sequence[SequenceChunk], device: torch.device) -> list[_Part]:
        parts: list[_Part] = []
        single: dict[int, int] = {}  # decoding sequences, and their rows of the batch
        start = 0
        for chunk in flat:
            rows = slice(start, start := start + chunk.length)
            if chunk.length == 1 and chunk.sequence.computed:
                single[chunk.sequence.id] = rows.start
                continue
            if not chunk.sequence.computed:  # new, or preempted
                self.forget(chunk.sequence.id)
                self._alone[chunk.sequence.id] = self._layers(DynamicCache(config=self._config))
            elif chunk.sequence.id in self._together.ids:  # a one-token piece of its prompt put it there
                self._alone[chunk.sequence.id] = self._together.take(chunk.sequence.id)
            parts.append(_Part(rows, chunk.length, self._cache(self._alone[chunk.sequence.id])))
        if single:
            self._together.arrange(single, self._alone)
            order = [single[each] for each in self._together.ids]
            parts.append(_Part(row_selector(order, device), 1, self._cache(self._together.layers)))
        return parts

    def _layers(self, cache: Any) -> list[Any]:
        return [cache.layers[place] for place in self._modules.values()]

    def _cache(self, layers: list[Any]) -> Any:
        cache = DynamicCache(config=self._config)
        for place, layer in zip(self._modules.values(), layers, strict=True):
            cache.layers[place] = layer
        return cache


def _in_parts(
    forward: Callable[..., Any],
    signature: inspect.Signature,
    parts: Sequence[_Part],
    narrowed: Callable[[slice | Tensor], AbstractContextManager[None]],
) -> Callable[..., Any]:
    """Make a module's forward function for the flat batch, which runs each part by itself with that part's states."""
    argument = next(name for name in _CACHE_ARGUMENTS if name in signature.parameters)

    def in_parts(hidden_states: Tensor, *more: Any, **named: Any) -> Any:
        tokens = hidden_states.shape[1]
        bound = signature.bind(hidden_states, *more, **named)
        whole = dict(bound.arguments)

        def read(part: _Part) -> Any:
            bound.arguments = part.of(whole, tokens) | {argument: part.cache}
            with narrowed(part.rows):
                return forward(*bound.args, **bound.kwargs)

        if len(parts) == 1 and isinstance(parts[0].rows, slice):
            return read(parts[0]).view_as(hidden_states)
        made = torch.empty_like(hidden_states)
        for part in parts:
            made[0, part.rows] = read(part).flatten(0, 1)
        return made

    return in_parts


def row_selector(rows: list[int], device: torch.device) -> slice | Tensor:
    """What selects these rows of a batch."""
    first = rows[0]
    if rows == list(range(first, first + len(rows))):
        return slice(first, first + len(rows))
    return indices(rows, device)


def _drop_last(running: list[nn.Module]) -> None:
    running.pop()
