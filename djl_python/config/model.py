"""One model's configuration, as the worker receives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from .settings import Options, ServingSettings


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What only the checkpoint tells about a model. Empty until the handler has loaded it.

    Attributes:
        generation_config: the checkpoint's generation_config.json, whose values apply where a request sets none.
        takes_images: whether messages may have images.
    """

    generation_config: dict[str, Any] = {}
    takes_images: bool = False

    @classmethod
    def read(cls, path: Path) -> Checkpoint:
        """Read the files of a checkpoint. A generation_config.json that is missing or broken counts as empty."""
        try:
            found = msgspec.json.decode((path / "generation_config.json").read_bytes())
        except (OSError, msgspec.DecodeError):
            found = {}
        return cls(generation_config=found if isinstance(found, dict) else {})


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known about a model before it is loaded and, once it is, its checkpoint. Round-trips through msgpack.

    Attributes:
        path: absolute local model directory, or "" where there is only a checkpoint (a hub id).
        url: where the model came from, as the user wrote it.
        devices: those of the `name:version:engine:devices=url` form, else load_on_devices.
        properties: what DJL's `Input.get_properties()` returns: every key of serving.properties and OPTION_* without
            the `option.` prefix, as strings.
        provenance: key as the user writes it (`option.dtype`) -> "serving.properties:3", "environment OPTION_DTYPE",
            "config.properties:2", "default".
        cache_dir: directory for downloads; "" for the default below the home directory.
        warnings: complete sentences for the start-up log.
        checkpoint: what the handler found when it loaded the model.
    """

    name: str
    version: str = ""
    path: str = ""
    url: str = ""
    engine: str = "Python"
    devices: str = "*"
    serving: ServingSettings = ServingSettings()
    option: Options = Options()
    properties: dict[str, str] = {}
    provenance: dict[str, str] = {}
    cache_dir: str = ""
    warnings: tuple[str, ...] = ()
    checkpoint: Checkpoint = Checkpoint()
