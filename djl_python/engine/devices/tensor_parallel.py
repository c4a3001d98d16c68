"""Tensor parallelism: how many devices share each layer of a model, and the arguments for each of them.

Runs in the engine processes, one for each device: the ranks. A rank has its part of the weights and of the cache's
heads. All ranks make the same calls in the same order; within each layer torch.distributed adds up the results of their
parts. transformers declares how a model's layers are divided.
"""

from __future__ import annotations

import inspect
import logging
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from msgspec.structs import replace

from ...config import set_rank_environment
from ...core.errors import ModelLoadError
from ..settings import BuiltInSettings
from .device import pick_device, prepare_device

log = logging.getLogger(__name__)

#: Numbers that the degree has to divide, by their names in config.json.
_DIVIDED: Final = ("num_attention_heads", "num_key_value_heads")
#: Types of layers, in config.json, that keep all that they know of a text in the cache's blocks.
_PAGED_LAYERS: Final = frozenset({"full_attention", "sliding_attention"})


def degree_of(settings: BuiltInSettings) -> int:
    """How many devices share the model: as many as were asked for, or as there are and can.

    Raises:
        ModelLoadError: there are not as many as were asked for, or the model can't be divided among them.
    """
    asked, device = settings.tensor_parallel_degree, pick_device(settings.device)
    named = f"option.tensor_parallel_degree={asked or 'max'}"
    there = torch.cuda.device_count() - (device.index or 0) if device.type == "cuda" else asked or 1
    if asked > there:
        raise ModelLoadError(f"{named}: there are {there} GPUs from {device} on")
    if there == 1:
        return 1
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(settings.model_path, trust_remote_code=settings.trust_remote_code)
    text = config.get_text_config(decoder=True)
    if reason := hindrance(settings, text, bool(getattr(text, "base_model_tp_plan", None))):
        if asked:
            raise ModelLoadError(f"{named}: {reason} runs on one device")
        log.warning("%s: %s runs on one device", named, reason)
        return 1
    if settings.placement:  # into unequal parts too
        return asked or there
    counts = {name: count for name in _DIVIDED if isinstance(count := getattr(text, name, None), int)}
    if asked:
        for name, count in counts.items():
            if count % asked:
                raise ModelLoadError(f"{named}: it does not divide {name}, which is {count}")
        return asked
    return max(degree for degree in range(1, there + 1) if all(count % degree == 0 for count in counts.values()))


def hindrance(settings: BuiltInSettings, text: Any, has_plan: bool) -> str | None:
    """Why a model runs on one device; None if nothing prevents more.

    Args:
        text: the configuration of the language model.
        has_plan: whether transformers says how it is divided.
    """
    if settings.image_example is not None:
        return "a model that takes images"
    if settings.placement:  # which divides models as it can
        return None
    on_cpu = pick_device(settings.device).type == "cpu"
    if on_cpu and torch.accelerator.is_available():  # which transformers would take instead
        return f"a model with option.device={settings.device} beside GPUs"
    if settings.quantize in ("int8", "int4"):
        return f"a model with option.quantize={settings.quantize}"
    if settings.kernels == "native":
        return "a model with option.kernels=native"
    if others := set(getattr(text, "layer_types", None) or ()) - _PAGED_LAYERS:
        return f"a model with layers of type {min(others)}"
    if not has_plan:
        return f"a model of type {text.model_type}"
    return None


def settings_of(rank: int, settings: BuiltInSettings) -> BuiltInSettings:
    """A rank's settings; its device is the `rank`-th after the one of the model's settings."""
    device = pick_device(settings.device)
    return replace(
        settings,
        device="cpu" if device.type == "cpu" else f"{device.type}:{(device.index or 0) + rank}",
        kernels="torch",
    )


def join(rank: int, settings: BuiltInSettings, meeting: Path) -> None:
    """Wait for the other ranks, and be one of them from now on.

    Args:
        settings: this rank's.
        meeting: a file where the ranks find one another, which does not exist before.
    """
    device, degree = pick_device(settings.device), settings.ranks
    set_rank_environment(device.index or 0)
    prepare_device(device)
    on_gpu = device.type == "cuda"
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=dist.FileStore(str(meeting), degree),  # type: ignore[attr-defined]
        rank=rank,
        world_size=degree,
        device_id=device if on_gpu else None,
    )


def placement(settings: BuiltInSettings, device: torch.device) -> dict[str, Any]:
    """The arguments of transformers' `from_pretrained`: the device, or the number of ranks.

    Raises:
        ModelLoadError: transformers, or torch, is too old to divide a model.
    """
    degree = settings.tensor_parallel_degree
    if degree == 1:
        return {"device_map": {"": device} if device.type != "cpu" else None}
    from torch.distributed import tensor
    from transformers import __version__
    from transformers.distributed import configuration_utils

    try:
        shared = configuration_utils.DistributedConfig(tp_size=degree)
    except TypeError as exc:
        raise ModelLoadError(
            f"option.tensor_parallel_degree={degree} needs transformers 5.13 or newer; this is {__version__}"
        ) from exc
    if "src_data_rank" not in inspect.signature(tensor.distribute_tensor).parameters:  # as transformers calls it
        raise ModelLoadError(
            f"option.tensor_parallel_degree={degree} needs torch 2.7 or newer; this is {torch.__version__}"
        )
    return {"distributed_config": shared}


def join_alone(device: torch.device) -> None:
    """Make this process the only rank, for libraries that need ranks. A process that is a rank stays one."""
    if dist.is_initialized():
        return
    set_rank_environment(device.index or 0)
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", store=store, rank=0, world_size=1)


def least(number: int, device: torch.device) -> int:
    """The least of the numbers that all ranks call this with."""
    numbers = torch.tensor([number], device=device)
    dist.all_reduce(numbers, dist.ReduceOp.MIN)
    return int(numbers.item())
