"""Attention over a paged KV cache, for models that look their attention up by name. Runs in the engine process.

Each call of a layer's attention writes the step's keys and values into the cache and attends to all that each sequence
has there. So a model of any family runs on a flat batch of tokens (1, T) without padding; rotary embeddings,
projections, soft-capping, sinks and windows are the model's own. A `PagedCache` decides how the cache is stored and
what computes the attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Protocol

from torch import Tensor, nn

from ..attention.lookup import answering
from ..attention.parameters import AttentionParams
from ..batch.chunk import SequenceChunk


class StepPlan(Protocol):
    """One step's tokens, and where they go in the cache.

    Attributes:
        order: the chunks, in their order in the flat batch.
        positions: (T,) position of each token in its sequence.
    """

    order: list[SequenceChunk]
    positions: Tensor


class PagedCache(Protocol):
    """Keys and values of all layers, in blocks."""

    block_size: int

    def step(self, chunks: list[SequenceChunk]) -> AbstractContextManager[Any]:
        """Context of a step with these chunks, which gives the `StepPlan` that `attend` takes."""
        ...

    def attend(self, layer: int, plan: Any, query: Tensor, key: Tensor, value: Tensor, how: AttentionParams) -> Tensor:
        """Store a layer's new keys and values, and attend to all that each sequence has in the cache.

        Args:
            query: (1, heads, T, key_dim); key, value: (1, kv_heads, T, dim).

        Returns:
            (1, T, heads, value_dim)
        """
        ...

    def close(self) -> None:
        """Free the cache, which is not used any more."""
        ...


@contextmanager
def attend_to(cache: PagedCache, plan: StepPlan, layer_of: dict[int, int], windows: list[int]) -> Iterator[None]:
    """Context in which a model whose attention is `PAGED` reads and writes `cache` as `plan` says.

    Args:
        layer_of: each attention layer's index, by id of its module.
        windows: each layer's window, 0 for none, where its calls don't say it.
    """

    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        how: AttentionParams,
        mask: Tensor | None,
        others: Mapping[str, Any],
    ) -> Tensor:
        layer = layer_of[id(module)]
        window = how.window or windows[layer]
        return cache.attend(
            layer, plan, query, key, value, how if window == how.window else replace(how, window=window)
        )

    with answering(attend):
        yield
