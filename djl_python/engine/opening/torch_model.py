"""Prepares a loaded model for torch: what it can't run is unpacked, and weights are rounded. Engine process, once.

The model's own code stays in charge. On a CPU, native kernels compute what they can of it.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import dataclass, replace

import msgspec
import torch

from ..attention.parameters import LayerShape
from ..checkpoints.deferred_loading import unpack_linears_
from ..checkpoints.expert_stacks import unpack_experts_
from ..checkpoints.loading import LoadedModel, products_rounding, rounding
from ..checkpoints.quantization import Quantize
from ..checkpoints.rope import freeze_rope_
from ..native.file_mapping import trim_allocator
from ..native.library import UnavailableError
from ..native.modules.cache import NativeCache
from ..native.modules.linears import NativeLinears
from ..native.modules.stand_ins import StandIns
from ..native.program.sampling import NativeRowSampler
from ..native.thread_pool import FORMATS
from ..settings import BuiltInSettings
from ..torch_backend.attention import PagedCache
from ..torch_backend.linears import matrices, on_torch, replace_linears_, unrounded
from ..torch_backend.recurrent import ModelContext
from ..torch_backend.torch_cache import TorchCache
from .candidate import OpeningRequest
from .image_check import ImageSupport, open_image_support
from .opened_model import OpenedModel, TokenSampling
from .reference import Reference

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TorchModel:
    """A loaded model that torch will run.

    Attributes:
        linears: the native kernels that compute its products, if any do.
        functions: context that it runs in.
        images: what it needs for images, if it takes them.
        unrounded: which weights are not rounded though they should be.
    """

    linears: NativeLinears | None
    functions: ModelContext
    images: ImageSupport | None
    unrounded: str

    def made_cache(self, layers: list[LayerShape], blocks: int, block_size: int, loaded: LoadedModel) -> PagedCache:
        """A paged cache: the native kernels' if there are any and they take the model's heads."""
        if self.linears is not None and NativeCache.fits(layers, block_size, loaded.dtype):
            return NativeCache(layers, blocks, block_size, loaded.dtype, self.linears.pool)
        return TorchCache(layers, blocks, block_size, loaded.dtype, loaded.device)

    def completed(self, opened: OpenedModel) -> OpenedModel:
        """What was opened of it, told what is unrounded; native kernels read its logits too, where there are any."""
        info = msgspec.structs.replace(opened.info, unrounded=self.unrounded)
        linears = self.linears
        if linears is None:
            return replace(opened, info=info)
        trim_allocator()
        row_sampler = NativeRowSampler(linears.pool)

        def close() -> None:
            opened.close()
            row_sampler.close()
            linears.close()

        return replace(
            opened,
            info=msgspec.structs.replace(info, runner=f"{info.runner} (native products)"),
            description=opened.description.replace(" on cpu", " on cpu (native products)", 1),
            sampling=TokenSampling(row_sampler),
            close=close,
        )


def prepare_for_torch(request: OpeningRequest) -> tuple[OpeningRequest, TorchModel]:
    """Change the model to what torch will run; returns what its runners are asked for from then on."""
    settings, loaded = request.settings, request.loaded
    reference = request.reference
    if freeze_rope_(loaded.model, request.length):
        reference = Reference.of(loaded, reference.quantize, reference.trial)
    linears = _native_linears(settings, loaded)
    if linears is not None:
        reference = reference.settled(loaded)
    kept = _replace_modules_(loaded, linears, rounding(settings))
    if products_rounding(settings, loaded) is not None:
        reference = Reference.of(loaded, reference.quantize, reference.trial).settled(loaded)
    functions: ModelContext = nullcontext if linears is None else StandIns(loaded.model, linears.pool).in_place
    images = open_image_support(settings, loaded)
    return replace(request, reference=reference), TorchModel(linears, functions, images, kept)


def _native_linears(settings: BuiltInSettings, loaded: LoadedModel) -> NativeLinears | None:
    """The native kernels for a model whose other parts torch runs; None where there are none."""
    if settings.kernels == "torch" or loaded.device.type != "cpu" or loaded.dtype not in FORMATS:
        return None
    try:
        return NativeLinears(loaded.dtype, torch.get_num_threads())
    except UnavailableError:  # `native_program` has logged why
        return None


def _replace_modules_(loaded: LoadedModel, linears: NativeLinears | None, quantize: Quantize | None) -> str:
    """Have the native kernels, if there are any, compute what they can; round weights if that is asked for.

    Returns which weights are not rounded all the same.
    """
    unpack_experts_(loaded.model, loaded.device)
    before = matrices(loaded.model)
    replace_linears_(loaded.model, quantize, on_torch if linears is None else linears.make)
    if left := unpack_linears_(loaded.model, loaded.device):
        log.info("%d linears of codes that there are no kernels for are unpacked", left)
    return "" if quantize is None else unrounded(loaded.model, before, quantize)
