"""Gives back memory that loading took and running doesn't need. Runs in the engine process, once.

safetensors and GGUF files are mapped: a weight is in memory from its first read on. Its pages can go once it is packed
or, while the model is only tried, as soon as they have been used; a later read gets them from the file again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from torch import Tensor, nn

from ..checkpoints.dequantizing_linear import DequantizingEmbedding, DequantizingLinear
from ..checkpoints.expert_stacks import stacks_of
from ..checkpoints.weights import CheckpointBacked
from ..devices.pages import give_back, libc

_MAPS: Final = Path("/proc/self/maps")
_SUFFIXES: Final = (".safetensors", ".gguf")
_OLLAMAS: Final = "/blobs/sha256-"


def release_pages(tensors: Iterable[Tensor]) -> None:
    """Give the pages of mapped tensors back to the operating system. Other tensors keep theirs."""
    _release_pages(tensors, _checkpoints())


@contextmanager
def releasing_after_use(model: Any) -> Iterator[None]:
    """Context in which the model runs: each module's own weights are given back once it has used them."""
    mapped = _checkpoints()

    def used(module: nn.Module, given: tuple[Any, ...], result: Any) -> None:
        _release_pages(_own(module), mapped)

    owners = [module for module in model.modules() if any(True for _ in _own(module))]
    with ExitStack() as stack:
        for owner in owners if mapped else ():
            stack.callback(owner.register_forward_hook(used).remove)
        yield


def _own(module: nn.Module) -> Iterator[Tensor]:
    readers: Iterable[CheckpointBacked] = stacks_of(module).values()
    if isinstance(module, DequantizingLinear | DequantizingEmbedding):
        readers = [module]
    in_files = itertools.chain.from_iterable(each.checkpoint_tensors for each in readers)
    return itertools.chain(module.parameters(recurse=False), in_files)


def _release_pages(tensors: Iterable[Tensor], mapped: list[tuple[int, int]]) -> None:
    for tensor in tensors if mapped else ():
        start = tensor.data_ptr()
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        end = start + (last + 1) * tensor.itemsize  # of a view, including what lies between its elements
        if not any(low <= start and end <= high for low, high in mapped):
            continue
        give_back(start, end)


def trim_allocator() -> None:
    """Give freed memory that the allocator keeps back to the operating system, where it can (glibc)."""
    if hasattr(libc(), "malloc_trim"):
        libc().malloc_trim(0)


def _checkpoints() -> list[tuple[int, int]]:
    """(start, end) addresses of mapped files of weights that have not been deleted since."""
    if not _MAPS.exists():
        return []
    ranges = []
    for line in _MAPS.read_text().splitlines():
        if line.endswith(_SUFFIXES) or _OLLAMAS in line:
            low, high = line.split(maxsplit=1)[0].split("-")
            ranges.append((int(low, 16), int(high, 16)))
    return ranges
