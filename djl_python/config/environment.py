"""A model's settings from the environment, and the environments of its workers and engines.

Runs in the front end; `engine_environment` in the worker.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Final

from .binding import settings_of
from .model import ModelConfig
from .properties_file import Entry
from .settings import Options


def _same(value: str) -> str:
    return value


def _negated(value: str) -> str:
    return {"true": "false", "1": "false", "false": "true", "0": "true"}.get(value.strip().lower(), value)


def _nonzero(value: str) -> str:
    return "" if value.strip() == "0" else value


#: Variables that Hugging Face's and SageMaker's containers use -> key and conversion, where nothing else sets the key.
CONTAINER_MAPS: Final[Mapping[str, tuple[str, Callable[[str], str]]]] = {
    "HF_MODEL_QUANTIZE": ("option.quantize", _same),
    "HF_MODEL_TRUST_REMOTE_CODE": ("option.trust_remote_code", _same),
    "HF_REVISION": ("option.revision", _same),
    "HF_TASK": ("option.task", _same),
    "SM_NUM_GPUS": ("option.tensor_parallel_degree", _nonzero),  # 0 on a machine without GPUs
    "MAX_BATCH_PREFILL_TOKENS": ("option.max_rolling_batch_prefill_tokens", _same),
    "MAX_BATCH_SIZE": ("option.max_rolling_batch_size", _same),
    "ENABLE_CUDA_GRAPHS": ("option.enforce_eager", _negated),
    "CUDA_MEMORY_FRACTION": ("option.gpu_memory_utilization", _same),
}


def environment_entries(environ: Mapping[str, str]) -> dict[str, Entry]:
    """A model's settings in the environment, by key; empty variables count as unset.

    OPTION_<KEY> overrides a setting's own variable (PREDICT_TIMEOUT), which overrides the containers' variables.
    """
    entries: dict[str, Entry] = {}

    def add(key: str, value: str, name: str) -> None:
        if value.strip():
            entries.setdefault(key, Entry(value, f"environment {name}"))

    for name, value in sorted(environ.items()):
        if name.startswith("OPTION_") and name != "OPTION_":
            add(_option_key(name.removeprefix("OPTION_")), value, name)
    for setting in settings_of(Options, "option."):
        if setting.environment and entries.keys().isdisjoint(setting.aliases):
            add(setting.key, environ.get(setting.environment, ""), setting.environment)
    for name, (key, convert) in CONTAINER_MAPS.items():
        add(key, convert(environ.get(name, "")), name)
    return entries


def environment_settings(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """A model's settings in the environment as a handler sees them, without the prefix `option.`."""
    return {key.removeprefix("option."): entry.value for key, entry in environment_entries(environ).items()}


def _option_key(name: str) -> str:
    """The key of OPTION_<name>: DTYPE -> option.dtype, ENTRYPOINT -> option.entryPoint; a mixed-case name is kept."""
    if name.upper() != name:
        return f"option.{name}"
    name = name.lower()
    if name == "engine":
        return name
    settings = settings_of(Options, "option.")
    capitals = {key.lower(): key for setting in settings for key in (setting.key, *setting.aliases)}
    return capitals.get(f"option.{name}", f"option.{name}")


def cache_directory(environ: Mapping[str, str] = os.environ) -> str:
    """Where downloads go: $SERVING_DOWNLOAD_DIR, else $DJL_CACHE_DIR, else "" (the default).

    An absolute path: workers run in the directories of their models.
    """
    found = environ.get("SERVING_DOWNLOAD_DIR") or environ.get("DJL_CACHE_DIR")
    return os.path.abspath(found) if found else ""


def engine_environment(
    defaults: Callable[[Mapping[str, str]], Mapping[str, str]], environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The environment of a worker's engine: the worker's own over the engine's defaults.

    Args:
        defaults: makes them of the worker's environment.
    """
    return {**defaults(environ), **environ}


def set_rank_environment(device_index: int) -> None:
    """Tell the libraries of this process, which shares a model with others, what they read from the environment.

    transformers reads which of the devices is this process's; gloo, where it listens, or else it wants the host's name
    to have an address.
    """
    os.environ["LOCAL_RANK"] = str(device_index)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def worker_environment(config: ModelConfig, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a model's workers.

    It is the server's own, overridden by `option.env`, with unbuffered output, so that a handler's prints reach the log
    at once. DJL_OFFLINE also keeps the hub client offline. Unlike in DJL, the model directory is not in PYTHONPATH: it
    would come before the standard library, and a file of the model may be named like one of its modules.
    """
    environment = {"PYTHONUNBUFFERED": "1", **environ}
    if environ.get("DJL_OFFLINE", "").strip().lower() in ("true", "1"):
        environment.setdefault("HF_HUB_OFFLINE", "1")
    for pair in config.option.env.split(","):
        name, equals, value = pair.strip().partition("=")
        if equals:
            environment[name.strip()] = value
    return environment
