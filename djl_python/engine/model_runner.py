"""Runs a transformers model on a flat batch of tokens over the paged cache. Runs in the engine process."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from .attention import PAGED, Group, KVCache, LayerShape, StepLayout, attend_to, watching
from .images import PagedImages
from .recurrent import RecurrentLayers
from .scheduler import Chunk
from .sequence import Sequence


class ModelRunner(Protocol):
    """Computes the logits of a step."""

    def run(self, chunks: list[Chunk]) -> Tensor:
        """Compute the chunks' tokens.

        Returns:
            (rows, vocabulary): for each chunk in order, its last position if the chunk completes its sequence, or all
            its positions if prompt log-probabilities are wanted (`rows_of` counts them).
        """
        ...

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended: state kept for it outside the cache's blocks can go."""
        ...

    def operator_seconds(self) -> dict[str, float]:
        """Spent so far, by kind of operation; empty where only a profiler can tell."""
        ...


def rows_of(chunk: Chunk) -> int:
    """How many rows of logits `ModelRunner.run` returns for this chunk."""
    if chunk.sequence.wants_prompt_logprobs:
        return chunk.length
    return 1 + len(chunk.drafts) if chunk.completes else 0


def probe(model: Any, device: torch.device) -> tuple[dict[int, LayerShape], RecurrentLayers | None]:
    """Attention layers in order of use, by id of their module, and layers with states: one pass of two tokens."""
    layers: dict[int, LayerShape] = {}

    def note(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: object) -> None:
        layers.setdefault(id(module), LayerShape(key.shape[1], key.shape[3], value.shape[3]))

    with watching(note), torch.inference_mode():
        ids = torch.zeros(1, 2, dtype=torch.long, device=device)
        places = torch.arange(2, device=device)[None]
        recurrent = RecurrentLayers.seen_in(model, lambda: model(input_ids=ids, position_ids=places, use_cache=True))
    return layers, recurrent


class PagedModelRunner:
    """One forward pass of the model a step, whatever mixture of prompts and generating sequences it holds.

    Args:
        images: what sees the images of prompts, for a model that takes them.
        recurrent: the layers without attention, of a model that has such.
    """

    def __init__(
        self,
        model: Any,
        layers: dict[int, LayerShape],
        cache: KVCache,
        device: torch.device,
        images: PagedImages | None = None,
        recurrent: RecurrentLayers | None = None,
    ) -> None:
        assert model.config.get_text_config(decoder=True)._attn_implementation == PAGED
        self._model = model
        self._layer_of = {module: index for index, module in enumerate(layers)}
        self._cache = cache
        self._device = device
        self._images = images
        self._recurrent = recurrent

    @torch.inference_mode()
    def run(self, chunks: list[Chunk]) -> Tensor:
        ordered = _in_groups(chunks, self._cache.block_size)
        flat = [chunk for group in ordered for chunk in group]
        layout, ids, positions = self._layout(ordered)
        keep = _logit_rows(chunks, flat)
        if self._images is None:
            inputs = {"input_ids": ids[None], "position_ids": positions[None]}
        else:
            inputs = self._images.inputs(flat, ids, positions)
        states = nullcontext() if self._recurrent is None else self._recurrent.over(flat)
        with attend_to(self._cache, layout, self._layer_of), states:
            output = self._model(
                **inputs,
                use_cache=False,
                logits_to_keep=torch.from_numpy(keep).to(self._device),
            )
        logits: Tensor = output.logits[0]
        return logits

    def operator_seconds(self) -> dict[str, float]:
        return {}

    def forget(self, sequence: Sequence) -> None:
        if self._images is not None:
            self._images.forget(sequence.id)
        if self._recurrent is not None:
            self._recurrent.forget(sequence.id)

    def _layout(self, groups: list[list[Chunk]]) -> tuple[StepLayout, Tensor, Tensor]:
        """Ids (T,), positions (T,), and the places of all tokens: three host arrays, one copy to the device each."""
        size = self._cache.block_size
        tokens: list[int] = []
        positions: list[np.ndarray[Any, np.dtype[np.int64]]] = []
        slots: list[np.ndarray[Any, np.dtype[np.int64]]] = []
        bounds: list[tuple[int, int, int, np.ndarray[Any, np.dtype[np.int64]], int]] = []
        for group in groups:
            start = len(tokens)
            width = max(_blocks(chunk, size) for chunk in group)
            table = np.zeros((len(group), width), np.int64)
            for row, chunk in enumerate(group):
                sequence, first = chunk.sequence, chunk.sequence.computed
                end = first + chunk.length
                tokens += chunk.tokens
                used = _blocks(chunk, size)
                table[row, :used] = sequence.blocks[:used]
                place = np.arange(first, end)
                positions.append(place)
                slots.append(table[row, place // size] * size + place % size)
            context = max(chunk.sequence.computed + chunk.length for chunk in group)
            bounds.append((start, len(tokens), group[0].length, table, context))
        ids = torch.tensor(tokens).to(self._device)
        places = torch.from_numpy(np.concatenate(positions)).to(self._device)
        layout = StepLayout(
            slots=torch.from_numpy(np.concatenate(slots)).to(self._device),
            groups=[
                Group(
                    start=start,
                    stop=stop,
                    queries=queries,
                    blocks=torch.from_numpy(table).to(self._device),
                    positions=places[start:stop].view(-1, queries),
                    context=context,
                )
                for start, stop, queries, table, context in bounds
            ],
        )
        return layout, ids, places


def _blocks(chunk: Chunk, block_size: int) -> int:
    return -(-(chunk.sequence.computed + chunk.length) // block_size)


def _in_groups(chunks: list[Chunk], block_size: int) -> list[list[Chunk]]:
    """Chunks that one attention call can serve: single tokens by context (powers of two), prompt chunks alone."""
    buckets: dict[int, list[Chunk]] = {}
    groups: list[list[Chunk]] = []
    for chunk in chunks:
        if chunk.length > 1:
            groups.append([chunk])
        else:
            buckets.setdefault((_blocks(chunk, block_size) - 1).bit_length(), []).append(chunk)
    return [*buckets.values(), *groups]


def _logit_rows(chunks: list[Chunk], flat: list[Chunk]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Rows of the flat batch whose logits are wanted, in the order of `chunks`."""
    end_of: dict[int, int] = {}
    end = 0
    for chunk in flat:
        end += chunk.length
        end_of[chunk.sequence.id] = end
    wanted = [np.arange(end_of[c.sequence.id] - rows_of(c), end_of[c.sequence.id]) for c in chunks]
    return np.concatenate(wanted) if wanted else np.zeros(0, np.int64)
