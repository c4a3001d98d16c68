"""Shared by other makers' engines: options that are passed on, and the GPUs that their process sees.

Runs in every process; imports none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from ..config import ModelConfig, devices_sharing, visible_devices
from ..config.binding import settings_of
from ..config.settings.options import Options
from ..config.settings.serving import ServingSettings

#: torch's names of `option.dtype`, which are other engines' too.
DTYPES: Final[Mapping[str, str]] = {"auto": "auto", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def passed_options(properties: Mapping[str, str], own: type[msgspec.Struct]) -> dict[str, str]:
    """The settings of a model that this project does not declare: they are the engine's own.

    Args:
        own: declares the options that only this engine takes.

    Example:
        >>> from djl_python.config.engines import NoOptions
        >>> passed_options({"dtype": "fp16", "minWorkers": "1", "seed": "3"}, NoOptions)
        {'seed': '3'}
    """
    ours = _names(ServingSettings, "") | _names(Options, "option.") | _names(own, "option.")
    return {name: value for name, value in properties.items() if name not in ours}


def _names(struct: type[msgspec.Struct], prefix: str) -> set[str]:
    settings = settings_of(struct, prefix)
    return {name.removeprefix(prefix) for setting in settings for name in (setting.key, *setting.aliases)}


def visible_gpus(config: ModelConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """The variable that shows an engine's process, of several GPUs, its own and those that share its model."""
    _, colon, first = config.option.device.partition(":")
    count = devices_sharing(config)
    return {"CUDA_VISIBLE_DEVICES": visible_devices(int(first), count, environ)} if colon and count else {}
