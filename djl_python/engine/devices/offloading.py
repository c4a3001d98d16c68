"""Models that are larger than a device: their modules on several devices, in memory and on disk, by accelerate.

Runs in the engine process. A module whose weights are not where it computes gets them for each step, and they go again:
a step reads them all, from memory or from the checkpoint's files.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ...config import has_gpu
from ..settings import BuiltInSettings
from ..transformers_private import unsplit_classes
from .free_memory import available_bytes

#: Files of weights, where a directory has several kinds: the first that there is counts.
_WEIGHTS: Final = ("*.safetensors", "*.bin", "*.gguf")
#: Of a device's free memory, what weights may take: the cache and steps need some too.
_SHARE: Final = 0.8


def offloads(settings: BuiltInSettings) -> bool:
    """Whether the model is laid out by accelerate: it is told how, or told to and the model is larger than its device.

    A model that fits is on one device, where it is faster; devices that share each layer are no case for it either.
    """
    if not settings.device_map or settings.ranks > 1:
        return False
    if settings.max_memory or settings.device_map.startswith("{"):
        return True
    return _weight_bytes(Path(settings.model_path)) > _SHARE * _free_bytes(settings)


def placed(settings: BuiltInSettings) -> dict[str, Any]:
    """What transformers' `from_pretrained` is told."""
    chosen = settings.device_map
    limits = json.loads(settings.max_memory) if settings.max_memory else None
    return {
        "device_map": json.loads(chosen) if chosen.startswith("{") else chosen,
        "max_memory": limits and {int(name) if name.isdecimal() else name: most for name, most in limits.items()},
        "offload_folder": settings.offload_folder or tempfile.mkdtemp(prefix="djl-offload-"),
    }


def settle_(model: Any, settings: BuiltInSettings, folder: str) -> None:
    """Make a model that has been laid out ready to run; a temporary folder goes with it."""
    if not settings.offload_folder:
        weakref.finalize(model, shutil.rmtree, folder, ignore_errors=True)
    _bring_layers_whole_(model)


def _bring_layers_whole_(model: Any) -> None:
    """Have a layer's weights come when the layer is called, and not when each of its modules is.

    Some layers use weights of their modules without calling these: those of a convolution, say.
    """
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module, remove_hook_from_module
    from accelerate.utils import PrefixedDataset

    layers = unsplit_classes(model)
    for name, layer in list(model.named_modules()):
        if type(layer).__name__ not in layers:
            continue
        hooks = (getattr(module, "_hf_hook", None) for module in layer.modules())
        hook = next((one for one in hooks if isinstance(one, AlignDevicesHook) and one.offload), None)
        if hook is None:
            continue
        whole = AlignDevicesHook(
            execution_device=hook.execution_device,
            offload=True,
            weights_map=PrefixedDataset(hook.weights_map.dataset, f"{name}."),
            offload_buffers=hook.offload_buffers,
            place_submodules=True,
            tied_params_map=hook.tied_params_map,
        )
        remove_hook_from_module(layer, recurse=True)
        add_hook_to_module(layer, whole)


def told(model: Any, device: str) -> str:
    """Where weights are that are not on the device that computes, in words; "": there are none.

    Args:
        device: the one that computes, by torch's name.
    """
    places: Mapping[str, Any] = getattr(model, "hf_device_map", {})
    sizes: Counter[str] = Counter()
    for name, weight in model.named_parameters():
        held_by = max((one for one in places if not one or f"{name}.".startswith(f"{one}.")), key=len, default=None)
        place = device if held_by is None else str(places[held_by])
        kind = "on disk" if place == "disk" else "in the host's memory" if place == "cpu" and device != "cpu" else ""
        sizes[kind] += weight.nbytes
    away = [f"{sizes[kind] / 2**20:,.1f} MiB {kind}" for kind in ("in the host's memory", "on disk") if sizes[kind]]
    if not away:
        return ""
    return f"{' and '.join(away)}, of {sum(sizes.values()) / 2**20:,.1f} MiB of weights: every step reads them again"


def _weight_bytes(path: Path) -> int:
    """The size of a checkpoint's files of weights; 0 where there are none, which loading will say."""
    found = next((files for pattern in _WEIGHTS if (files := sorted(path.glob(pattern)))), [])
    return sum(file.stat().st_size for file in found)


def _free_bytes(settings: BuiltInSettings) -> int:
    """Free memory of the model's device."""
    if settings.device == "cpu" or not has_gpu():
        return available_bytes()
    import torch

    if not torch.cuda.is_available():
        return available_bytes()
    _, colon, index = settings.device.partition(":")
    free: int = torch.cuda.mem_get_info(int(index) if colon else 0)[0]
    return free
