"""Prepares a loaded model for torch: unpacks weights that torch can't use, and rounds weights. Engine process, once.

The model's own code stays in charge. On a CPU, kernels (`TorchParts`) compute parts of it.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec
from torch import nn

from ..attention.parameters import LayerShape
from ..checkpoints.deferred_loading import unpack_linears_
from ..checkpoints.expert_stacks import unpack_experts_
from ..checkpoints.leaving import rounding
from ..checkpoints.linears import Linear
from ..checkpoints.loading import LoadedModel, products_rounding
from ..checkpoints.rope import freeze_rope_
from ..checkpoints.rounding import Quantize, Rounding
from ..runner.opened_model import OpenedModel, TokenSampling
from ..runner.opening_request import OpeningRequest
from ..sampling.row_sampler import RowSampler
from ..torch_backend.attention import PagedCache
from ..torch_backend.linears import matrices, on_torch, replace_linears_, unrounded
from ..torch_backend.recurrent import ModelContext
from ..torch_backend.torch_cache import TorchCache
from .image_check import ImageSupport, open_image_support

log = logging.getLogger(__name__)


class TorchParts(Protocol):
    """Kernels for parts of a model that torch runs; made for its dtype.

    Attributes:
        name: their name in the model's description.
    """

    name: str

    def linear(self, linear: Linear, rounding: Rounding | None) -> nn.Module | None:
        """A module that computes the linear, its weight rounded if asked for; None: it stays with torch."""
        ...

    def cache(self, layers: list[LayerShape], blocks: int, block_size: int) -> PagedCache | None:
        """A paged cache; None: torch's is used."""
        ...

    def functions(self, model: nn.Module) -> ModelContext:
        """Context that the model runs in."""
        ...

    def row_sampler(self) -> RowSampler:
        """The sampler of the model's logits; called once it is open."""
        ...

    def close(self) -> None:
        """End the threads; the parts stop working."""
        ...


@dataclass(frozen=True)
class TorchModel:
    """A loaded model that torch will run.

    Attributes:
        parts: the kernels that compute parts of it, if there are any.
        functions: context that it runs in.
        images: its support of images, if it takes them.
        unrounded: the weights that could not be rounded as `option.quantize` says.
    """

    parts: TorchParts | None
    functions: ModelContext
    images: ImageSupport | None
    unrounded: str

    def made_cache(self, layers: list[LayerShape], blocks: int, block_size: int, loaded: LoadedModel) -> PagedCache:
        """A paged cache: the kernels' if there are any and they take the model's heads."""
        made = None if self.parts is None else self.parts.cache(layers, blocks, block_size)
        return TorchCache(layers, blocks, block_size, loaded.dtype, loaded.device) if made is None else made

    def completed(self, opened: OpenedModel) -> OpenedModel:
        """The opened model with its unrounded weights noted, and sampling by the kernels, if there are any."""
        info = msgspec.structs.replace(opened.info, unrounded=self.unrounded)
        parts = self.parts
        if parts is None:
            return replace(opened, info=info)

        def close() -> None:
            opened.close()
            parts.close()

        return replace(
            opened,
            info=msgspec.structs.replace(info, runner=f"{info.runner} ({parts.name})"),
            description=opened.description.replace(" on cpu", f" on cpu ({parts.name})", 1),
            sampling=TokenSampling(parts.row_sampler()),
            close=close,
        )


def prepare_for_torch(request: OpeningRequest, parts: TorchParts | None) -> tuple[OpeningRequest, TorchModel]:
    """Change the model for torch; returns what its runners need.

    Args:
        parts: kernels for parts of the model; None: there are none.
    """
    settings, loaded = request.settings, request.loaded
    reference = request.reference
    if freeze_rope_(loaded.model, request.length):
        reference = reference.again(loaded)
    if parts is not None:
        reference = reference.chosen(loaded)
    kept = _replace_modules_(loaded, parts, rounding(settings))
    if products_rounding(settings, loaded) is not None:
        reference = reference.again(loaded).chosen(loaded)
    functions: ModelContext = nullcontext if parts is None else parts.functions(loaded.model)
    images = open_image_support(settings, loaded)
    return replace(request, reference=reference), TorchModel(parts, functions, images, kept)


def _replace_modules_(loaded: LoadedModel, parts: TorchParts | None, quantize: Quantize | None) -> str:
    """Replace the modules that kernels can compute, and round weights as `option.quantize` says.

    Returns the weights that could not be rounded.
    """
    unpack_experts_(loaded.model, loaded.device)
    before = matrices(loaded.model)
    replace_linears_(loaded.model, quantize, on_torch if parts is None else parts.linear)
    if left := unpack_linears_(loaded.model, loaded.device):
        log.info("%d linears of codes that there are no kernels for are unpacked", left)
    return "" if quantize is None else unrounded(loaded.model, before, quantize)
