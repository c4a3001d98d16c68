"""The tables of settings and variables in docs/settings.md. Runs in `make docs`; `shown` in the front end too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from .binding import Setting, settings_of
from .engines import ENGINES, all_options, row_of
from .environment import CONTAINER_MAPS, SERVER_KEYS
from .keys.without_effect import OPTIONS_WITHOUT_EFFECT, SERVER_WITHOUT_EFFECT, SERVING_WITHOUT_EFFECT
from .sagemaker.secure_mode import CHANNELS, CONTROLS, SECURE_MODE
from .sagemaker.variables import MULTI_MODEL, OF_THE_SERVER, PORT
from .settings.options import Options
from .settings.server import ServerConfig
from .settings.serving import ServingSettings


def _tables() -> Iterator[tuple[str, type[msgspec.Struct], str]]:
    """(title, declaring class, prefix of the keys) of each table."""
    yield "serving.properties: queue, batching and workers", ServingSettings, ""
    yield "serving.properties: handler and engine", Options, "option."
    for engine, struct in all_options().items():
        if settings_of(struct):
            yield f"serving.properties: the engine {engine} alone", struct, "option."
    yield "config.properties", ServerConfig, ""


_VARIABLES: Final = {
    "HF_MODEL_ID": "A model to serve, in addition to those that the command line names: a path, a URL, or a hub id.",
    "OPTION_MODEL_ID": "The model to serve, if no other setting names one; otherwise the default of `option.model_id`.",
    "MODEL_ID": "The model to serve (TGI's variable), if no other setting names one.",
    "MODEL_SERVER_HOME": "The directory with `conf/config.properties`, or `config.properties`, without `-f`.",
    "MAX_CONCURRENT_REQUESTS": "`job_queue_size`, if `SERVING_JOB_QUEUE_SIZE` is unset.",
    "SERVING_DOWNLOAD_DIR": "The directory of downloads and unpacked archives; unset: `DJL_CACHE_DIR`, or "
    "`~/.cache/djl-serving`. Models of the hub are in the cache of its client (`HF_HOME`).",
    "DJL_CACHE_DIR": "The same directory, if `SERVING_DOWNLOAD_DIR` is unset.",
    PORT: "The port of `inference_address`, if `SERVING_INFERENCE_ADDRESS` is unset.",
    "SAGEMAKER_CONTAINER_LOG_LEVEL": "The log level without `--log-level`: a name, or Python's number (20).",
    SECURE_MODE: "`true`: models that violate one of `SAGEMAKER_SECURITY_CONTROLS` are refused.",
    CONTROLS: "The controls of secure mode, separated by commas.",
    CHANNELS: "The directories that secure mode examines, separated by commas.",
    "DJL_VENV_DIR": "The directory of models' virtual environments; unset: `venvs`, in the directory of downloads.",
    "DJL_API_KEY": "The bearer token that `djl-serving chat`, `run`, `bench` and `batch` send to a server; unset: the "
    "first key of `DJL_SERVING_API_KEY`.",
    "OLLAMA_MODELS": "The directory of the models of `ollama://`; unset: Ollama's own directories.",
    "XDG_STATE_HOME": "The parent of the directory `djl-serving`, where `djl-serving chat` keeps its history of "
    "questions; unset: `~/.local/state`.",
    SERVER_KEYS: "API keys that the server accepts, separated by commas, without `--api-key`. They have the scopes "
    "`infer` and `metrics`.",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "The collector that gets traces of requests "
    "([operations](operations.md#traces)); unset: no traces. OpenTelemetry's other variables have their meaning.",
    "OTEL_TRACES_EXPORTER": "`otlp`: requests are traced; `none`: they are not, even with an endpoint.",
    "OTEL_SDK_DISABLED": "`true`: requests are not traced.",
    "TORCH_EXTENSIONS_DIR": "The directory in which DeepSpeed compiles its extensions; unset: its environment.",
    "CUDA_VISIBLE_DEVICES": "The GPUs that models may use, by number or name; here they are counted from 0.",
    "DJL_OFFLINE": "`true` or `1`: workers do not ask the hub (`HF_HUB_OFFLINE=1`), and pip finds packages in the "
    "model's `requirements/` alone.",
}
_NOTES: Final = {
    "SM_NUM_GPUS": "; 0 counts as unset",
    MULTI_MODEL: ": `true` stands for `NONE` and `open`; models come by requests",
    "SAGEMAKER_MAX_PAYLOAD_IN_MB": ", in MiB",
    "ENABLE_CUDA_GRAPHS": " (the opposite)",
}


def settings_table() -> str:
    """Markdown: a heading and a table for each file's settings, made from their declarations."""
    parts = []
    for title, struct, prefix in _tables():
        rows = [_row(setting, struct) for setting in settings_of(struct, prefix)]
        parts.append("\n".join([f"## {title}", "", *_HEADER, *rows]))
    return "\n\n".join(parts) + "\n"


def environment_table() -> str:
    """Markdown: a table of the variables that do not belong to one setting."""
    rows = [f"| `{name}` | {meaning} |" for name, meaning in _VARIABLES.items()]
    of_the_server: dict[str, list[str]] = {}
    for name, key, _ in OF_THE_SERVER:
        of_the_server.setdefault(name, []).append(f"`{key}`")
    for name, keys in of_the_server.items():
        rows.append(f"| `{name}` | {', '.join(keys)}{_NOTES.get(name, '')}. |")
    for name, (key, _) in CONTAINER_MAPS.items():
        rows.append(f"| `{name}` | `{key}`, where nothing else sets it{_NOTES.get(name, '')}. |")
    return "\n".join(["| variable | meaning |", "| --- | --- |", *rows]) + "\n"


def without_effect_table() -> str:
    """Markdown: a table of the settings that DJL and the engines of LMI have and that have no effect here."""
    reasons: dict[str, list[str]] = {}
    for keys, prefix in (
        (OPTIONS_WITHOUT_EFFECT, "option."),
        (SERVING_WITHOUT_EFFECT, ""),
        (SERVER_WITHOUT_EFFECT, ""),
    ):
        for key, reason in keys.items():
            if (name := f"`{prefix}{key}`") not in reasons.setdefault(reason, []):
                reasons[reason].append(name)
    for row in filter(None, map(row_of, ENGINES)):
        for key, reason in row.options_without_effect.items():
            reasons.setdefault(f"with option.rolling_batch={row.name}: {reason}", []).append(f"`option.{key}`")
    rows = [f"| {', '.join(names)} | {reason} |" for reason, names in reasons.items()]
    return "\n".join(["| settings | why they have no effect |", "| --- | --- |", *rows]) + "\n"


_HEADER = ("| setting | type | default | environment | meaning |", "| --- | --- | --- | --- | --- |")


def environment_names(setting: Setting, struct: type[msgspec.Struct]) -> tuple[str, ...]:
    """The variables that set `setting`, strongest first."""
    if setting.key.startswith("option."):
        return tuple(
            name for name in (f"OPTION_{setting.key.removeprefix('option.').upper()}", setting.environment) if name
        )
    if struct is ServerConfig:
        return (f"SERVING_{setting.key.upper()}",)
    if setting.key == "engine":
        return ("OPTION_ENGINE",)
    shared = {other.field: other for other in settings_of(ServerConfig)}.get(setting.field)
    return (f"SERVING_{shared.key.upper()}",) if shared else ()


def _row(setting: Setting, struct: type[msgspec.Struct]) -> str:
    aliases = ", ".join(f"`{alias}`" for alias in setting.aliases)
    names = f" (also {aliases})" if aliases else ""
    environment = ", ".join(f"`{name}`" for name in environment_names(setting, struct))
    cells = (f"`{setting.key}`{names}", setting.type_words, shown_default(setting.default), environment, setting.help)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def shown_default(value: object) -> str:
    """A default as text: `true`, `16`; nothing for unset."""
    if value is None or value == "":
        return ""
    return f"`{shown(value)}`"


def shown(value: object) -> str:
    """A value as the user would write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else str(value)
    return "" if value is None else str(value)
