"""Runs a transformers model on a flat batch of tokens over the paged cache. Runs in the engine process."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ..attention.lookup import PAGED
from ..attention.parameters import AttentionParams, LayerShape
from ..batch.chunk import Chunk
from ..batch.sequence import Sequence
from ..devices.transfers import indices, upload
from ..reading.watching.masks import UNKNOWN, configured_window
from ..reading.watching.paged_attention import observed_attention
from ..sampling.row_sampler import SampledTokens, SamplingRequest
from ..transformers_private import attention_name
from .attention import PagedCache, StepPlan, attend_to
from .images import PagedImages
from .recurrent import RecurrentLayers, returned_cache
from .step_graphs import Recording, StepGraphs
from .token_plan import TokenPlan
from .torch_cache import TorchCache

# Enough for keys that stand for several tokens (DeepSeek V4).
_PROBED: Final = 8


class ModelRunner(Protocol):
    """Computes the logits of a step."""

    def run(self, chunks: list[Chunk]) -> Tensor:
        """Compute the chunks' tokens.

        Returns:
            (rows, vocabulary): for each chunk in order, its last position before drafts and those of its drafts if it
            completes its sequence, or all positions if prompt log-probabilities are wanted (`rows_of` counts them).
        """
        ...

    def forget(self, sequence: Sequence) -> None:
        """Drop what is kept outside the cache's blocks for a sequence that has ended, or will begin again."""
        ...

    def operator_seconds(self) -> dict[str, float]:
        """Seconds spent so far, by kind of operation; empty where only a profiler can tell."""
        ...


class Pick(Protocol):
    """A shorter way to a step's tokens than through all logits."""

    def __call__(self, chunks: list[Chunk], asked: SamplingRequest) -> SampledTokens | Tensor | None:
        """Compute the chunks' tokens, and choose one for each row that `ModelRunner.run` would return, at least one.

        Args:
            asked: of these rows, with a `simple` plan.

        Returns:
            What `RowSampler.choose` would choose, with nearly its log-probabilities; the logits if they were needed; or
            None, with nothing computed, if `run` is as fast.
        """
        ...


def sampled_or_logits(
    runner: ModelRunner, pick: Pick, chunks: list[Chunk], asked: SamplingRequest
) -> SampledTokens | Tensor:
    """Compute the chunks' tokens; returns what `pick` chooses if it can, else the logits that `run` returns.

    Args:
        asked: of the rows that are sampled.
    """
    whole = any(chunk.sequence.wants_prompt_logprobs for chunk in chunks)
    picked = pick(chunks, asked) if asked.plan.simple and asked.positions and not whole else None
    return runner.run(chunks) if picked is None else picked


def rows_of(chunk: Chunk) -> int:
    """How many rows of logits `ModelRunner.run` returns for this chunk."""
    if chunk.sequence.wants_prompt_logprobs:
        return chunk.length
    return 1 + len(chunk.drafts) if chunk.completes else 0


def probe(model: Any, device: torch.device, max_positions: int) -> tuple[dict[int, LayerShape], RecurrentLayers | None]:
    """Run a few tokens: attention layers in order of use, by id of their module, and layers with recurrent states.

    Raises:
        ValueError: a layer may have a window, and `max_positions` tokens are more than that; or the model returns no
            cache, so that it may keep states to itself, for one batch only.
    """
    layers: dict[int, LayerShape] = {}
    unclear = 0 < configured_window(model) < max_positions

    def note(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, result: Tensor, how: AttentionParams
    ) -> None:
        if how.window == UNKNOWN and unclear:
            raise ValueError("its window is in a mask of its own")
        shape = LayerShape(query.shape[1], key.shape[1], key.shape[3], value.shape[3], max(how.window, 0))
        layers.setdefault(id(module), shape)

    def run() -> Any:
        output = model(input_ids=ids, position_ids=places, use_cache=True)
        if returned_cache(output) is None:
            raise ValueError("it returns no cache")
        return output

    with observed_attention(note), torch.inference_mode():
        ids = torch.zeros(1, _PROBED, dtype=torch.long, device=device)
        places = torch.arange(_PROBED, device=device)[None]
        recurrent = RecurrentLayers.seen_in(model, run)
    return layers, recurrent


class PagedModelRunner:
    """Runs one forward pass of the model per step, for any mixture of prefill and decode.

    Args:
        images: encodes prompts with images, for a model that takes them.
        recurrent: the layers with recurrent states, for a model that has any.
    """

    def __init__(
        self,
        model: Any,
        layers: dict[int, LayerShape],
        cache: PagedCache,
        device: torch.device,
        images: PagedImages | None = None,
        recurrent: RecurrentLayers | None = None,
    ) -> None:
        assert attention_name(model.config.get_text_config(decoder=True)) == PAGED
        self._model = model
        self._layer_of = {module: index for index, module in enumerate(layers)}
        self._windows = [layer.window for layer in layers.values()]
        self._cache = cache
        self._device = device
        self._images = images
        self._recurrent = recurrent
        self._graphs: StepGraphs | None = None

    @torch.inference_mode()
    def record_steps(self, sizes: Iterable[int], recording: Recording, max_rows: int, max_blocks: int) -> None:
        """Have steps of up to so many tokens recorded and replayed; `StepGraphs` describes the rest.

        Raises:
            RuntimeError: they can't be recorded.
        """
        assert isinstance(self._cache, TorchCache) and self._recurrent is None

        def forward(plan: TokenPlan) -> Tensor:
            return self._forward(plan, {"input_ids": plan.ids[None], "position_ids": plan.positions[None]}, plan.keep)

        graphs = StepGraphs(self._cache, self._device, recording, max_rows, max_blocks)
        graphs.record(forward, sizes)
        self._graphs = graphs

    @torch.inference_mode()
    def run(self, chunks: list[Chunk]) -> Tensor:
        if self._graphs is not None and not any(chunk.sequence.images for chunk in chunks):
            logits = self._graphs.run(chunks, _logit_rows(chunks, chunks))
            if logits is not None:
                return logits
        with self._cache.step(chunks) as plan:
            flat = plan.order
            ids = indices([token for chunk in flat for token in chunk.tokens], self._device)
            keep = _logit_rows(chunks, flat)
            if self._images is None:
                inputs = {"input_ids": ids[None], "position_ids": plan.positions[None]}
            else:
                inputs = self._images.inputs(flat, ids, plan.positions)
            with nullcontext() if self._recurrent is None else self._recurrent.over(flat, self._device):
                return self._forward(plan, inputs, upload(keep, self._device))

    def _forward(self, plan: StepPlan, inputs: dict[str, Tensor], keep: Tensor) -> Tensor:
        """(rows, vocabulary) logits of the positions `keep` of the flat batch."""
        with attend_to(self._cache, plan, self._layer_of, self._windows):
            output = self._model(**inputs, use_cache=False, logits_to_keep=keep)
        logits: Tensor = output.logits[0]
        return logits

    def operator_seconds(self) -> dict[str, float]:
        return {}

    def forget(self, sequence: Sequence) -> None:
        if self._images is not None:
            self._images.forget(sequence.id)
        if self._recurrent is not None:
            self._recurrent.forget(sequence.id)


def _logit_rows(chunks: list[Chunk], flat: list[Chunk]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Rows of the flat batch whose logits are wanted, in the order of `chunks`."""
    end_of: dict[int, int] = {}
    end = 0
    for chunk in flat:
        end += chunk.length
        end_of[chunk.sequence.id] = end
    wanted = [np.arange(end_of[c.sequence.id] - rows_of(c), end_of[c.sequence.id]) for c in chunks]
    return np.concatenate(wanted) if wanted else np.zeros(0, np.int64)
