"""Models that are larger than a device: their modules on several devices, in memory and on disk, by accelerate.

Runs in the engine process. Weights on another device are copied for each step and released again: a step reads them
    all, from memory or from the checkpoint's files.
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
from ...core.errors import ModelLoadError
from ..settings import BuiltInSettings
from ..transformers_private import unsplit_classes
from .free_memory import available_bytes

#: Files of weights, where a directory has several kinds: the first that there is counts.
_WEIGHTS: Final = ("*.safetensors", "*.bin", "*.gguf")
#: The share of a device's free memory that weights may take: the cache and steps need some too.
_SHARE: Final = 0.8


def offloads(settings: BuiltInSettings) -> bool:
    """Whether accelerate distributes the model: settings say how, or allow it and the model is larger than its device.

    A model that fits stays on one device, where it is faster; it is not used with tensor parallelism either.
    """
    if not settings.device_map or settings.ranks > 1:
        return False
    if settings.max_memory or settings.device_map.startswith("{"):
        return True
    return _weight_bytes(Path(settings.model_path)) > _SHARE * _free_bytes(settings)


def placed(settings: BuiltInSettings) -> dict[str, Any]:
    """The arguments of transformers' `from_pretrained`."""
    chosen = settings.device_map
    limits = json.loads(settings.max_memory) if settings.max_memory else None
    return {
        "device_map": json.loads(chosen) if chosen.startswith("{") else chosen,
        "max_memory": limits and {int(name) if name.isdecimal() else name: most for name, most in limits.items()},
        "offload_folder": settings.offload_folder or tempfile.mkdtemp(prefix="djl-offload-"),
    }


def keep_offloaded_(model: Any, settings: BuiltInSettings, folder: str) -> None:
    """Make a model that has been laid out ready to run; a temporary folder goes with it.

    Raises:
        ModelLoadError: transformers has left weights on disk, with nothing that would read them (5.9 does, if no weight
            is elsewhere).
    """
    if not hasattr(model, "hf_device_map") and any(each.is_meta for each in model.parameters()):
        raise ModelLoadError(
            "option.device_map: this release of transformers runs no model of which all weights are on disk; "
            "a newer one does, or more of max_memory"
        )
    if not settings.offload_folder:
        weakref.finalize(model, shutil.rmtree, folder, ignore_errors=True)
    _bring_layers_whole_(model)


def _bring_layers_whole_(model: Any) -> None:
    """Bring a layer's weights when the layer is called, instead of when each of its modules is.

    Some layers use weights of their modules without calling these, such as a convolution's.
    """
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module, remove_hook_from_module
    from accelerate.utils import PrefixedDataset

    layers = unsplit_classes(model)
    for name, layer in list(model.named_modules()):
        if type(layer).__name__ not in layers:
            continue
        hooks = (getattr(module, "_hf_hook", None) for module in layer.modules())
        hook = next(
            (candidate for candidate in hooks if isinstance(candidate, AlignDevicesHook) and candidate.offload), None
        )
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


def describe_offloading(model: Any, device: str) -> str:
    """In words, where weights are that are not on the computing device; "": there are none.

    Args:
        device: the one that computes, by torch's name.
    """
    places: Mapping[str, Any] = getattr(model, "hf_device_map", {})
    sizes: Counter[str] = Counter()
    for name, weight in model.named_parameters():
        held_by = max(
            (prefix for prefix in places if not prefix or f"{name}.".startswith(f"{prefix}.")), key=len, default=None
        )
        place = device if held_by is None else str(places[held_by])
        kind = "on disk" if place == "disk" else "in the host's memory" if place == "cpu" and device != "cpu" else ""
        sizes[kind] += weight.nbytes
    away = [f"{sizes[kind] / 2**20:,.1f} MiB {kind}" for kind in ("in the host's memory", "on disk") if sizes[kind]]
    if not away:
        return ""
    return f"{' and '.join(away)}, of {sum(sizes.values()) / 2**20:,.1f} MiB of weights: every step reads them again"


def _weight_bytes(path: Path) -> int:
    """The size of a checkpoint's weight files; 0 if there are none, which loading will report."""
    weight_files = next((files for pattern in _WEIGHTS if (files := sorted(path.glob(pattern)))), [])
    return sum(file.stat().st_size for file in weight_files)


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
