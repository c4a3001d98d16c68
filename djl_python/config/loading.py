"""From a ModelSpec to a ModelConfig: find the directory, read serving.properties, merge the sources of settings.

Runs in the front end. Strongest source first: the command line's `name:version:engine:devices=`, serving.properties,
environment, config.properties, built-in defaults.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..core.errors import ConfigError
from .binding import bind, did_you_mean, is_utf8, settings_of
from .environment import cache_directory, environment_entries
from .model import ModelConfig
from .properties_file import Entry, read_properties
from .server import ServerConfig
from .settings import NO_EFFECT, NO_EFFECT_SERVING, Options, ServingSettings
from .sources import fetch_model, shown_url
from .specs import ModelSpec, model_directory, reading_models

HUB_SCHEME: Final = "hf://"
#: Engine names that stand for this server's; LMI's Python models with several ranks had MPI.
_ENGINES: Final = {"python": "Python", "mpi": "Python"}

_SETTINGS: Final = (*settings_of(ServingSettings), *settings_of(Options, "option."))
_ALIASES: Final = {alias: setting.key for setting in _SETTINGS for alias in setting.aliases}
#: Not passed to handlers: in an Input's properties, batch_size is the size of the batch that the Input holds.
_NOT_FOR_HANDLERS: Final = frozenset({"batch_size", "max_dynamic_batch_size"})
_KNOWN: Final = frozenset(setting.key for setting in _SETTINGS) | _ALIASES.keys()


@dataclass
class _Findings:
    """Problems and warnings found while reading."""

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@reading_models()
def load_model_config(spec: ModelSpec, server: ServerConfig, environ: Mapping[str, str] = os.environ) -> ModelConfig:
    """Read a model's configuration; download and unpack it first where `spec.url` says so.

    Raises:
        ConfigError: the model is not available, or its configuration is wrong: a line for each problem.
    """
    cache_dir = cache_directory(environ)
    directory = _directory(spec.url, cache_dir)
    if not is_utf8(f"{spec.name} {spec.version} {spec.url} {directory}"):
        raise ConfigError(f"model {shown_url(spec.url)}: expected a name and a path in UTF-8")
    findings = _Findings()
    entries = _gather(spec, directory, environ, findings)
    serving = bind(ServingSettings, entries, "", findings.problems)
    option = bind(Options, entries, "option.", findings.problems)
    provenance = {key: entry.source for key, entry in entries.items()}
    _default_to_server(ServingSettings, "", serving, server, provenance)
    _default_to_server(Options, "option.", option, server, provenance)
    for struct, prefix, values in ((ServingSettings, "", serving), (Options, "option.", option)):
        for setting in settings_of(struct, prefix):
            if setting.field not in values:
                provenance[setting.key] = "default"
    _remark_on_keys(entries, findings)
    settings, options = ServingSettings(**serving), Options(**option)
    engine = _engine(settings, entries, findings)
    _check_directory(options, spec, directory, findings)
    if findings.problems:
        raise ConfigError("\n".join(findings.problems))
    return ModelConfig(
        name=spec.name,
        version=spec.version,
        path=str(directory) if directory is not None else "",
        url=spec.url,
        engine=engine,
        devices=spec.devices or settings.load_on_devices,
        serving=settings,
        option=options,
        properties=_handler_properties(entries),
        provenance=provenance,
        cache_dir=cache_dir,
        warnings=tuple(findings.warnings),
    )


def _directory(url: str, cache_dir: str) -> Path | None:
    """The local directory of a model; None for a hub id, whose files the handler fetches."""
    if url.startswith(HUB_SCHEME):
        return None
    return model_directory(fetch_model(url, Path(cache_dir) if cache_dir else None))


def _gather(
    spec: ModelSpec,
    directory: Path | None,
    environ: Mapping[str, str],
    findings: _Findings,
) -> dict[str, Entry]:
    """The entries of all sources but config.properties, under the keys' main names; the strongest source wins."""
    entries: dict[str, Entry] = {}
    if spec.engine:
        _lay_under(entries, {"engine": Entry(spec.engine, f"model {spec.name}")}, findings)
    if directory is not None and (directory / "serving.properties").exists():
        from_file, warnings = read_properties(directory / "serving.properties")
        findings.warnings += warnings
        _lay_under(entries, from_file, findings)
    if spec.url.startswith(HUB_SCHEME):
        model_id = spec.url.removeprefix(HUB_SCHEME)
        source = "environment HF_MODEL_ID" if environ.get("HF_MODEL_ID") == model_id else f"model {spec.url}"
        _lay_under(entries, {"option.model_id": Entry(model_id, source)}, findings)
    _lay_under(entries, environment_entries(environ), findings)
    return entries


def _lay_under(entries: dict[str, Entry], weaker: Mapping[str, Entry], findings: _Findings) -> None:
    """Add the entries of `weaker` that `entries` lacks, under the keys' main names."""
    for key, entry in weaker.items():
        main = _ALIASES.get(key, key)
        if main != key and main in weaker:
            findings.warnings.append(f"{entry.source}: {key} is another name of {main}, which is set too: ignored")
        else:
            entries.setdefault(main, entry)


def _default_to_server(
    struct: type[ServingSettings | Options],
    prefix: str,
    values: dict[str, Any],
    server: ServerConfig,
    provenance: dict[str, str],
) -> None:
    """Set what the model leaves unset to the values of config.properties and SERVING_*."""
    server_keys = {setting.field: setting for setting in settings_of(ServerConfig)}
    for setting in settings_of(struct, prefix):
        shared = server_keys.get(setting.field)
        if shared is None or setting.field in values:
            continue
        source = server.provenance.get(shared.key, "default")
        value = getattr(server, setting.field)
        if source != "default" or value != shared.default:
            values[setting.field] = value
            provenance[setting.key] = source if source != "default" else "server configuration"


def _remark_on_keys(entries: Mapping[str, Entry], findings: _Findings) -> None:
    """Warn about keys that are unknown, empty, or known to DJL only; refuse unknown ones that are not UTF-8."""
    for key, (value, source) in entries.items():
        option = key.removeprefix("option.")
        if key in _KNOWN:
            if not value.strip():
                findings.warnings.append(f"{source}: {key} is empty: the default counts")
        elif not is_utf8(f"{key} {value}"):
            findings.problems.append(f"{source}: {key}: expected UTF-8 text")
        elif key in NO_EFFECT_SERVING or (option != key and option in NO_EFFECT):
            findings.warnings.append(f"{source}: {key} is known to DJL and has no effect here yet")
        elif option != key and option not in _NOT_FOR_HANDLERS:
            hint = did_you_mean(key, _KNOWN)
            findings.warnings.append(f"{source}: {key} is not known: passed to the handler{hint}")
        else:
            findings.warnings.append(f"{source}: {key} is not known{did_you_mean(key, _KNOWN)}")


def _engine(settings: ServingSettings, entries: Mapping[str, Entry], findings: _Findings) -> str:
    name = settings.engine or "Python"
    engine = _ENGINES.get(name.lower(), "")
    if not engine:
        findings.problems.append(f"{entries['engine'].source}: engine={name}: expected Python")
    return engine


def _check_directory(options: Options, spec: ModelSpec, directory: Path | None, findings: _Findings) -> None:
    """Warn about requirements that may not be installed, and refuse a directory with nothing to serve."""
    if directory is None:
        return
    requirements = directory / "requirements.txt"
    if requirements.is_file():
        install = shlex.join(
            [options.python_executable or sys.executable, *"-m pip install -r".split(), str(requirements)]
        )
        findings.warnings.append(f"{requirements} is not installed by the server; if it has not been yet: {install}")
    if options.model_id or options.entry_point:
        return
    handlers = ("model.py", f"{spec.name}.py", "config.json", "MAR-INF")
    if not any((directory / name).exists() for name in handlers):
        findings.problems.append(
            f"{directory}: nothing to serve: there is no model.py and no config.json, and neither option.model_id nor "
            "option.entryPoint is set"
        )


def _handler_properties(entries: Mapping[str, Entry]) -> dict[str, str]:
    """Settings as a DJL handler sees them; where option.x and x are both set, option.x wins."""
    top = {key: entry.value for key, entry in entries.items() if not key.startswith("option.")}
    options = {key.removeprefix("option."): entry.value for key, entry in entries.items() if key.startswith("option.")}
    return {key: value for key, value in (top | options).items() if key not in _NOT_FOR_HANDLERS}
