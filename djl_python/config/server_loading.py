"""Read the server's own configuration: config.properties, the command line and SERVING_*.

Runs in the front end. Weakest first: built-in, config.properties, command line, environment (as DJL has it).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from ..core.access.api_key import given_keys
from ..core.errors import ConfigError
from ..core.faults import Faults
from ..core.names import did_you_mean
from .binding import bind, settings_of
from .environment import server_api_keys, traces_requests
from .keys.without_effect import SERVER_WITHOUT_EFFECT
from .listening.address import Address
from .listening.https import https_faults, https_remarks, with_schemes
from .properties_file import PropertyEntry, read_properties
from .sagemaker.variables import OF_THE_SERVER, PORT, WITHOUT_EFFECT, same
from .settings.server import ServerConfig

#: The source of what the command line sets.
COMMAND_LINE: Final = "command line"
#: The containers' variables for settings of the server; SERVING_<KEY> overrides them.
ENVIRONMENT_MAPS: Final = (("MAX_CONCURRENT_REQUESTS", "job_queue_size", same), *OF_THE_SERVER)
#: Variables that look like settings of the server but are not; see `cache_directory`.
_NO_SETTINGS: Final = frozenset({"SERVING_DOWNLOAD_DIR"})


def load_server_config(
    config_file: Path | None, overrides: Mapping[str, str], environ: Mapping[str, str] = os.environ
) -> ServerConfig:
    """Read the server's configuration.

    Args:
        config_file: what `-f` says; None looks in $MODEL_SERVER_HOME/conf, then $MODEL_SERVER_HOME.
        overrides: the command line's values for keys of config.properties, and for `host` and `port`, which change
            only that part of inference_address.

    Raises:
        ConfigError: the file is missing or unreadable, or values are wrong: a line for each.
    """
    config, faults = read_server_config(config_file, overrides, environ)
    faults.refuse(ConfigError)
    return config


def read_server_config(
    config_file: Path | None,
    overrides: Mapping[str, str],
    environ: Mapping[str, str] = os.environ,
    api_keys: Sequence[str] = (),
) -> tuple[ServerConfig, Faults]:
    """The server's configuration and its faults; a setting with a wrong value has its default.

    Args:
        api_keys: the keys of the command line, which replace those of DJL_SERVING_API_KEY.

    Raises:
        ConfigError: the file is missing or unreadable.
    """
    path = config_file or _default_file(environ)
    entries, warnings = read_properties(path) if path else ({}, [])
    problems: list[str] = []
    # On the command line, a certificate is for the address that a file has.
    stated = "inference_address" in entries and "certificate_file" not in overrides
    _override(entries, overrides, problems)
    for name, key, convert in ENVIRONMENT_MAPS:
        if value := convert(environ.get(name, "")).strip():
            entries[key] = PropertyEntry(value, f"environment {name}")
    if port := environ.get(PORT, "").strip():
        _listen_on(entries, port, f"environment {PORT}", problems)
    for name, value in sorted(environ.items()):
        key = name.removeprefix("SERVING_").lower()
        if name.startswith("SERVING_") and name not in _NO_SETTINGS and value.strip():
            if key in entries and entries[key].source == COMMAND_LINE and entries[key].value != value:
                warnings.append(
                    f"environment {name}: {key}={value} counts, not {entries[key].value} of the command line"
                )
            entries[key] = PropertyEntry(value, f"environment {name}")
    values = bind(ServerConfig, entries, "", problems, warnings)
    stated = stated or bool(environ.get("SERVING_INFERENCE_ADDRESS", "").strip())
    values = with_schemes(values, stated=stated)
    problems += https_faults(values)
    warnings += https_remarks(values)
    faults = Faults()
    faults.add(problems)
    for name, reason in WITHOUT_EFFECT.items():
        if environ.get(name, "").strip():
            warnings.append(f"environment {name} has no effect: {reason}")
    warnings += _remarks_on_keys(entries)
    if values.get("management_address") is not None and "management_access" in values:
        warnings.append("management_access has no effect: management_address says who manages, by who reaches it")
    provenance = {
        setting.key: entries[setting.key].source if setting.field in values and setting.key in entries else "default"
        for setting in settings_of(ServerConfig)
    }
    traces = traces_requests(environ, warnings)
    keys = given_keys(api_keys or server_api_keys(environ))
    config = ServerConfig(**values, given_keys=keys, traces=traces, provenance=provenance, warnings=tuple(warnings))
    return config, faults


def _remarks_on_keys(entries: Mapping[str, PropertyEntry]) -> Iterator[str]:
    """Warnings about keys without effect and unknown keys."""
    known = {setting.key for setting in settings_of(ServerConfig)}
    for key, entry in entries.items():
        if key in SERVER_WITHOUT_EFFECT:
            yield f"{entry.source}: {key} has no effect: {SERVER_WITHOUT_EFFECT[key]}"
        elif key not in known:
            yield f"{entry.source}: {key} is not known{did_you_mean(key, known)}"


def _default_file(environ: Mapping[str, str]) -> Path | None:
    home = environ.get("MODEL_SERVER_HOME")
    candidates = [Path(home, "conf", "config.properties"), Path(home, "config.properties")] if home else []
    return next((path for path in candidates if path.is_file()), None)


def _override(entries: dict[str, PropertyEntry], overrides: Mapping[str, str], problems: list[str]) -> None:
    """Override the file's entries with the command line's; `host` and `port` replace parts of the file's address."""
    rest = {key: value for key, value in overrides.items() if key not in ("host", "port")}
    entries.update((key, PropertyEntry(value, COMMAND_LINE)) for key, value in rest.items())
    if len(rest) < len(overrides):
        _listen_on(entries, overrides.get("port", ""), COMMAND_LINE, problems, overrides.get("host", ""))


def _listen_on(entries: dict[str, PropertyEntry], port: str, source: str, problems: list[str], host: str = "") -> None:
    """Replace the port of inference_address, if `port` says one, and its host, if `host` does."""
    try:
        given = entries.get("inference_address")
        address = Address.parse(given.value.strip()) if given and given.value.strip() else Address()
    except ValueError:
        return  # bind reports it
    host, port = host or address.host or Address().host, port or str(address.port or 8080)
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        problems.append(f"{source}: port={port}: expected an integer from 0 to 65535")
        return
    entries["inference_address"] = PropertyEntry(str(Address(host, int(port), secure=address.secure)), source)
