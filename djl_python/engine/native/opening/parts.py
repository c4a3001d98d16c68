"""Native kernels for parts of a model that torch runs: products, attention over the cache, functions, sampling.

Runs in the engine process. `opening.torch_model` knows these as `TorchParts`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import nn

from ...attention.parameters import LayerShape
from ...checkpoints.linears import Linear
from ...checkpoints.loading import LoadedModel
from ...checkpoints.rounding import Rounding
from ...runner.file_mapping import trim_allocator
from ...settings import BuiltInSettings
from ..library import KernelsUnavailableError
from ..modules.cache import NativeCache
from ..modules.linears import NativeLinears
from ..modules.stand_ins import StandIns
from ..program.sampling import NativeRowSampler
from ..thread_pool import FORMATS


class NativeParts:
    """The kernels on one pool of threads.

    Args:
        dtype: bf16 or fp32, of the model.

    Raises:
        KernelsUnavailableError: this machine can't load or compile kernels.
    """

    name = "native products"

    def __init__(self, dtype: torch.dtype, threads: int) -> None:
        self._linears = NativeLinears(dtype, threads)
        self._dtype = dtype
        self._row_sampler: NativeRowSampler | None = None

    @classmethod
    def of(cls, settings: BuiltInSettings, loaded: LoadedModel) -> NativeParts | None:
        """The kernels for a model; None: kernels can't run, or not in its device or dtype."""
        if settings.kernels == "torch" or loaded.device.type != "cpu" or loaded.dtype not in FORMATS:
            return None
        try:
            return cls(loaded.dtype, torch.get_num_threads())
        except KernelsUnavailableError:  # `native_program` has logged why
            return None

    def linear(self, linear: Linear, rounding: Rounding | None) -> nn.Module | None:
        """The linear with its weight packed, rounded if asked for; None if the kernels don't support it."""
        return self._linears.make(linear, rounding)

    def cache(self, layers: list[LayerShape], blocks: int, block_size: int) -> NativeCache | None:
        """A paged cache; None if the kernels don't take the model's heads."""
        if not NativeCache.fits(layers, block_size, self._dtype):
            return None
        return NativeCache(layers, blocks, block_size, self._dtype, self._linears.pool)

    def functions(self, model: nn.Module) -> Callable[[], AbstractContextManager[None]]:
        """Context in which kernels replace the functions of a model's modules that they can replace."""
        return StandIns(model, self._linears.pool).in_place

    def row_sampler(self) -> NativeRowSampler:
        """The sampler of the model's logits, once it is open; gives memory back that opening took."""
        trim_allocator()
        self._row_sampler = NativeRowSampler(self._linears.pool)
        return self._row_sampler

    def close(self) -> None:
        """End the threads; the parts stop working."""
        if self._row_sampler is not None:
            self._row_sampler.close()
        self._linears.close()
