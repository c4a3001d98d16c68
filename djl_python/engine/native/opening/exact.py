"""A model's own logits in fp32, whatever it is loaded in. Runs in the engine process, once, on CPUs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...attention.lookup import set_attention
from ...checkpoints.loading import LoadedModel
from ...reading.watching.copies import OwnNumbers, copy_model, passed_through
from ...reading.watching.run import layer_list
from ...runner.file_mapping import release_pages
from ...runner.probe import Probe


def exact_logits(loaded: LoadedModel, probe: Probe) -> Tensor:
    """Logits (tokens, rows of the probe) fp32 of the whole model."""
    return ExactModel(loaded, probe).logits()


class ExactModel:
    """A copy of a model in fp32, for the text of a probe; the vocabulary's other tokens are left out.

    Args:
        layers: compute only so many of the first layers; None: all.
    """

    def __init__(self, loaded: LoadedModel, probe: Probe, layers: int | None = None) -> None:
        self._places = probe.places
        self._left_out = [] if layers is None else layer_list(loaded.model)[layers:]
        self._model = copy_model(loaded.model, OwnNumbers(probe.rows), self._left_out).model
        set_attention(self._model, "eager")
        release_pages(loaded.model.parameters())

    @torch.inference_mode()
    def logits(self, disturbance: float = 0.0) -> Tensor:
        """Logits (tokens, rows of the probe) fp32.

        Args:
            disturbance: change every number of the embedded text at random by about so much, relative to it.
        """
        random = torch.Generator().manual_seed(1)

        def disturb(_: nn.Module, given: tuple[Any, ...], rows: Tensor) -> Tensor:
            return rows * (1 + disturbance * torch.randn(rows.shape, generator=random))

        hook = self._model.get_input_embeddings().register_forward_hook(disturb)
        try:
            with passed_through(layer_list(self._model), self._left_out):
                logits: Tensor = self._model(input_ids=self._places[None], use_cache=False).logits[0].float()
        finally:
            hook.remove()
        return logits
