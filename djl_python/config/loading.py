"""Makes a ModelConfig of a ModelSpec: reads the model's serving.properties, and merges the sources of settings.

Runs in the front end. Strongest source first: parameters of a registration at run time, the command line's
`name:version:engine:devices=`, then its settings (`--set`, `--dtype`), serving.properties, environment,
config.properties, built-in defaults.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from ..core.errors import ConfigError
from ..core.faults import Faults
from ..core.names import nearest
from .adapters import adapters_of
from .binding import bind, is_utf8, settings_of
from .devices import LOCAL, bounds_on, device_id, devices_here, devices_of, has_gpu
from .engines import (
    ABSENT,
    ABSENT_ENGINES,
    BEST_ON_GPU,
    BUILT_IN,
    ENGINE_OF_DJL,
    ENGINE_OF_HANDLER,
    PYTHON_ENGINES,
    row_of,
)
from .environment import cache_directory, environment_entries, is_here
from .keys.remarks import WITHOUT_EFFECT, Declared, misplaced, remarks
from .model import NOT_OF_CALLS, ModelConfig, script_names
from .properties_file import PropertyEntry, read_properties
from .sagemaker.secure_mode import takes_scripts, violations
from .server_loading import COMMAND_LINE
from .settings.options import Options
from .settings.server import ServerConfig
from .settings.serving import ServingSettings
from .sources import shown_url
from .specs import GGUF_SUFFIX, ModelSpec, reading_models
from .tasks import BUILT_IN_HANDLERS

HUB_SCHEME: Final = "hf://"
#: The placement, and the package that it needs.
RAY: Final = "ray"
#: The source of settings that came with a registration.
REGISTRATION: Final = "registration"
#: LMI's handlers that hand each request to an engine that batches by itself.
ASYNC_HANDLERS: Final = frozenset(
    {"djl_python.lmi_vllm.vllm_async_service", "djl_python.lmi_trtllm.trtllm_async_service"}
)


@dataclass
class _Findings:
    """Problems and warnings found while reading."""

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@reading_models()
def read_model_config(
    spec: ModelSpec, server: ServerConfig, directory: Path | None, environ: Mapping[str, str] = os.environ
) -> tuple[ModelConfig, Faults]:
    """A model's configuration and its faults; a setting with a wrong value has its default.

    Args:
        directory: the model's directory; None for a model of the hub, or one that is not downloaded.

    Raises:
        ConfigError: the model's serving.properties can't be read.
    """
    cache_dir = cache_directory(environ)
    if not is_utf8(f"{spec.name} {spec.version} {spec.url} {directory}"):
        raise ConfigError(f"model {shown_url(spec.url)}: expected a name and a path in UTF-8")
    findings = _Findings()
    sources = _sources(spec, directory, environ, findings)
    own_code = functools.partial(_has_own_code, directory=directory, name=spec.name)
    engine_of_batches = _engine_of_batches(sources, cache_dir, own_code, findings)
    declared = Declared(engine_of_batches)
    entries: dict[str, PropertyEntry] = {}
    for weaker in sources:
        _lay_under(entries, weaker, declared, findings)
    serving = bind(ServingSettings, entries, "", findings.problems, findings.warnings)
    option = bind(Options, entries, "option.", findings.problems, findings.warnings)
    engine_options = bind(declared.engine_options, entries, "option.", findings.problems, findings.warnings)
    provenance = {key: entry.source for key, entry in entries.items()}
    own = set(serving)
    _default_to_server(ServingSettings, "", serving, server, provenance)
    _prefer_own_number(serving, own, provenance)
    _default_to_server(Options, "option.", option, server, provenance)
    for (struct, prefix), values in zip(declared.structs, (serving, option, engine_options), strict=True):
        for setting in settings_of(struct, prefix):
            if setting.field not in values:
                provenance[setting.key] = "default"
    _refuse_other_bytes(entries, declared, findings)
    settings, options = ServingSettings(**serving), Options(**option)
    engine = _engine(settings, options, entries, findings)
    chosen = BUILT_IN if engine_of_batches == "disable" and _batches_itself(options) else engine_of_batches
    options = msgspec.structs.replace(options, rolling_batch=chosen)
    findings.warnings += remarks(
        entries, declared, entry_point=options.entry_point, own_code=own_code(options), directory=directory
    )
    _warn_of_requirements(options, directory, findings)
    adapters, wrong = adapters_of(chosen, engine_options, options.model_id, directory)
    findings.problems += wrong
    if adapters and "enable_lora" not in engine_options:
        engine_options["enable_lora"] = True
        provenance["option.enable_lora"] = "adapters that are there"
    if options.placement == RAY and not is_here(RAY):
        findings.problems.append(
            f"{provenance['option.placement']}: option.placement=ray: Ray is not installed here: "
            "pip install 'djl-serving[ray]' brings it"
        )
    named = spec.devices or settings.load_on_devices
    devices = devices_here(named) if options.placement == LOCAL else named
    if devices != named:
        source = "" if spec.devices else f"{provenance['load_on_devices']}: "
        findings.warnings.append(
            f"{source}load_on_devices={named} has no effect: there is no GPU; one worker on the CPU for each device"
        )
    config = ModelConfig(
        name=spec.name,
        version=spec.version,
        path=str(directory) if directory is not None else "",
        url=spec.url,
        engine=engine,
        devices=devices,
        serving=settings,
        option=options,
        engine_options=engine_options,
        properties=_handler_properties(entries),
        provenance=provenance,
        adapters=adapters,
        runs_adapter_code=takes_scripts(environ),
        cache_dir=cache_dir,
        warnings=tuple(findings.warnings),
    )
    faults = Faults()
    faults.add([*findings.problems, *_wrong_bounds(config)])
    is_known = directory is not None or spec.url.startswith(HUB_SCHEME)
    if is_known and (nothing := nothing_to_serve(config)):
        faults.add([nothing + misplaced(entries, declared, "option.model_id")])
    faults.add(violations(config, [*declared.keys, *declared.of_others, *WITHOUT_EFFECT], environ))
    return config, faults


def _sources(
    spec: ModelSpec,
    directory: Path | None,
    environ: Mapping[str, str],
    findings: _Findings,
) -> list[Mapping[str, PropertyEntry]]:
    """The entries of all sources but config.properties, under the keys that were used; the strongest source first."""
    sources: list[Mapping[str, PropertyEntry]] = []
    if spec.parameters:
        sources.append({key: PropertyEntry(value, REGISTRATION) for key, value in spec.parameters})
    if spec.engine:
        sources.append({"engine": PropertyEntry(spec.engine, f"model {spec.name}")})
    if spec.settings:
        sources.append({key: PropertyEntry(value, COMMAND_LINE) for key, value in spec.settings})
    if directory is not None and (directory / "serving.properties").exists():
        from_file, warnings = read_properties(directory / "serving.properties")
        findings.warnings += warnings
        sources.append(from_file)
    if spec.url.startswith(HUB_SCHEME):
        model_id = spec.url.removeprefix(HUB_SCHEME)
        source = "environment HF_MODEL_ID" if environ.get("HF_MODEL_ID") == model_id else f"model {spec.url}"
        sources.append({"option.model_id": PropertyEntry(model_id, source)})
    return [*sources, environment_entries(environ)]


def _engine_of_batches(
    sources: Sequence[Mapping[str, PropertyEntry]],
    cache_dir: str,
    own_code: Callable[[Options], bool],
    findings: _Findings,
) -> str:
    """The engine that serves the model: the one that `option.rolling_batch` names, if it is installed; or "disable".

    Args:
        own_code: whether the model has code of its own, which may need no engine.
    """
    names = ("rolling_batch", "engine_fallback", "device", "pythonExecutable", "entryPoint", "async_mode", "placement")
    keys = [*(f"option.{name}" for name in names), "engine"]
    entries = {key: source[key] for source in reversed(sources) for key in keys if key in source}
    options = Options(**bind(Options, entries, "option.", [], []))
    unless = ", unless the model's own handler answers" if own_code(options) else ""
    name, named_by = options.rolling_batch, "option.rolling_batch"
    if name == "auto" or _batches_itself(options):
        handlers = ENGINE_OF_HANDLER.get(options.entry_point)
        name, named_by = (handlers, "option.entryPoint") if handlers else (name, named_by)
    djls = ENGINE_OF_DJL.get(entries["engine"].value.strip().lower(), "") if "engine" in entries else ""
    if djls and name == "auto":
        name, named_by = djls, "engine"
    elif djls and name != djls:
        value, source = entries["engine"]
        findings.warnings.append(f"{source}: engine={value.strip()} has no effect: {named_by}={name} counts")
    if name == "disable":
        return name
    if name == "auto":
        return _best_engine(options, cache_dir, unless, findings)
    if name == "builtin":
        return BUILT_IN
    row = row_of(name)
    elsewhere = bool(options.python_executable) or options.placement != LOCAL  # where it may be
    if name not in ABSENT and (row is None or elsewhere or row.runtime(cache_dir) is not None):
        return name
    value, source = entries[named_by]
    message = f"{source}: {named_by}={value.strip()}: this engine is not available here"
    remedy = f"; {row.remedy}" if row is not None else ""
    if options.engine_fallback == "error":
        findings.problems.append(f"{message} (option.engine_fallback=error){remedy}")
    else:
        findings.warnings.append(f"{message}; the built-in engine serves the model{unless}{remedy}")
    return BUILT_IN


def _best_engine(options: Options, cache_dir: str, unless: str, findings: _Findings) -> str:
    """The engine of a model that names none."""
    if options.device == "cpu" or options.python_executable or options.placement != LOCAL or not has_gpu():
        return BUILT_IN
    row = row_of(BEST_ON_GPU)
    assert row is not None
    if row.runtime(cache_dir) is None:
        findings.warnings.append(
            f"on a GPU {row.name} reads long prompts faster than the built-in engine, which serves the model{unless}: "
            f"{row.remedy}"
        )
        return BUILT_IN
    findings.warnings.append(
        f"{row.name} serves the model{unless}, as there is a GPU; with option.rolling_batch=builtin the built-in "
        "engine does"
    )
    return BEST_ON_GPU


def _lay_under(
    entries: dict[str, PropertyEntry], weaker: Mapping[str, PropertyEntry], declared: Declared, findings: _Findings
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


def _prefer_own_number(serving: dict[str, Any], own: Collection[str], provenance: dict[str, str]) -> None:
    """A model's own bound on its workers overrides the server's default of the other bound where the two conflict."""
    least, most = serving.get("min_workers", 1), serving.get("max_workers")
    if most is None or least <= most:
        return
    if "min_workers" not in own and "max_workers" in own:
        serving["min_workers"], provenance["minWorkers"] = most, provenance["maxWorkers"]
    elif "max_workers" not in own and "min_workers" in own:
        serving["max_workers"], provenance["maxWorkers"] = least, provenance["minWorkers"]


def _wrong_bounds(config: ModelConfig) -> Iterator[str]:
    """A problem for each device of which the largest number of workers is below the least."""
    for device in dict.fromkeys(devices_of(config)):
        least, most = bounds_on(config, device)
        if most < least:
            kind = "cpu" if device_id(device, gpu=has_gpu()) == "-1" else "gpu"
            named = []
            for end in ("min", "max"):
                special = getattr(config.serving, f"{kind}_{end}_workers") is not None
                named.append(f"{kind}.{end}Workers" if special else f"{end}Workers")
            smallest, largest = named
            yield (
                f"{config.provenance[largest]}: {largest}={most}: expected at least {smallest}, which is {least} "
                f"({config.provenance[smallest]})"
            )


def _refuse_other_bytes(entries: Mapping[str, PropertyEntry], declared: Declared, findings: _Findings) -> None:
    """Refuse undeclared keys that are not in UTF-8. Values of declared keys are checked when they are converted."""
    for key, (value, source) in entries.items():
        if key not in declared.keys and not is_utf8(f"{key} {value}"):
            findings.problems.append(f"{source}: {key}: expected UTF-8 text")


def _engine(
    settings: ServingSettings, options: Options, entries: Mapping[str, PropertyEntry], findings: _Findings
) -> str:
    """DJL's engine of the model. It is always Python: DJL's other engines do not exist here."""
    name = settings.engine or "Python"
    if name.lower() in ENGINE_OF_DJL:  # `_engine_of_batches` has warned about it
        return "Python"
    if _is_absent(settings):
        where = f"{entries['engine'].source}: engine={name}"
        if options.engine_fallback == "error":
            findings.problems.append(f"{where}: this engine is not available here (option.engine_fallback=error)")
        else:
            findings.warnings.append(
                f"{where}: this engine is not available here; the model is served with engine=Python"
            )
    elif name.lower() not in PYTHON_ENGINES:
        near = nearest(name, ("Python", *ENGINE_OF_DJL, *ABSENT_ENGINES))
        hint = f"; did you mean {near}?" if near and near != "Python" else ""
        findings.problems.append(f"{entries['engine'].source}: engine={name}: expected Python{hint}")
    return "Python"


def _batches_itself(options: Options) -> bool:
    """Whether one of LMI's handlers batches continuously, even if `rolling_batch` says otherwise."""
    return options.rolling_batch == "disable" and (options.async_mode or options.entry_point in ASYNC_HANDLERS)


def _has_own_code(options: Options, directory: Path | None, name: str) -> bool:
    """Whether the model's settings reach code of its own: a handler, formatters or an engine."""
    if options.entry_point not in ("", *BUILT_IN_HANDLERS) or ":" in options.rolling_batch:
        return True
    return directory is not None and any((directory / file).is_file() for file in script_names(name))


def _warn_of_requirements(options: Options, directory: Path | None, findings: _Findings) -> None:
    """Warn about requirements that change other models' packages, or have no effect."""
    if directory is None:
        return
    if not options.enable_venv and (directory / "requirements.txt").is_file():
        whose = options.python_executable or "the server"
        findings.warnings.append(
            f"{directory}/requirements.txt changes the packages of {whose} (option.enable_venv=false)"
        )
    if (directory / "requirements").is_dir() and not (directory / "requirements.txt").is_file():
        findings.warnings.append(f"{directory}/requirements has no effect: there is no requirements.txt beside it")


def nothing_to_serve(config: ModelConfig) -> str:
    """The fault of a model without a handler, an engine or a checkpoint; "" if there is something to serve."""
    names = (*script_names(config.name), "config.json")
    if config.option.model_id or config.option.entry_point:
        return ""
    if config.path and any(Path(config.path, name).is_file() for name in names):
        return ""
    if config.path and any(Path(config.path).glob(f"*{GGUF_SUFFIX}")):
        return ""
    engine = config.serving.engine
    java = f"; models of DJL's {engine} are not served here" if _is_absent(config.serving) else ""
    return (
        f"{config.path or config.url or 'the model'}: nothing to serve: there is no {' and no '.join(names[1:])}, and "
        f"neither option.model_id nor option.entryPoint is set{java}"
    )


def _is_absent(settings: ServingSettings) -> bool:
    return settings.engine.lower() in ABSENT_ENGINES


def _handler_properties(entries: Mapping[str, PropertyEntry]) -> dict[str, str]:
    """Settings as a DJL handler sees them; where option.x and x are both set, option.x wins."""
    top = {key: entry.value for key, entry in entries.items() if not key.startswith("option.")}
    options = {key.removeprefix("option."): entry.value for key, entry in entries.items() if key.startswith("option.")}
    return {key: value for key, value in top.items() if key not in NOT_OF_CALLS} | options
