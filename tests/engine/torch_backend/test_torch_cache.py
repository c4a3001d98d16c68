"""What a step over torch's cache asks of its device; what it computes is test_paged_cache's business."""

from __future__ import annotations

import torch

from djl_python.core.types import SamplingParams
from djl_python.engine.attention.parameters import AttentionParams, LayerShape
from djl_python.engine.batch.chunk import SequenceChunk
from djl_python.engine.batch.sequence import Sequence
from djl_python.engine.torch_backend.torch_cache import TorchCache, in_groups
from tests.operations import Operations

BLOCKS, SIZE = 64, 16


def decoding(number: int, context: int) -> SequenceChunk:
    blocks = list(range(-(-context // SIZE)))
    sequence = Sequence(number, [0] * context, 1, SamplingParams(max_new_tokens=9), blocks=blocks)
    sequence.computed = context - 1
    return SequenceChunk(sequence, 1)


def test_masks_are_computed_in_the_first_layer_only() -> None:
    layers = [LayerShape(4, 2, 16, 16)] * 2
    cache = TorchCache(layers, BLOCKS, SIZE, torch.float32, torch.device("cpu"))
    query, key, value = (torch.randn(1, heads, 3, 16) for heads in (4, 2, 2))
    with cache.step([decoding(1, 5), decoding(2, 20), decoding(3, 200)]) as plan:
        names = []
        for layer in range(2):
            with Operations() as operations:
                cache.attend(layer, plan, query, key, value, AttentionParams(0.2, 0, 0.0, None))
            names.append(operations.names)
    comparisons = {"ge", "gt", "lt", "sub", "any", "bitwise_not", "arange"}
    assert comparisons & set(names[0])
    assert not comparisons & set(names[1])


def test_a_gpu_has_half_as_many_groups_of_similar_contexts() -> None:
    chunks = [decoding(number, context) for number, context in enumerate(range(16, 16 * 64 + 1, 16))]
    for coarse, count, ratio in ((False, 7, 2), (True, 4, 4)):
        groups = in_groups(chunks, SIZE, coarse)
        assert sorted(chunk.sequence.id for group in groups for chunk in group) == list(range(len(chunks)))
        assert len(groups) == count
        for group in groups:
            used = [len(chunk.sequence.blocks) for chunk in group]
            assert max(used) <= ratio * min(used)
