"""ZeRO-Inference: weights in equal parts on the devices that share a model, in memory or on NVMe. Engine process, once.

A module's weights are gathered when it is called, and released afterwards (ZeRO stage 3). So any model runs in this
way, even one larger than all devices together; every step reads all weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import deepspeed
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations import HfDeepSpeedConfig, unset_hf_deepspeed_config

from ...core.errors import ModelLoadError
from ..checkpoints.loading import bytes_of
from ..devices.placement import Placed, Read
from ..settings import BuiltInSettings
from .extensions import load_async_io
from .swap_folder import SwapFolder

_PLACES: Final = {"nvme": "on NVMe", "cpu": "in the host's memory"}


def partitioned(
    read: Read, dtype: torch.dtype | None, settings: BuiltInSettings, device: torch.device, zero: Mapping[str, Any]
) -> Placed:
    """Load a model whose weights ZeRO partitions.

    Args:
        zero: of `PartitionPlan`.

    Raises:
        ModelLoadError: DeepSpeed does not take a setting, or there is no place on NVMe.
    """
    options, folder = _configuration(zero, dtype, settings)
    try:
        known = HfDeepSpeedConfig(options)  # while it lives, transformers loads one weight at a time
        try:
            model = read({})
        finally:
            del known
            unset_hf_deepspeed_config()
        deepspeed.initialize(model=model, config=options)
    except ValueError as exc:  # pydantic's, of a setting
        raise ModelLoadError(f"DeepSpeed does not take zero_optimization: {exc}") from exc
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device))
    if folder is not None:
        folder.removed_with(model)
    words = _summary(model, options, settings.tensor_parallel_degree, device)
    return Placed(model, words, is_whole=False)


def _configuration(
    zero: Mapping[str, Any], dtype: torch.dtype | None, settings: BuiltInSettings
) -> tuple[dict[str, Any], SwapFolder | None]:
    """DeepSpeed's configuration, and the folder of weights on NVMe, if any."""
    optimization = dict(zero["zero_optimization"])
    folder = None
    offload = dict(optimization.get("offload_param", {}))
    if offload.get("device") == "nvme":
        load_async_io()
        folder = SwapFolder(Path(offload["nvme_path"]))
        offload["nvme_path"] = str(folder.path)
        offload.setdefault("buffer_size", -(-_largest_weight(settings) // settings.tensor_parallel_degree))
    if offload:
        optimization["offload_param"] = offload
    return {
        **zero,
        "zero_optimization": optimization,
        "train_micro_batch_size_per_gpu": 1,  # which it wants to know of anybody
        "bf16": {"enabled": dtype == torch.bfloat16},
        "fp16": {"enabled": dtype == torch.float16},
    }, folder


def _largest_weight(settings: BuiltInSettings) -> int:
    """The size of the model's largest weight: a read buffer must have room for a device's part of it."""
    trusted = settings.trust_remote_code
    config = AutoConfig.from_pretrained(settings.model_path, trust_remote_code=trusted)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=trusted)
    largest: int = max(weight.numel() for weight in model.parameters())
    return largest


def _summary(model: Any, options: Mapping[str, Any], degree: int, device: torch.device) -> str:
    """Where weights are, in words; "": on the one device."""
    size = f"{sum(map(bytes_of, model.parameters())) / 2**20:,.1f} MiB of weights"
    offload = options["zero_optimization"].get("offload_param", {}).get("device", "none")
    if offload in ("none", device.type):
        return "" if degree == 1 else f"{size} are in equal parts on {degree} devices: every step gathers them"
    shared = f", in equal parts of {degree} devices" if degree > 1 else ""
    return f"{size} are {_PLACES[offload]}{shared}: every step reads them again"
