"""The effective configuration with the source of each value: what `djl-serving check` prints and the console shows.

Runs in the front end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from ..core.names import did_you_mean
from .binding import bind, settings_of
from .engines import all_options, own_options
from .environment import environment_entries
from .keys.without_effect import OPTIONS_WITHOUT_EFFECT
from .masking import masked
from .model import ModelConfig
from .settings.options import Options
from .settings.server import ServerConfig
from .sources import shown_url
from .table import shown

_WIDEST_VALUE = 48
_ENGINE = "option.rolling_batch"
_Row = tuple[str, str, str]


def describe(config: ModelConfig, *, defaults: bool = True) -> str:
    """Aligned lines `key  value  source`, grouped; secrets are masked.

    Args:
        defaults: whether settings that have their defaults are shown, not only counted.
    """
    model = [("name", config.name, ""), ("version", config.version, "")]
    model += [("path", config.path, ""), ("url", shown_url(config.url) if config.url != config.path else "", "")]
    model += [("engine", config.engine, ""), ("devices", config.devices, "")]
    settings, extra = shown_settings(config)
    chosen = settings if defaults else [row for row in settings if row[2] != "default"]
    groups: list[tuple[str, list[_Row]]] = [
        ("model", [row for row in model if row[1]]),
        ("settings", chosen),
        ("passed to the handler", extra),
    ]
    rows = [row for _, group in groups for row in group]
    key_width = max(len(key) for key, _, _ in rows)
    value_width = min(max((len(value) for _, value, source in rows if source), default=0), _WIDEST_VALUE)
    lines: list[str] = []
    for title, group in groups:
        if group:
            lines += ["", title]
            lines += [f"  {key:{key_width}}  {value:{value_width}}  {source}".rstrip() for key, value, source in group]
    if hidden := len(settings) - len(chosen):
        others = "other settings have their" if chosen else "settings all have their"
        lines += ["", f"{hidden} {others} defaults (--all shows them)"]
    return "\n".join(lines[1:]) + "\n"


def shown_settings(config: ModelConfig) -> tuple[list[_Row], list[_Row]]:
    """A model's settings, and the keys that are passed to its handler, as rows of key, value and source."""
    settings = list(_settings(config))
    return settings, list(_passed_on(config, {key for key, _, _ in settings}))


def shown_server_settings(config: ServerConfig) -> list[_Row]:
    """The server's settings as rows of key, value and source."""
    return [
        (key, masked(key, shown(getattr(config, setting.field))) or "-", config.provenance.get(key, "default"))
        for setting in settings_of(ServerConfig)
        if (key := setting.key)
    ]


def _settings(config: ModelConfig) -> Iterator[_Row]:
    own = msgspec.convert(config.engine_options, own_options(config.option.rolling_batch))
    for values, prefix in ((config.serving, ""), (config.option, "option."), (own, "option.")):
        for setting in settings_of(type(values), prefix):
            value = masked(setting.key, shown(getattr(values, setting.field)))
            if setting.key == _ENGINE:
                value = _engine_shown(config)
            yield setting.key, value or "-", config.provenance.get(setting.key, "default")


def _engine_shown(config: ModelConfig) -> str:
    """The engine that serves the model, and the one that the setting's source names, where that is another."""
    used, named = config.option.rolling_batch, config.properties.get("rolling_batch", "").strip()
    return used if named in ("", used) else f"{used} (set: {named})"


def _passed_on(config: ModelConfig, known: set[str]) -> Iterator[_Row]:
    """The keys that no setting declares: they reach the handler unchanged."""
    for key, source in config.provenance.items():
        if key not in known:
            value = config.properties.get(key.removeprefix("option."), "")
            yield key, masked(key, value) or "-", source


class Environment(NamedTuple):
    """The settings of the environment: values by variable with secrets masked, faults, and warnings."""

    values: dict[str, str]
    problems: list[str]
    warnings: list[str]


def described_environment(environ: Mapping[str, str] = os.environ) -> Environment:
    """The variables that set every model's or the server's settings; the server's are not checked here."""
    environment = Environment({}, [], [])
    entries = environment_entries(environ)
    known = {setting.key for struct in (Options, *all_options().values()) for setting in settings_of(struct, "option.")}
    known |= {alias for setting in settings_of(Options, "option.") for alias in setting.aliases}
    for key, entry in entries.items():
        name = entry.source.removeprefix("environment ")
        environment.values[name] = masked(key, entry.value)
        option = key.removeprefix("option.")
        if option in OPTIONS_WITHOUT_EFFECT:
            environment.warnings.append(f"{name} has no effect: {OPTIONS_WITHOUT_EFFECT[option]}")
        elif key not in known and key != "engine":
            environment.warnings.append(
                f"{name}: {key} is not known, only handlers may read it{did_you_mean(key, known)}"
            )
    options = Options(**bind(Options, entries, "option.", environment.problems, environment.warnings))
    bind(own_options(options.rolling_batch), entries, "option.", environment.problems, environment.warnings)
    for setting in settings_of(ServerConfig):
        name = f"SERVING_{setting.key.upper()}"
        if environ.get(name, "").strip():
            environment.values[name] = masked(setting.key, environ[name])
    return environment
