"""One model's configuration, as the worker receives it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import msgspec

from ..core.errors import ModelLoadError
from .infilling import infill_tokens
from .settings.options import Options
from .settings.serving import ServingSettings

#: Properties of a model that a handler gets with its first call only: later, an Input's batch_size is the number of
#: requests in that Input.
NOT_OF_CALLS: Final = frozenset({"batch_size", "max_dynamic_batch_size"})


def read_json_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file of a checkpoint, {} if there is no file. NaN and Infinity are taken: configs have them.

    Raises:
        ModelLoadError: it can't be read, or is not a JSON object.
    """
    try:
        content = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as exc:
        raise ModelLoadError(f"{file} can't be read: {exc.strerror}") from exc
    except (ValueError, RecursionError) as exc:
        raise ModelLoadError(f"{file} is not valid JSON: {exc}") from exc
    if not isinstance(content, dict):
        raise ModelLoadError(f"{file}: expected a JSON object")
    return content


def script_names(name: str) -> tuple[str, str]:
    """The names of files that may hold the user's code where no setting names one, in order of preference.

    Args:
        name: the model's; an owner's prefix (owner/name) is ignored.
    """
    return f"{name.rpartition('/')[2]}.py", "model.py"


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that only the checkpoint has. Empty until the handler has loaded it.

    Attributes:
        generation_config: the checkpoint's generation_config.json, whose values apply where a request sets none.
        takes_images: whether messages may have images.
        infill_tokens: see `infilling.infill_tokens`.
    """

    generation_config: dict[str, Any] = {}
    takes_images: bool = False
    infill_tokens: tuple[str, str, str] | None = None

    @classmethod
    def read(cls, path: Path) -> Checkpoint:
        """Read the files of a checkpoint. A generation_config.json that is missing counts as empty.

        Raises:
            ModelLoadError: it is broken.
        """
        return cls(
            generation_config=read_json_object(path / "generation_config.json"), infill_tokens=infill_tokens(path)
        )


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """The interpreter and packages of a model's workers; the server prepares them before it starts a worker.

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
        engine_options: the settings that only the model's engine takes, by the fields of `engines.own_options`.
        properties: what DJL's `Input.get_properties()` returns: every key of serving.properties and OPTION_* without
            the `option.` prefix, as strings.
        provenance: key as the user writes it (`option.dtype`) -> "serving.properties:3", "environment OPTION_DTYPE",
            "config.properties:2", "default".
        cache_dir: directory for downloads; "" for the default below the home directory.
        warnings: complete sentences for the start-up log.
        runtime: the interpreter and packages of its workers.
        adapters: name -> absolute directory of each LoRA adapter that requests may name.
        runs_adapter_code: whether a model.py in an adapter's directory may run; secure mode may forbid it.
        checkpoint: facts that the handler read when it loaded the model.
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
    runs_adapter_code: bool = True
    checkpoint: Checkpoint = Checkpoint()

    def cite(self, key: str, value: object) -> str:
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
