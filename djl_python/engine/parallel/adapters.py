"""LoRA adapters of a model that several devices share: a rank holds what is beside its part. Engine process and ranks.

Rank 0 reads an adapter, and sends the others its products, so that all have the same however its files change. Each
loads those of its layers, and of a divided linear its part. An adapter is in a slot of all ranks, or of none.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

import msgspec
import torch

from ...core.errors import ParameterError
from ..adapters.peft_files import LoraAdapter, LowRank
from ..devices.tensor_parallel import least
from ..runner.model_runner import AdapterRunner

log = logging.getLogger(__name__)


class ProductMessage(msgspec.Struct, frozen=True, array_like=True):
    """What an adapter adds to a module's weight; the matrices' rows one after the other, in fp32."""

    module: str
    rank: int
    a: bytearray
    b: bytearray


class LoadMessage(msgspec.Struct, frozen=True, array_like=True, tag="load"):
    """Has a rank put an adapter into a slot, with the others."""

    slot: int
    rank: int
    products: list[ProductMessage]

    @classmethod
    def of(cls, slot: int, adapter: LoraAdapter) -> LoadMessage:
        """The message of an adapter."""
        products = [
            ProductMessage(module, each.rank, *(bytearray(part.contiguous().numpy()) for part in (each.a, each.b)))
            for module, each in adapter.products.items()
        ]
        return cls(slot, adapter.rank, products)

    @property
    def adapter(self) -> LoraAdapter:
        """The adapter."""
        products = {}
        for each in self.products:
            a, b = (torch.frombuffer(part, dtype=torch.float32) for part in (each.a, each.b))
            products[each.module] = LowRank(a.view(each.rank, -1), b.view(-1, each.rank))
        return LoraAdapter(self.rank, products)


class UnloadMessage(msgspec.Struct, frozen=True, array_like=True, tag="unload"):
    """Has a rank empty a slot."""

    slot: int


class PartAdapters:
    """A rank's adapters, in the slots of its runner.

    Args:
        modules: those of its layers that adapters may change.
    """

    def __init__(self, runner: AdapterRunner, modules: Collection[str], device: torch.device) -> None:
        self._runner, self._modules, self._device = runner, modules, device

    def load(self, slot: int, adapter: LoraAdapter) -> None:
        """Put an adapter into a slot, if all ranks can, which call this at once.

        Raises:
            ParameterError: its numbers are too large for the model's number format.
            MemoryError, torch.OutOfMemoryError: there is no memory for it, here or on another rank.
        """
        own = {name: each for name, each in adapter.products.items() if name in self._modules}
        failure: Exception | None = None
        try:
            self._runner.load_adapter(slot, LoraAdapter(adapter.rank, own))
        except (ParameterError, MemoryError, torch.OutOfMemoryError) as exc:
            failure = exc
        if least(int(failure is None), self._device):
            return
        self._runner.unload_adapter(slot)
        raise failure or MemoryError("another device that shares the model has no room for its part")

    def follow(self, message: LoadMessage | UnloadMessage) -> None:
        """Repeat a change of rank 0. If it fails, rank 0 reports the error to the sequences."""
        if isinstance(message, UnloadMessage):
            self.unload(message.slot)
            return
        try:
            self.load(message.slot, message.adapter)
        except (ParameterError, MemoryError, torch.OutOfMemoryError) as exc:
            log.warning("an adapter can't be loaded: %s", exc)

    def unload(self, slot: int) -> None:
        """Empty a slot."""
        self._runner.unload_adapter(slot)
