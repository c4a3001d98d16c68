"""Whatever a paged cache is made of, a token attends to what its sequence has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from djl_python.core.types import SamplingParams
from djl_python.engine.attention.dense import attention
from djl_python.engine.attention.parameters import AttentionParams, LayerShape
from djl_python.engine.batch.chunk import SequenceChunk
from djl_python.engine.batch.sequence import Sequence
from djl_python.engine.native.modules.cache import NativeCache
from djl_python.engine.native.thread_pool import ThreadPool
from djl_python.engine.torch_backend.attention import PagedCache
from djl_python.engine.torch_backend.torch_cache import TorchCache
from tests.kernels import kernels_or_skip

BLOCKS, SIZE = 64, 16
PLAIN = AttentionParams(0.2, 0, 0.0, None)
Make = Callable[[list[LayerShape]], PagedCache]


@pytest.fixture(params=["torch", "native"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[PagedCache] = []
    pools: list[ThreadPool] = []

    def torch_cache(layers: list[LayerShape]) -> PagedCache:
        return TorchCache(layers, BLOCKS, SIZE, torch.float32, torch.device("cpu"))

    def native_cache(layers: list[LayerShape]) -> PagedCache:
        pools.append(kernels_or_skip(lambda: ThreadPool(2)))
        assert NativeCache.fits(layers, SIZE, torch.float32)
        return NativeCache(layers, BLOCKS, SIZE, torch.float32, pools[-1])

    def keep(layers: list[LayerShape]) -> PagedCache:
        made.append((torch_cache if request.param == "torch" else native_cache)(layers))
        return made[-1]

    yield keep
    opened: tuple[PagedCache | ThreadPool, ...] = (*made, *pools)
    for each in opened:
        each.close()


def a_sequence(number: int, length: int, blocks: list[int]) -> Sequence:
    return Sequence(number, [0] * length, length, SamplingParams(max_new_tokens=1), blocks=blocks)


class Story:
    """Queries, keys and values of whole sequences, in every layer; what each should attend to."""

    def __init__(self, layers: list[LayerShape], lengths: dict[int, int]) -> None:
        random = torch.Generator().manual_seed(5)
        self.layers = layers
        self.parts = {
            (number, layer): [
                torch.randn(heads, length, size, generator=random)
                for heads, size in ((s.heads, s.key_dim), (s.kv_heads, s.key_dim), (s.kv_heads, s.value_dim))
            ]
            for number, length in lengths.items()
            for layer, s in enumerate(layers)
        }

    def step(
        self, cache: PagedCache, chunks: list[SequenceChunk], layer: int, how: AttentionParams
    ) -> dict[int, Tensor]:
        """What comes out for each sequence's tokens: (length, heads, value_dim)."""
        with cache.step(chunks) as plan:
            query, key, value = (
                torch.cat([self._of(chunk, layer)[part] for chunk in plan.order], dim=1)[None] for part in range(3)
            )
            assert plan.positions.tolist() == [
                place
                for chunk in plan.order
                for place in range(chunk.sequence.computed, chunk.sequence.computed + chunk.length)
            ]
            made = cache.attend(layer, plan, query, key, value, how)[0]
        ends = torch.tensor([chunk.length for chunk in plan.order]).cumsum(0).tolist()
        return {chunk.sequence.id: made[end - chunk.length : end] for chunk, end in zip(plan.order, ends, strict=True)}

    def expected(self, chunk: SequenceChunk, layer: int, how: AttentionParams) -> Tensor:
        query, key, value = self.parts[chunk.sequence.id, layer]
        first, end = chunk.sequence.computed, chunk.sequence.computed + chunk.length
        distance = torch.arange(first, end)[:, None] - torch.arange(end)
        mask = (distance >= 0) & (distance < (how.window or end))
        given = (query[None, :, first:end], key[None, :, :end], value[None, :, :end], mask[None, None])
        return attention(*given, how)[0].transpose(0, 1)

    def _of(self, chunk: SequenceChunk, layer: int) -> list[Tensor]:
        first = chunk.sequence.computed
        return [part[:, first : first + chunk.length] for part in self.parts[chunk.sequence.id, layer]]


@pytest.mark.parametrize(
    "how",
    [
        PLAIN,
        replace(PLAIN, window=5),
        replace(PLAIN, softcap=2.0),
        replace(PLAIN, sinks=torch.linspace(-1, 2, 6)),
        replace(PLAIN, window=20, softcap=3.0, sinks=torch.linspace(-1, 2, 6)),
    ],
    ids=["plain", "window", "softcap", "sinks", "all"],
)
def test_prompts_in_pieces_beside_who_generates(make: Make, how: AttentionParams) -> None:
    layers = [LayerShape(6, 2, 32, 32), LayerShape(6, 6, 24, 48)]
    story = Story(layers, {1: 60, 2: 40, 3: 20})
    cache = make(layers)
    one, two = a_sequence(1, 60, [9, 2, 30, 4]), a_sequence(2, 40, [1, 7, 8])
    three = a_sequence(3, 20, [5, 6])
    for chunks in (
        [SequenceChunk(one, 33), SequenceChunk(three, 17)],
        [SequenceChunk(three, 1), SequenceChunk(one, 20), SequenceChunk(two, 38)],
        [SequenceChunk(one, 1), SequenceChunk(two, 1), SequenceChunk(three, 1)],
        [SequenceChunk(two, 1)],
    ):
        for layer in range(len(layers)):
            outputs = story.step(cache, chunks, layer, how)
            for chunk in chunks:
                torch.testing.assert_close(
                    outputs[chunk.sequence.id], story.expected(chunk, layer, how), rtol=1e-4, atol=1e-4
                )
        for chunk in chunks:
            chunk.sequence.computed += chunk.length


def test_values_of_a_blocks_former_owner_have_no_effect(make: Make) -> None:
    layers = [LayerShape(4, 2, 16, 16)]
    story = Story(layers, {1: 16, 2: 5})
    cache = make(layers)
    for part in story.parts[1, 0][1:]:
        part[:] = float("nan")
    story.step(cache, [SequenceChunk(a_sequence(1, 16, [3]), 16)], 0, PLAIN)
    two = a_sequence(2, 5, [3])
    chunk = SequenceChunk(two, 5)
    torch.testing.assert_close(story.step(cache, [chunk], 0, PLAIN)[2], story.expected(chunk, 0, PLAIN))


def test_heads_that_the_kernels_cannot_take() -> None:
    assert not NativeCache.fits([LayerShape(4, 2, 16, 20)], SIZE, torch.float32)
    assert not NativeCache.fits([LayerShape(4, 2, 16, 16)], 8, torch.float32)
    assert not NativeCache.fits([LayerShape(4, 2, 16, 16)], SIZE, torch.float16)
