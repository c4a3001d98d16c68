"""Reads the environment, and makes the environments of workers and engines.

Runs in the front end; `engine_environment` in the worker.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from .binding import settings_of
from .model import ModelConfig, Runtime
from .properties_file import PropertyEntry
from .sagemaker.variables import OF_MODELS, same
from .settings.options import Options
from .sources import cache_root


def _negated(value: str) -> str:
    return {"true": "false", "1": "false", "false": "true", "0": "true"}.get(value.strip().lower(), value)


def _nonzero(value: str) -> str:
    return "" if value.strip() == "0" else value


def _named_adapters(value: str) -> str:
    """TGI's adapters, of which those without a name have their source's."""
    parts = (part.strip() for part in value.split(","))
    return ",".join(part if "=" in part else f"{part}={part}" for part in parts if part)


#: The keys that a server accepts.
SERVER_KEYS: Final = "DJL_SERVING_API_KEY"
#: Packages that every worker and engine imports; setup.cfg says the same.
PROCESS_NEEDS: Final = ("jsonlines>=4.0", "msgspec>=0.21")
#: The file that completes a virtual environment; it lists the inputs.
ENVIRONMENT_STAMP: Final = "djl-environment.json"

#: Variables that Hugging Face's and SageMaker's containers use -> key and conversion, where nothing else sets the key.
CONTAINER_MAPS: Final[Mapping[str, tuple[str, Callable[[str], str]]]] = {
    "HF_MODEL_QUANTIZE": ("option.quantize", same),
    "HF_MODEL_TRUST_REMOTE_CODE": ("option.trust_remote_code", same),
    "HF_MODEL_REVISION": ("option.revision", same),  # TGI's, on SageMaker
    "HF_REVISION": ("option.revision", same),
    "HF_TASK": ("option.task", same),
    "SM_NUM_GPUS": ("option.tensor_parallel_degree", _nonzero),  # 0 on a machine without GPUs
    "NUM_SHARD": ("option.tensor_parallel_degree", _nonzero),
    "TRUST_REMOTE_CODE": ("option.trust_remote_code", same),
    "MAX_INPUT_LENGTH": ("option.max_input_tokens", same),
    "MAX_BATCH_PREFILL_TOKENS": ("option.max_rolling_batch_prefill_tokens", same),
    "LORA_ADAPTERS": ("option.lora_modules", _named_adapters),
    "MAX_BATCH_SIZE": ("option.max_rolling_batch_size", same),
    "ENABLE_CUDA_GRAPHS": ("option.enforce_eager", _negated),
    "CUDA_MEMORY_FRACTION": ("option.gpu_memory_utilization", same),
    **OF_MODELS,
}


def environment_entries(environ: Mapping[str, str]) -> dict[str, PropertyEntry]:
    """A model's settings in the environment, by key; empty variables count as unset.

    OPTION_<KEY> overrides a setting's own variable (PREDICT_TIMEOUT), which overrides the containers' variables.
    """
    entries: dict[str, PropertyEntry] = {}

    def add(key: str, value: str, name: str) -> None:
        if value.strip():
            entries.setdefault(key, PropertyEntry(value, f"environment {name}"))

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
    """A model's settings in the environment as a handler sees them, without the prefix `option.`.

    HF_MODEL_ID, which adds a model to a server, is this model's `model_id` here.
    """
    settings = {key.removeprefix("option."): entry.value for key, entry in environment_entries(environ).items()}
    model_id = environ.get("HF_MODEL_ID", "").strip()
    return {**settings, "model_id": model_id} if model_id else settings


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


def own_environment() -> Mapping[str, str]:
    """This process's environment."""
    return os.environ


def cache_directory(environ: Mapping[str, str] = os.environ) -> str:
    """Where downloads go: $SERVING_DOWNLOAD_DIR, else $DJL_CACHE_DIR, else "" (the default).

    An absolute path: workers run in the directories of their models.
    """
    directory = environ.get("SERVING_DOWNLOAD_DIR") or environ.get("DJL_CACHE_DIR")
    return os.path.abspath(directory) if directory else ""


def engine_environment(
    defaults: Callable[[Mapping[str, str]], Mapping[str, str]], environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The environment of a worker's engine: the worker's own over the engine's defaults.

    Args:
        defaults: makes them of the worker's environment.
    """
    return {**defaults(environ), **environ}


#: Variables that override the command line of a server, or add models to it.
_STRONGER: Final = frozenset(
    """
    SERVING_INFERENCE_ADDRESS SERVING_LOAD_MODELS SERVING_MANAGEMENT_ADDRESS SERVING_MODEL_STORE
    SERVING_MODEL_URL_PATTERN HF_MODEL_ID SERVING_CERTIFICATE_FILE SERVING_PRIVATE_KEY_FILE SERVING_CLIENT_CA_FILE
    SERVING_CLIENT_CERTIFICATES SERVING_API_KEYS DJL_SERVING_API_KEY
    """.split()
)


def own_server_environment(socket: Path | None = None, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a server that this process starts: its own, without the variables that set addresses and
    models.

    Args:
        socket: the Unix socket to listen on, by a server whose output is read as text; None: the command line says
            where, and its output is the user's.
    """
    inherited = {name: value for name, value in environ.items() if name not in _STRONGER}
    inherited.setdefault("SERVING_DRAIN_DELAY", "0")  # no load balancer has to notice its end
    if socket is None:
        return inherited
    return inherited | {
        "SERVING_INFERENCE_ADDRESS": f"unix:{socket}",
        "SERVING_LOG_FORMAT": "text",
        "SERVING_WAIT_MODEL_LOADING": "true",
    }


def api_key(environ: Mapping[str, str] = os.environ) -> str:
    """The bearer token that `chat`, `run`, `bench`, `batch` and `replay` send: $DJL_API_KEY, or where it is unset the
    first key of $DJL_SERVING_API_KEY; "" without either."""
    return environ.get("DJL_API_KEY", "").strip() or next(iter(server_api_keys(environ)), "")


def server_api_keys(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The keys that a server accepts beside those of a file: $DJL_SERVING_API_KEY, with commas between them."""
    return tuple(filter(None, (key.strip() for key in environ.get(SERVER_KEYS, "").split(","))))


def state_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Where commands keep their state: `djl-serving`, in $XDG_STATE_HOME, or in ~/.local/state."""
    named = environ.get("XDG_STATE_HOME", "")
    return (Path(named) if os.path.isabs(named) else Path.home() / ".local" / "state") / "djl-serving"


#: OpenTelemetry's variables that say whether requests are traced; its SDK reads the others itself. Source:
#: OpenTelemetry's specification, "Environment Variable Specification".
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL: Final = "http/protobuf"
#: Packages of the extra `tracing`.
_NEEDS: Final = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")


def traces_requests(environ: Mapping[str, str], warnings: list[str]) -> bool:
    """Whether the environment asks for traces and the packages are installed; `warnings` gets the reason if not.

    It asks for them with the endpoint of a collector, or with OTEL_TRACES_EXPORTER=otlp.
    """
    asked = _what_asks(environ)
    if not asked:
        return False
    problem = _problem(environ)
    if problem:
        warnings.append(f"{asked} has no effect, there are no traces: {problem}")
    return not problem


def _what_asks(environ: Mapping[str, str]) -> str:
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ""
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").strip()
    if exporter:
        return "" if exporter == "none" else f"environment OTEL_TRACES_EXPORTER={exporter}"
    return next((f"environment {name}" for name in _ENDPOINTS if environ.get(name, "").strip()), "")


def _problem(environ: Mapping[str, str]) -> str:
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    if exporter != "otlp":
        return "expected otlp or none"
    name = next((name for name in _PROTOCOLS if environ.get(name, "").strip()), "")
    if name and environ[name].strip() != _PROTOCOL:
        return f"{name}={environ[name].strip()}, expected {_PROTOCOL}"
    if not all(map(is_here, _NEEDS)):
        return "pip install 'djl-serving[tracing]' brings what is needed"
    return ""


def is_here(module: str) -> bool:
    """Whether a module can be imported. The module is not imported, but its parent packages are."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a package above it
        return False


def set_rank_environment(device_index: int) -> None:
    """Set the variables that libraries read in a process that shares a model with others.

    transformers reads the index of this process's device. gloo reads where to listen; otherwise the host's name must
    have an address.
    """
    os.environ["LOCAL_RANK"] = str(device_index)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def worker_environment(config: ModelConfig, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a model's workers.

    It is the server's own, overridden by `option.env`, with unbuffered output, so that a handler's prints reach the log
    at once. DJL_OFFLINE also keeps the hub client offline. Unlike in DJL, the model directory is not in PYTHONPATH: it
    would come before the standard library, and a file of the model may be named like one of its modules. A model's own
    virtual environment is active: its commands are found first.
    """
    environment = {"PYTHONUNBUFFERED": "1", **environ}
    environment.pop(SERVER_KEYS, None)  # secrets of the front end, which a model's code must not see
    for pair in config.option.env.split(","):
        name, equals, value = pair.strip().partition("=")
        if equals:
            environment[name.strip()] = value
    if is_offline(environment):
        environment.setdefault("HF_HUB_OFFLINE", "1")
    return activated(environment, config.runtime)


def activated(environ: Mapping[str, str], runtime: Runtime) -> dict[str, str]:
    """The environment of a process with this runtime: its interpreter finds `djl_python`, and its venv is active."""
    environment = dict(environ)
    if runtime.package_path:
        _put_before(environment, "PYTHONPATH", runtime.package_path)
    if runtime.venv:
        environment["VIRTUAL_ENV"] = runtime.venv
        _put_before(environment, "PATH", os.path.join(runtime.venv, "bin"))
    return environment


def is_offline(environ: Mapping[str, str]) -> bool:
    """Whether DJL_OFFLINE forbids downloads."""
    return environ.get("DJL_OFFLINE", "").strip().lower() in ("true", "1")


def venv_directory(cache_dir: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Where models' virtual environments are: $DJL_VENV_DIR, else below the directory of downloads.

    Args:
        cache_dir: the model's `cache_dir`.

    Raises:
        ConfigError: nothing says where, and this user has no home directory.
    """
    named = environ.get("DJL_VENV_DIR", "")
    return Path(named).absolute() if named else cache_root(Path(cache_dir) if cache_dir else None) / "venvs"


def engines_directory(cache_dir: str) -> Path:
    """Where engines have environments of their own: below the directory of downloads, which is `cache_dir` if given.

    Raises:
        ConfigError: nothing says where, and this user has no home directory.
    """
    return cache_root(Path(cache_dir) if cache_dir else None) / "engines"


def extensions_directory(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Where torch compiles extensions to in this process; None: in a folder of its own that all processes share."""
    named = environ.get("TORCH_EXTENSIONS_DIR")
    return Path(named) if named else None


def compiling_environment(venv: Path, folder: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a process that compiles extensions of torch's to a folder of a virtual environment.

    It finds the same tools as an engine's process: another ninja would compile everything again.
    """
    runtime = Runtime(executable=str(venv / "bin" / "python"), venv=str(venv))
    return {**activated(environ, runtime), "TORCH_EXTENSIONS_DIR": str(venv / folder)}


def _put_before(environment: dict[str, str], name: str, path: str) -> None:
    """Put a path before those that a variable has."""
    environment[name] = os.pathsep.join(filter(None, (path, environment.get(name, ""))))
