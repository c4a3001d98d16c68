"""Decides which weights of a checkpoint stay in its files when it is loaded. Runs in the engine process, at load."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from typing import Any

import torch

from ...core.errors import ModelLoadError
from ..settings import BuiltInSettings
from .blocks import UnpackBlocks
from .rounding import Quantize
from .stored.gguf_checkpoint import GgufCheckpoint
from .stored.plain_checkpoint import PlainCheckpoint
from .stored.quantized_checkpoint import METHODS, QuantizedCheckpoint, UnsupportedFormatError

log = logging.getLogger(__name__)


def quantized_checkpoint(path: Path, config: Any, device: torch.device) -> QuantizedCheckpoint | None:
    """The quantized checkpoint, if its format is read here; None leaves them to libraries, which have GPU kernels.

    Raises:
        ModelLoadError: they can't be read here, and a library for them is missing.
    """
    if not isinstance(config, dict) or config.get("quant_method") not in METHODS:
        return None
    libraries = METHODS[config["quant_method"]]
    missing = any(importlib.util.find_spec(name.replace("-", "_")) is None for name in libraries)
    if device.type != "cpu" and not missing:
        return None
    try:
        return QuantizedCheckpoint(path, config)
    except UnsupportedFormatError as reason:
        if missing:
            raise ModelLoadError(f"{path}: {reason} is read with {' and '.join(libraries)}: pip install it") from reason
        log.info("%s is left to transformers", reason)
        return None


def plain_experts(path: Path, config: Any, device: torch.device, settings: BuiltInSettings) -> PlainCheckpoint | None:
    """The checkpoint, if native kernels may read its experts one by one; else None."""
    if device.type != "cpu" or settings.kernels == "torch" or settings.image_example is not None:
        return None
    if getattr(config.get_text_config(decoder=True), "quantization_config", None) or hasattr(
        config, "quantization_config"
    ):
        return None
    checkpoint = PlainCheckpoint(path)
    return checkpoint if checkpoint.linears else None


def gguf_checkpoint(
    path: Path, device: torch.device, settings: BuiltInSettings, unpack: UnpackBlocks | None
) -> GgufCheckpoint | None:
    """The GGUF file that a directory describes, if any.

    Its codes stay as they are where kernels multiply with them: on one CPU device, without `option.quantize`.

    Args:
        unpack: makes numbers of codes, where kernels may.
    """
    alone = settings.ranks == 1 and not settings.placement and not settings.device_map
    on_kernels = device.type == "cpu" and settings.kernels != "torch" and settings.image_example is None
    return GgufCheckpoint.of(path, as_codes=alone and on_kernels and rounding(settings) is None, unpack=unpack)


def rounding(settings: BuiltInSettings) -> Quantize | None:
    """The format to which this engine rounds the weights; None if it doesn't."""
    return settings.quantize if settings.quantize in ("int8", "int4") else None
