"""From a ModelSpec to a ModelConfig: find the directory, read serving.properties, merge the sources of settings.

Runs in the front end. Strongest source first: the command line's `name:version:engine:devices=`, serving.properties,
environment, config.properties, built-in defaults.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from ..core.errors import ConfigError
from .binding import bind, did_you_mean, is_utf8, settings_of
from .engines import ABSENT, ABSENT_ENGINES, BUILT_IN, PYTHON_ENGINES, all_options, own_options
from .environment import cache_directory, environment_entries
from .model import ModelConfig
from .properties_file import Entry, read_properties
from .server import ServerConfig
from .settings import Options, ServingSettings
from .sources import fetch_model, shown_url
from .specs import ModelSpec, model_directory, reading_models
from .without_effect import OPTIONS_WITHOUT_EFFECT, SERVING_WITHOUT_EFFECT

HUB_SCHEME: Final = "hf://"
#: LMI's handlers that hand each request to an engine that batches by itself.
ASYNC_HANDLERS: Final = frozenset(
    {"djl_python.lmi_vllm.vllm_async_service", "djl_python.lmi_trtllm.trtllm_async_service"}
)
#: Not passed to handlers: in an Input's properties, batch_size is the size of the batch that the Input holds.
_NOT_FOR_HANDLERS: Final = frozenset({"batch_size", "max_dynamic_batch_size"})


@dataclass
class _Findings:
    """Problems and warnings found while reading."""

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class _Declared:
    """The settings that are declared for a model, its engine's own options included.

    Attributes:
        aliases: other names of keys -> the keys.
        keys: every key and every alias.
        of_others: keys that only other engines take -> the names of these engines.
    """

    def __init__(self, rolling_batch: str) -> None:
        self.engine_options = own_options(rolling_batch)
        self.structs = ((ServingSettings, ""), (Options, "option."), (self.engine_options, "option."))
        settings = [setting for struct, prefix in self.structs for setting in settings_of(struct, prefix)]
        self.aliases = {alias: setting.key for setting in settings for alias in setting.aliases}
        self.keys = frozenset(setting.key for setting in settings) | self.aliases.keys()
        self.of_others: dict[str, list[str]] = {}
        for engine, struct in all_options().items():
            for setting in settings_of(struct, "option."):
                for key in {setting.key, *setting.aliases} - self.keys:
                    self.of_others.setdefault(key, []).append(engine)


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
    sources = _sources(spec, directory, environ, findings)
    declared = _Declared(_rolling_batch(sources))
    entries: dict[str, Entry] = {}
    for weaker in sources:
        _lay_under(entries, weaker, declared, findings)
    serving = bind(ServingSettings, entries, "", findings.problems, findings.warnings)
    option = bind(Options, entries, "option.", findings.problems, findings.warnings)
    engine_options = bind(declared.engine_options, entries, "option.", findings.problems, findings.warnings)
    provenance = {key: entry.source for key, entry in entries.items()}
    _default_to_server(ServingSettings, "", serving, server, provenance)
    _default_to_server(Options, "option.", option, server, provenance)
    for (struct, prefix), values in zip(declared.structs, (serving, option, engine_options), strict=True):
        for setting in settings_of(struct, prefix):
            if setting.field not in values:
                provenance[setting.key] = "default"
    _remark_on_keys(entries, declared, findings)
    settings, options = ServingSettings(**serving), Options(**option)
    engine = _engine(settings, options, entries, findings)
    options = _batching_itself(_with_engine_that_is_there(options, entries, findings))
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
        engine_options=engine_options,
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


def _sources(
    spec: ModelSpec,
    directory: Path | None,
    environ: Mapping[str, str],
    findings: _Findings,
) -> list[Mapping[str, Entry]]:
    """The entries of all sources but config.properties, under the keys that were used; the strongest source first."""
    sources: list[Mapping[str, Entry]] = []
    if spec.engine:
        sources.append({"engine": Entry(spec.engine, f"model {spec.name}")})
    if directory is not None and (directory / "serving.properties").exists():
        from_file, warnings = read_properties(directory / "serving.properties")
        findings.warnings += warnings
        sources.append(from_file)
    if spec.url.startswith(HUB_SCHEME):
        model_id = spec.url.removeprefix(HUB_SCHEME)
        source = "environment HF_MODEL_ID" if environ.get("HF_MODEL_ID") == model_id else f"model {spec.url}"
        sources.append({"option.model_id": Entry(model_id, source)})
    return [*sources, environment_entries(environ)]


def _rolling_batch(sources: Sequence[Mapping[str, Entry]]) -> str:
    """`option.rolling_batch`, which says whose options the others are."""
    key = "option.rolling_batch"
    entry = next((source[key] for source in sources if key in source), None)
    found = bind(Options, {} if entry is None else {key: entry}, "option.", [], [])
    name: str = found.get("rolling_batch", Options().rolling_batch)
    return BUILT_IN if name in ABSENT else name


def _lay_under(
    entries: dict[str, Entry], weaker: Mapping[str, Entry], declared: _Declared, findings: _Findings
) -> None:
    """Add the entries of `weaker` that `entries` lacks, under the keys' main names."""
    for key, entry in weaker.items():
        main = declared.aliases.get(key, key)
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


def _remark_on_keys(entries: Mapping[str, Entry], declared: _Declared, findings: _Findings) -> None:
    """Warn about keys that are unknown, empty, another engine's, or known to DJL only; refuse those not in UTF-8."""
    for key, (value, source) in entries.items():
        option = key.removeprefix("option.")
        if key in declared.keys:
            if not value.strip():
                findings.warnings.append(f"{source}: {key} is empty: the default counts")
        elif not is_utf8(f"{key} {value}"):
            findings.problems.append(f"{source}: {key}: expected UTF-8 text")
        elif key in declared.of_others:
            engines = " and ".join(declared.of_others[key])
            findings.warnings.append(f"{source}: {key} has no effect: only option.rolling_batch={engines} takes it")
        elif reason := _reason_of_no_effect(key):
            findings.warnings.append(f"{source}: {key} has no effect: {reason}")
        elif option != key and option not in _NOT_FOR_HANDLERS:
            hint = did_you_mean(key, declared.keys)
            findings.warnings.append(f"{source}: {key} is not known: passed to the handler{hint}")
        else:
            findings.warnings.append(f"{source}: {key} is not known{did_you_mean(key, declared.keys)}")


def _reason_of_no_effect(key: str) -> str:
    """Why a key that DJL or LMI knows has no effect here; "" for others."""
    option = key.removeprefix("option.")
    return (SERVING_WITHOUT_EFFECT if option == key else OPTIONS_WITHOUT_EFFECT).get(option, "")


def _engine(settings: ServingSettings, options: Options, entries: Mapping[str, Entry], findings: _Findings) -> str:
    """DJL's engine of the model, which is Python whatever it says: its other engines are not there."""
    name = settings.engine or "Python"
    if name.lower() in ABSENT_ENGINES:
        where = f"{entries['engine'].source}: engine={name}"
        if options.engine_fallback == "error":
            findings.problems.append(f"{where}: there is no such engine here (option.engine_fallback=error)")
        else:
            findings.warnings.append(f"{where}: there is no such engine here: the model is served with engine=Python")
    elif name.lower() not in PYTHON_ENGINES:
        hint = did_you_mean(name, ("Python", *ABSENT_ENGINES))
        findings.problems.append(f"{entries['engine'].source}: engine={name}: expected Python{hint}")
    return "Python"


def _with_engine_that_is_there(options: Options, entries: Mapping[str, Entry], findings: _Findings) -> Options:
    """The options, with the built-in engine where `option.rolling_batch` names one that is not there."""
    name = options.rolling_batch
    if name not in ABSENT:
        return options
    where = f"{entries['option.rolling_batch'].source}: option.rolling_batch={name}"
    if options.engine_fallback == "error":
        findings.problems.append(f"{where}: there is no such engine here (option.engine_fallback=error)")
    else:
        findings.warnings.append(f"{where}: there is no such engine here: the built-in one serves the model")
    return msgspec.structs.replace(options, rolling_batch=BUILT_IN)


def _batching_itself(options: Options) -> Options:
    """The options, with continuous batching for LMI's async handlers, which have it whatever `rolling_batch` says."""
    if options.rolling_batch == "disable" and (options.async_mode or options.entry_point in ASYNC_HANDLERS):
        return msgspec.structs.replace(options, rolling_batch=BUILT_IN)
    return options


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
