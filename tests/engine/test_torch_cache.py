"""What a step over torch's cache asks of its device; what it computes is test_paged_cache's business."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from djl_python.engine.attention import How, LayerShape
from djl_python.engine.scheduler import Chunk
from djl_python.engine.sequence import Sequence
from djl_python.engine.torch_cache import TorchCache, in_groups
from djl_python.types import SamplingParams

BLOCKS, SIZE = 64, 16


def decoding(number: int, context: int) -> Chunk:
    blocks = list(range(-(-context // SIZE)))
    sequence = Sequence(number, [0] * context, 1, SamplingParams(max_new_tokens=9), blocks=blocks)
    sequence.computed = context - 1
    return Chunk(sequence, 1)


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the names of operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(function.__name__.partition(".")[0])
        return function(*args, **(kwargs or {}))


def test_what_all_layers_share_is_made_in_the_first() -> None:
    layers = [LayerShape(4, 2, 16, 16)] * 2
    cache = TorchCache(layers, BLOCKS, SIZE, torch.float32, torch.device("cpu"))
    query, key, value = (torch.randn(1, heads, 3, 16) for heads in (4, 2, 2))
    with cache.step([decoding(1, 5), decoding(2, 20), decoding(3, 200)]) as plan:
        names = []
        for layer in range(2):
            with _Operations() as operations:
                cache.attend(layer, plan, query, key, value, How(0.2, 0, 0.0, None))
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
