"""One model's configuration, as the worker receives it."""

from __future__ import annotations

import msgspec

from .settings import Options, ServingSettings


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known about a model before it is loaded. Round-trips through msgpack.

    Attributes:
        path: absolute local model directory, or "" where the checkpoint is all there is (a hub id).
        url: where the model came from, as the user wrote it.
        devices: those of the `name:version:engine:devices=url` form, else load_on_devices.
        properties: what DJL's `Input.get_properties()` gives: every key of serving.properties and OPTION_* with
            `option.` taken off, as strings.
        provenance: key as the user writes it (`option.dtype`) -> "serving.properties:3", "environment OPTION_DTYPE",
            "config.properties:2", "default".
        cache_dir: where what is downloaded goes; "" for the default below the home directory.
        warnings: complete sentences for the start-up log.
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
