"""The effective configuration as text, with the source of each value: what `djl-serving check` prints.

Runs in the front end.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from .binding import settings_of
from .engines import own_options
from .masking import masked
from .model import ModelConfig
from .sources import shown_url
from .table import shown

_WIDEST_VALUE = 48
_Row = tuple[str, str, str]


def describe(config: ModelConfig) -> str:
    """Aligned lines `key  value  source`, grouped; secrets are masked, warnings come last."""
    model = [("name", config.name, ""), ("version", config.version, "")]
    model += [("path", config.path, ""), ("url", shown_url(config.url) if config.url != config.path else "", "")]
    model += [("engine", config.engine, ""), ("devices", config.devices, "")]
    settings = list(_settings(config))
    extra = list(_passed_on(config, {key for key, _, _ in settings}))
    groups: list[tuple[str, list[_Row]]] = [
        ("model", [row for row in model if row[1]]),
        ("settings", settings),
        ("passed to the handler", extra),
    ]
    rows = [row for _, group in groups for row in group]
    key_width = max(len(key) for key, _, _ in rows)
    value_width = min(max(len(value) for _, value, source in rows if source), _WIDEST_VALUE)
    lines: list[str] = []
    for title, group in groups:
        if group:
            lines += ["", title]
            lines += [f"  {key:{key_width}}  {value:{value_width}}  {source}".rstrip() for key, value, source in group]
    if config.warnings:
        lines += ["", "warnings", *(f"  {warning}" for warning in config.warnings)]
    return "\n".join(lines[1:]) + "\n"


def _settings(config: ModelConfig) -> Iterator[_Row]:
    own = msgspec.convert(config.engine_options, own_options(config.option.rolling_batch))
    for values, prefix in ((config.serving, ""), (config.option, "option."), (own, "option.")):
        for setting in settings_of(type(values), prefix):
            value = masked(setting.key, shown(getattr(values, setting.field)))
            yield setting.key, value or "-", config.provenance.get(setting.key, "default")


def _passed_on(config: ModelConfig, known: set[str]) -> Iterator[_Row]:
    """The keys that no setting declares: they reach the handler unchanged."""
    for key, source in config.provenance.items():
        if key not in known:
            value = config.properties.get(key.removeprefix("option."), "")
            yield key, masked(key, value) or "-", source
