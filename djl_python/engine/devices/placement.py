"""Places a model's weights while it is loaded: on one device, on those that share it, or where a library puts them.

Runs in the engine process, at load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ...core.registry import load_object
from ..settings import BuiltInSettings
from . import offloading
from .tensor_parallel import placement

#: Has transformers load the model, and checks its report about the weights; takes arguments of `from_pretrained`.
Read = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Placed:
    """A model whose weights are in place.

    Attributes:
        offloaded: in words, where weights are that are not on the device, and other remarks for its owner; "": none.
        keeps_one_text: whether its layers keep the keys and values of the last text themselves.
        is_whole: whether this process has all weights, on the devices where transformers loaded them.
    """

    model: Any
    offloaded: str = ""
    keeps_one_text: bool = False
    is_whole: bool = True


class DevicePlacement(Protocol):
    """One way to place a model's weights, for these settings and this process's device.

    `BuiltInSettings.placement` names a class of this kind, which is made with (settings, device).

    Example, a library that changes a model on its device::

        class Changed:
            def __init__(self, settings, device):
                self._device = device

            def place(self, read, dtype):
                model = read({"device_map": {"": self._device}})
                library.change_(model)
                return Placed(model, is_whole=False)
    """

    def place(self, read: Read, dtype: torch.dtype | None) -> Placed:
        """Load the model.

        Args:
            dtype: the weights' number format; None if only the weight files have it.

        Raises:
            ModelLoadError: it can't be placed so.
        """
        ...


@dataclass(frozen=True)
class OnDevices:
    """On this process's device: whole, or its part if others share the model as transformers divides it."""

    settings: BuiltInSettings
    device: torch.device

    def place(self, read: Read, dtype: torch.dtype | None) -> Placed:
        return Placed(read(placement(self.settings, self.device)))


@dataclass(frozen=True)
class LaidOut:
    """Over the device, the host's memory and the disk, by accelerate."""

    settings: BuiltInSettings
    device: torch.device

    def place(self, read: Read, dtype: torch.dtype | None) -> Placed:
        arguments = offloading.placed(self.settings)
        model = read(arguments)
        offloading.keep_offloaded_(model, self.settings, arguments["offload_folder"])
        return Placed(model, offloading.describe_offloading(model, self.device.type))


def placement_of(settings: BuiltInSettings, device: torch.device) -> DevicePlacement:
    """The placement of a model with these settings."""
    if settings.placement:
        named: DevicePlacement = load_object(settings.placement)(settings, device)
        return named
    return LaidOut(settings, device) if settings.device_map else OnDevices(settings, device)
