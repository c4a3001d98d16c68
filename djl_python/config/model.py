"""One model's configuration, as the worker receives it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import msgspec

from ..core.errors import ModelLoadError
from .settings import Options, ServingSettings

#: Of a model's properties, handlers get these with no call but the first: in an Input's properties, batch_size is the
#: size of the batch that the Input holds.
NOT_OF_CALLS: Final = frozenset({"batch_size", "max_dynamic_batch_size"})


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


def script_names(name: str) -> tuple[str, str]:
    """The files of a model directory that have the user's code where no setting names one, the first one first.

    Args:
        name: the model's; of one with an owner, what follows it counts.
    """
    return f"{name.rpartition('/')[2]}.py", "model.py"


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


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's workers run with, which the server finds out, or makes, before it starts them.

    Attributes:
        executable: their interpreter; "" for the server's own.
        venv: the virtual environment that `executable` belongs to, where it is one of the model's own; else "".
        package_path: a directory with `djl_python` alone, for the interpreter to find it; "" where it does so anyway.
    """

    executable: str = ""
    venv: str = ""
    package_path: str = ""


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
        runtime: what its workers run with.
        adapters: name -> absolute directory of each LoRA adapter that requests may name.
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
    runtime: Runtime = Runtime()
    adapters: dict[str, str] = {}
    checkpoint: Checkpoint = Checkpoint()

    def said(self, key: str, value: object) -> str:
        """A setting as errors cite it, with where it was set: `serving.properties:3: option.dtype=fp16`."""
        return f"{self.where(key)}{key}={value}"

    def where(self, key: str) -> str:
        """Where a setting was set, as a line about it begins: `serving.properties:3: `; "" where it has its default."""
        source = self.provenance.get(key, "default")
        return "" if source == "default" else f"{source}: "

    @property
    def label(self) -> str:
        """Names the model in /ping and in the log: `name`, or `name:version` where it has a version."""
        return f"{self.name}:{self.version}" if self.version else self.name
