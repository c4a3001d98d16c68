"""One model's configuration, as the worker receives it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from ..core.errors import ModelLoadError
from .settings import Options, ServingSettings


def read_json_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file of a checkpoint, {} if there is no file. NaN and Infinity are taken: configs have them.

    Raises:
        ModelLoadError: it can't be read, or is not a JSON object.
    """
    try:
        found = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as exc:
        raise ModelLoadError(f"{file} can't be read: {exc.strerror}") from exc
    except (ValueError, RecursionError) as exc:
        raise ModelLoadError(f"{file} is not valid JSON: {exc}") from exc
    if not isinstance(found, dict):
        raise ModelLoadError(f"{file}: expected a JSON object")
    return found


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
        """Read the files of a checkpoint. A generation_config.json that is missing counts as empty.

        Raises:
            ModelLoadError: it is broken.
        """
        return cls(generation_config=read_json_object(path / "generation_config.json"))


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known about a model before it is loaded and, once it is, its checkpoint. Round-trips through msgpack.

    Attributes:
        path: absolute local model directory, or "" where there is only a checkpoint (a hub id).
        url: where the model came from, as the user wrote it.
        devices: those of the `name:version:engine:devices=url` form, else load_on_devices.
        engine_options: what is set of the options that only the model's engine takes, by the fields of
            `engines.own_options`.
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
    engine_options: dict[str, Any] = {}
    properties: dict[str, str] = {}
    provenance: dict[str, str] = {}
    cache_dir: str = ""
    warnings: tuple[str, ...] = ()
    checkpoint: Checkpoint = Checkpoint()

    @property
    def label(self) -> str:
        """Names the model in /ping and in the log: `name`, or `name:version` where it has a version."""
        return f"{self.name}:{self.version}" if self.version else self.name
