"""Runs a transformers model on a flat batch of tokens over the paged cache. Runs in the engine process."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from ..adapters.peft_files import LoraAdapter
from ..attention.lookup import PAGED
from ..attention.masks import UNKNOWN, configured_window
from ..attention.observation import observed_attention
from ..attention.parameters import AttentionParams, LayerShape
from ..batch.chunk import SequenceChunk
from ..batch.sequence import Sequence
from ..devices.transfers import indices, upload
from ..runner.model_runner import rows_of
from ..transformers_private import attention_name
from .adapters import TorchAdapters
from .attention import PagedCache, StepPlan, attend_to
from .images import PagedImages
from .recurrent import RecurrentLayers, returned_cache
from .step_graphs import Recording, StepGraphs
from .token_plan import TokenPlan
from .torch_cache import TorchCache

# Enough for keys that stand for several tokens (DeepSeek V4).
_PROBED: Final = 8


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
        self._adapters = TorchAdapters(model, device)
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
    def run(self, chunks: list[SequenceChunk]) -> Tensor:
        # Recorded steps compute no adapter's products.
        recorded = self._graphs is not None and not self._adapters.used_by(chunks)
        if self._graphs is not None and recorded and not any(chunk.sequence.images for chunk in chunks):
            logits = self._graphs.run(chunks, logit_rows(chunks, chunks))
            if logits is not None:
                return logits
        with self._cache.step(chunks) as plan, ExitStack() as stack:
            flat = plan.order
            ids = indices([token for chunk in flat for token in chunk.tokens], self._device)
            keep = logit_rows(chunks, flat)
            stack.enter_context(self._adapters.over(flat, keep.tolist()))
            if self._images is None:
                inputs = {"input_ids": ids[None], "position_ids": plan.positions[None]}
            else:
                inputs = self._images.inputs(flat, ids, plan.positions)
            if self._recurrent is not None:
                stack.enter_context(self._recurrent.over(flat, self._device, self._adapters.narrowed))
            return self._forward(plan, inputs, upload(keep, self._device))

    def _forward(self, plan: StepPlan, inputs: dict[str, Tensor], keep: Tensor) -> Tensor:
        """(rows, vocabulary) logits of the positions `keep` of the flat batch."""
        with attend_to(self._cache, plan, self._layer_of, self._windows):
            output = self._model(**inputs, use_cache=False, logits_to_keep=keep)
        logits: Tensor = output.logits[0]
        return logits

    def load_adapter(self, slot: int, adapter: LoraAdapter) -> None:
        self._adapters.load(slot, adapter)

    def unload_adapter(self, slot: int) -> None:
        self._adapters.unload(slot)

    def operator_seconds(self) -> dict[str, float]:
        return {}

    def forget(self, sequence: Sequence) -> None:
        if self._images is not None:
            self._images.forget(sequence.id)
        if self._recurrent is not None:
            self._recurrent.forget(sequence.id)


def logit_rows(chunks: list[SequenceChunk], flat: list[SequenceChunk]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Rows of the flat batch whose logits are wanted, in the order of `chunks`."""
    end_of: dict[int, int] = {}
    end = 0
    for chunk in flat:
        end += chunk.length
        end_of[chunk.sequence.id] = end
    wanted = [np.arange(end_of[c.sequence.id] - rows_of(c), end_of[c.sequence.id]) for c in chunks]
    return np.concatenate(wanted) if wanted else np.zeros(0, np.int64)
