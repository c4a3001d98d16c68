"""A model that torch runs on a paged cache, before that is made: its layers, and trials. Engine process, once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from ..checkpoints.loading import LoadedModel
from ..native.modules.cache import NativeCache
from ..native.thread_pool import ThreadPool
from .attention import LayerShape, PagedCache
from .images import PagedImages
from .model_runner import PagedModelRunner
from .recurrent import RecurrentLayers
from .torch_cache import TorchCache

#: Tokens of a block in trials.
TRIAL_BLOCK: Final = 16


@dataclass(frozen=True)
class Paging:
    """A model that torch runs on a paged cache: the native kernels' one if there are any and they take its heads."""

    loaded: LoadedModel
    layers: dict[int, LayerShape]
    recurrent: RecurrentLayers | None
    pool: ThreadPool | None

    def runner(self, cache: PagedCache, images: PagedImages | None) -> PagedModelRunner:
        return PagedModelRunner(self.loaded.model, self.layers, cache, self.loaded.device, images, self.recurrent)

    def cache(self, blocks: int, block_size: int) -> PagedCache:
        shapes, dtype = list(self.layers.values()), self.loaded.dtype
        if self.pool is not None and NativeCache.fits(shapes, block_size, dtype):
            return NativeCache(shapes, blocks, block_size, dtype, self.pool)
        return TorchCache(shapes, blocks, block_size, dtype, self.loaded.device)

    @contextmanager
    def trial(self, blocks: int, images: PagedImages | None = None) -> Iterator[PagedModelRunner]:
        """Context of a runner over a small cache, to check it."""
        cache = self.cache(blocks, TRIAL_BLOCK)
        try:
            yield self.runner(cache, images)
        finally:
            cache.close()
