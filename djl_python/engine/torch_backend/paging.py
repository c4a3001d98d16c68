"""A model that torch runs on a paged cache, before that is made: its layers, and probes. Engine process, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from ..attention.parameters import LayerShape
from ..checkpoints.loading import LoadedModel
from .attention import PagedCache
from .images import PagedImages
from .paged_runner import PagedModelRunner
from .recurrent import RecurrentLayers

#: Tokens of a block in probes.
PROBE_BLOCK: Final = 16
#: Makes a cache: of these layers, so many blocks, tokens of each, for this model.
MakeCache = Callable[[list[LayerShape], int, int, LoadedModel], PagedCache]


@dataclass(frozen=True)
class Paging:
    """A model that torch runs on a paged cache."""

    loaded: LoadedModel
    layers: dict[int, LayerShape]
    recurrent: RecurrentLayers | None
    make_cache: MakeCache

    def runner(self, cache: PagedCache, images: PagedImages | None) -> PagedModelRunner:
        return PagedModelRunner(self.loaded.model, self.layers, cache, self.loaded.device, images, self.recurrent)

    def cache(self, blocks: int, block_size: int) -> PagedCache:
        return self.make_cache(list(self.layers.values()), blocks, block_size, self.loaded)

    @contextmanager
    def probe(self, blocks: int, images: PagedImages | None = None) -> Iterator[PagedModelRunner]:
        """Context of a runner over a small cache, to check it."""
        cache = self.cache(blocks, PROBE_BLOCK)
        try:
            yield self.runner(cache, images)
        finally:
            cache.close()
