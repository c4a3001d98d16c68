"""The server's own configuration: config.properties, the command line and SERVING_*.

Runs in the front end. Weakest first: built-in, config.properties, command line, environment (as DJL has it).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, field

from ..core.errors import ConfigError
from ..formats.http_rules import TOKEN
from ..ipc.protocol import MAX_FRAME_BYTES
from .binding import bind, did_you_mean, settings_of
from .properties_file import Entry, read_properties
from .settings import DEVICES_EXPECTED, DEVICES_PATTERN, HeaderValue, HttpErrorCode


class Address(msgspec.Struct, frozen=True):
    """Where to listen: host and port, or the path of a Unix socket."""

    host: str = "127.0.0.1"
    port: int = 8080
    unix_path: str = ""

    def __str__(self) -> str:
        if self.unix_path:
            return f"unix:{self.unix_path}"
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read http://host[:port] (port 80 when there is none) or unix:/path.

        Raises:
            ValueError: neither.
        """
        if text.startswith("unix:"):
            path = text.removeprefix("unix:")
            if not path.startswith("/") or not path.strip("/"):
                raise ValueError("expected an absolute path after unix:")
            return cls(host="", port=0, unix_path="/" + path.lstrip("/"))
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            raise ValueError("expected http://host:port with a port from 0 to 65535") from None
        if parts.scheme == "https":
            raise ValueError("expected http://host:port; https is not served, put a TLS proxy in front")
        if parts.scheme != "http" or not parts.hostname or parts.path.strip("/") or parts.query:
            raise ValueError("expected http://host:port or unix:/path")
        try:
            parts.hostname.encode("idna")  # as getaddrinfo does
        except UnicodeError:
            raise ValueError("expected a host, of which no part between dots is empty or too long") from None
        return cls(host=parts.hostname, port=80 if port is None else port)


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of config.properties. Keys that a model has too are the models' defaults.

    Attributes:
        provenance: key -> "config.properties:2", "environment SERVING_BATCH_SIZE", "command line", "default".
        warnings: complete sentences for the start-up log.
    """

    inference_address: Annotated[
        Address, Meta(description="Where inference requests are answered: http://host:port or unix:/path.")
    ] = Address()
    model_store: Annotated[
        str, Meta(description="Directory whose subdirectories are models, or that is itself a model.")
    ] = ""
    load_models: Annotated[
        str, Meta(description="ALL (what is in model_store), NONE, or name:version:engine:devices=url, ...")
    ] = "ALL"
    default_model: Annotated[
        str, Meta(description="Model of the routes that name none; unset: the only one there is.")
    ] = ""
    job_queue_size: Annotated[int, Meta(ge=1, description="The models' default for job_queue_size.")] = 1000
    batch_size: Annotated[int, Meta(ge=1, description="The models' default for batch_size.")] = 1
    max_batch_delay_ms: Annotated[int, Meta(ge=0, description="The models' default for max_batch_delay.")] = field(
        default=100, name="max_batch_delay"
    )
    min_workers: Annotated[int, Meta(ge=1, description="The models' default for minWorkers.")] = 1
    retry_threshold: Annotated[int, Meta(ge=0, description="The models' default for retry_threshold.")] = 0
    load_on_devices: Annotated[
        str,
        Meta(
            pattern=DEVICES_PATTERN,
            description="The models' default for load_on_devices.",
            extra={"expected": DEVICES_EXPECTED},
        ),
    ] = "*"
    max_request_size: Annotated[
        int, Meta(ge=1, le=MAX_FRAME_BYTES, description="Bytes a request's body may have, decompressed.")
    ] = 64 << 20
    max_bodies_size: Annotated[
        int,
        Meta(
            ge=1,
            description="Bytes of bodies that are held together, of requests that no worker has yet; what comes beyond "
            "that is answered as by a full queue.",
        ),
    ] = 1 << 30
    body_timeout_s: Annotated[
        float, Meta(gt=0, description="Seconds that a request's whole body may take to come in.")
    ] = field(default=600.0, name="body_timeout")
    idle_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            description="Seconds that an open connection may wait for its next request, or for its client to take the "
            "rest of an answer.",
        ),
    ] = field(default=900.0, name="idle_timeout")
    drain_timeout_s: Annotated[
        float, Meta(ge=0, description="Seconds that running requests get to finish at shutdown.")
    ] = field(default=30.0, name="drain_timeout")
    wait_model_loading: Annotated[
        bool, Meta(description="Open the port only when every model has loaded or failed.")
    ] = True
    allow_multi_status: Annotated[bool, Meta(description="/ping answers 207 while a model is loading.")] = False
    throttle_error_http_code: Annotated[
        HttpErrorCode, Meta(description="HTTP status of LMI routes when the queue is full.")
    ] = 503
    cors_allowed_origin: Annotated[
        HeaderValue, Meta(description="Access-Control-Allow-Origin; unset: no CORS headers are sent.")
    ] = ""
    cors_allowed_methods: Annotated[HeaderValue, Meta(description="Access-Control-Allow-Methods.")] = ""
    cors_allowed_headers: Annotated[HeaderValue, Meta(description="Access-Control-Allow-Headers.")] = ""
    request_id_header_key: Annotated[
        str,
        Meta(
            pattern=f"^{TOKEN}$",
            description="Header that carries a request's id, in and out.",
            extra={"expected": "a header name"},
        ),
    ] = "x-request-id"
    provenance: dict[str, str] = {}
    warnings: tuple[str, ...] = ()


#: Keys of config.properties, and SERVING_<KEY>, that DJL knows and that have no effect here yet.
NO_EFFECT_SERVER: Final = frozenset(
    """
    bad_request_http_code certificate_file chunked_read_timeout cluster_address error_rate_any error_rate_model
    error_rate_server error_rate_wlm fail_fast features health_check_override keystore keystore_pass keystore_type
    management_address max_idle_time max_workers model_url_pattern netty_client_threads number_of_netty_threads
    plugin_folder private_key_file prometheus reserved_memory_mb server_error_http_code timeout_http_code
    use_native_io wlm_error_http_code
    """.split()
)

_COMMAND_LINE: Final = "command line"
#: The containers' variables for settings of the server; SERVING_<KEY> overrides them.
_ENVIRONMENT_MAPS: Final = {"MAX_CONCURRENT_REQUESTS": "job_queue_size"}
#: Variables that are named like settings of the server and are none; see `cache_directory`.
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
    path = config_file or _default_file(environ)
    entries, warnings = read_properties(path) if path else ({}, [])
    problems: list[str] = []
    _override(entries, overrides, problems)
    known = {setting.key for setting in settings_of(ServerConfig)}
    for name, key in _ENVIRONMENT_MAPS.items():
        if environ.get(name, "").strip():
            entries[key] = Entry(environ[name], f"environment {name}")
    for name, value in sorted(environ.items()):
        key = name.removeprefix("SERVING_").lower()
        if name.startswith("SERVING_") and name not in _NO_SETTINGS and value.strip():
            if key in entries and entries[key].source == _COMMAND_LINE and entries[key].value != value:
                warnings.append(
                    f"environment {name}: {key}={value} counts, not {entries[key].value} of the command line"
                )
            entries[key] = Entry(value, f"environment {name}")
    values = bind(ServerConfig, entries, "", problems, warnings)
    if problems:
        raise ConfigError("\n".join(problems))
    for key, entry in entries.items():
        if key in NO_EFFECT_SERVER:
            warnings.append(f"{entry.source}: {key} is known to DJL and has no effect here yet")
        elif key not in known:
            warnings.append(f"{entry.source}: {key} is not known{did_you_mean(key, known)}")
    provenance = {
        setting.key: entries[setting.key].source if setting.field in values and setting.key in entries else "default"
        for setting in settings_of(ServerConfig)
    }
    return ServerConfig(**values, provenance=provenance, warnings=tuple(warnings))


def _default_file(environ: Mapping[str, str]) -> Path | None:
    home = environ.get("MODEL_SERVER_HOME")
    candidates = [Path(home, "conf", "config.properties"), Path(home, "config.properties")] if home else []
    return next((path for path in candidates if path.is_file()), None)


def _override(entries: dict[str, Entry], overrides: Mapping[str, str], problems: list[str]) -> None:
    """Override the file's entries with the command line's; `host` and `port` replace parts of the file's address."""
    rest = {key: value for key, value in overrides.items() if key not in ("host", "port")}
    entries.update((key, Entry(value, _COMMAND_LINE)) for key, value in rest.items())
    if len(rest) == len(overrides):
        return
    try:
        given = entries.get("inference_address")
        address = Address.parse(given.value.strip()) if given and given.value.strip() else Address()
    except ValueError:
        return  # bind reports it
    host, port = overrides.get("host", address.host or Address().host), overrides.get("port", str(address.port or 8080))
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        problems.append(f"{_COMMAND_LINE}: port={port}: expected an integer from 0 to 65535")
        return
    entries["inference_address"] = Entry(str(Address(host, int(port))), _COMMAND_LINE)
