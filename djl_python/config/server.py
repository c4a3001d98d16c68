"""The server's own configuration: config.properties, the command line and SERVING_*.

Runs in the front end. Weakest first: built-in, config.properties, command line, environment (as DJL has it).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Meta, field

from ..core.errors import ConfigError, ModelNotFoundError
from ..core.faults import Faults
from ..core.names import did_you_mean
from ..formats.http_rules import TOKEN
from ..ipc.protocol import MAX_FRAME_BYTES
from .binding import bind, settings_of
from .environment import traces_requests
from .keys.without_effect import SERVER_WITHOUT_EFFECT
from .properties_file import Entry, read_properties
from .sagemaker.variables import OF_THE_SERVER, PORT, WITHOUT_EFFECT, same
from .settings import DEVICES_EXPECTED, DEVICES_PATTERN, HeaderValue, HttpErrorCode, Positive
from .sources import shown_url

#: In model_url_pattern, where the model's name goes.
MODEL_PLACE: Final = "{model}"
#: Names of models that a request may have loaded: a step of a path, and none that is hidden or leads up.
_LAZY_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


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


class ModelUrls(msgspec.Struct, frozen=True):
    """Where models are that nobody has registered: the value of model_url_pattern.

    With {model} in it, it is the URL of the model that a request names. Else it is a regular expression, as in DJL,
    which the whole URL must match that a request brings.
    """

    pattern: str

    def __str__(self) -> str:
        return self.pattern

    @classmethod
    def parse(cls, text: str) -> ModelUrls:
        """Read either form.

        Raises:
            ValueError: it is neither.
        """
        if MODEL_PLACE not in text:
            try:
                re.compile(text)
            except re.error as exc:
                raise ValueError(
                    f"expected a URL with {MODEL_PLACE} in it, or a regular expression for URLs ({exc})"
                ) from None
        return cls(text)

    def url_of(self, name: str, given: str = "") -> str:
        """The URL of the model of this name. `given` is what the request says of it, where that is asked for.

        Raises:
            ModelNotFoundError: the request may not have that, or does not say enough.
        """
        if not _LAZY_NAME.fullmatch(name):
            raise ModelNotFoundError(
                f"there is no model {name[:200]!r}, and none of that name is loaded on demand: expected at most 128 "
                "letters, digits, _, - and dots, and no dot first"
            )
        if MODEL_PLACE in self.pattern:
            return self.pattern.replace(MODEL_PLACE, name)
        if not given:
            raise ModelNotFoundError(
                f"there is no model {name!r}; one is loaded on demand from a model_url (query parameter or header)"
            )
        steps = unquote(given).replace("\\", "/").split("/")
        if ".." in steps or not given.isprintable() or not re.fullmatch(self.pattern, given):
            raise ModelNotFoundError(f"model_url {shown_url(given)[:200]!r}: model_url_pattern does not permit it")
        return given


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of config.properties. Keys that a model has too are the models' defaults.

    Attributes:
        traces: whether requests are traced (OTEL_* variables).
        provenance: key -> "config.properties:2", "environment SERVING_BATCH_SIZE", "command line", "default".
        warnings: complete sentences for the start-up log.
    """

    inference_address: Annotated[
        Address, Meta(description="Where inference requests are answered: http://host:port or unix:/path.")
    ] = Address()
    management_address: Annotated[
        Address | None,
        Meta(
            description="Where models are managed: http://host:port or unix:/path. The same as inference_address: "
            "there, by every client. Unset: there, by those that management_access says."
        ),
    ] = None
    management_access: Annotated[
        Literal["local", "open"],
        Meta(
            description="Who manages models where management_address is unset: local, clients on this machine; open, "
            "every client."
        ),
    ] = "local"
    console: Annotated[
        bool,
        Meta(
            description="Serve the console at /console and the API reference at /docs; who manages models at an "
            "address does so in the console too, everybody else there sees what /metrics shows."
        ),
    ] = True
    model_url_pattern: Annotated[
        ModelUrls | None,
        Meta(
            description="Where a model is that requests name and that is not registered: a path or URL with {model} in "
            "it, loaded at the first request; without {model}, a regular expression for a request's model_url.",
            extra={"type": "text"},
        ),
    ] = None
    max_lazy_models: Annotated[
        int, Meta(ge=1, description="Models at most that are loaded on demand (model_url_pattern) at a time.")
    ] = 100
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
    max_workers: Annotated[Positive | None, Meta(description="The models' default for maxWorkers.")] = None
    max_idle_time_s: Annotated[float, Meta(gt=0, description="The models' default for max_idle_time.")] = field(
        default=60.0, name="max_idle_time"
    )
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
    memory_cache_capacity: Annotated[
        int, Meta(ge=1, description="Answers to asynchronous requests (x-synchronous: false) that are held at most.")
    ] = 1000
    memory_cache_bytes: Annotated[int, Meta(ge=1, description="Bytes of these answers together.")] = field(
        default=256 << 20, name="memory_cache_size"
    )
    memory_cache_expiration_s: Annotated[
        float, Meta(gt=0, description="Seconds that such an answer is held once it is complete, or was last asked for.")
    ] = field(default=3600.0, name="memory_cache_expiration")
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
    health_check_override: Annotated[
        bool,
        Meta(description="/ping answers 500 also while a model lacks the workers that it had."),
    ] = False
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
    batch_directory: Annotated[
        str,
        Meta(description="Directory of /v1/files and /v1/batches, which any client may use; unset: there are none."),
    ] = ""
    batch_max_files: Annotated[int, Meta(ge=1, description="Files, and batches, that are kept at most.")] = 1000
    batch_max_file_bytes: Annotated[
        int, Meta(ge=1, description="Bytes that an uploaded file may have, decompressed; OpenAI's batches take 200 MB.")
    ] = 200 << 20
    batch_max_bytes: Annotated[int, Meta(ge=1, description="Bytes of kept files at which no further one is taken.")] = (
        16 << 30
    )
    batch_max_requests: Annotated[int, Meta(ge=1, description="Requests that a batch may have.")] = 50_000
    batch_max_running: Annotated[int, Meta(ge=1, description="Batches that run at a time; others wait.")] = 2
    batch_share: Annotated[float, Meta(gt=0, le=1, description="The models' default for batch_share.")] = 0.5
    batch_busy_share: Annotated[float, Meta(ge=0, le=1, description="The models' default for batch_busy_share.")] = (
        0.125
    )
    log_format: Annotated[
        Literal["text", "json"],
        Meta(description="What log lines are: text; or json, an object on each line, of what is printed too."),
    ] = "text"
    traces: bool = False
    provenance: dict[str, str] = {}
    warnings: tuple[str, ...] = ()


_COMMAND_LINE: Final = "command line"
#: The containers' variables for settings of the server; SERVING_<KEY> overrides them.
_ENVIRONMENT_MAPS: Final = (("MAX_CONCURRENT_REQUESTS", "job_queue_size", same), *OF_THE_SERVER)
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
    config, faults = read_server_config(config_file, overrides, environ)
    faults.refuse(ConfigError)
    return config


def read_server_config(
    config_file: Path | None, overrides: Mapping[str, str], environ: Mapping[str, str] = os.environ
) -> tuple[ServerConfig, Faults]:
    """`load_server_config`'s configuration and what is wrong with it: a setting with a wrong value has its default.

    Raises:
        ConfigError: the file is missing or unreadable.
    """
    path = config_file or _default_file(environ)
    entries, warnings = read_properties(path) if path else ({}, [])
    problems: list[str] = []
    _override(entries, overrides, problems)
    for name, key, convert in _ENVIRONMENT_MAPS:
        if value := convert(environ.get(name, "")).strip():
            entries[key] = Entry(value, f"environment {name}")
    if port := environ.get(PORT, "").strip():
        _listen_on(entries, port, f"environment {PORT}", problems)
    for name, value in sorted(environ.items()):
        key = name.removeprefix("SERVING_").lower()
        if name.startswith("SERVING_") and name not in _NO_SETTINGS and value.strip():
            if key in entries and entries[key].source == _COMMAND_LINE and entries[key].value != value:
                warnings.append(
                    f"environment {name}: {key}={value} counts, not {entries[key].value} of the command line"
                )
            entries[key] = Entry(value, f"environment {name}")
    values = bind(ServerConfig, entries, "", problems, warnings)
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
    return ServerConfig(**values, traces=traces, provenance=provenance, warnings=tuple(warnings)), faults


def _remarks_on_keys(entries: Mapping[str, Entry]) -> Iterator[str]:
    """What to say of keys that have no effect, or that nobody knows."""
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


def _override(entries: dict[str, Entry], overrides: Mapping[str, str], problems: list[str]) -> None:
    """Override the file's entries with the command line's; `host` and `port` replace parts of the file's address."""
    rest = {key: value for key, value in overrides.items() if key not in ("host", "port")}
    entries.update((key, Entry(value, _COMMAND_LINE)) for key, value in rest.items())
    if len(rest) < len(overrides):
        _listen_on(entries, overrides.get("port", ""), _COMMAND_LINE, problems, overrides.get("host", ""))


def _listen_on(entries: dict[str, Entry], port: str, source: str, problems: list[str], host: str = "") -> None:
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
    entries["inference_address"] = Entry(str(Address(host, int(port))), source)
