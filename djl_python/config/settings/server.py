"""The keys of config.properties, which are the server's. In the front end; `config.server_loading` reads them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

from ...core.access.api_key import ApiKey
from ...core.access.tenant_limits import TenantLimits
from ...core.turns.precedence import TenantWeights
from ...formats.http_rules import TOKEN
from ...ipc.framing import MAX_FRAME_BYTES
from ..listening.address import Address
from ..listening.names import HOSTS_EXPECTED, HOSTS_PATTERN, ORIGINS_EXPECTED, ORIGINS_PATTERN
from ..listening.networks import Networks
from ..sources.model_urls import ModelUrls
from .values import DEVICES_EXPECTED, DEVICES_PATTERN, HeaderValue, HttpErrorCode, Positive


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of config.properties. Keys that a model has too are the models' defaults.

    Attributes:
        given_keys: API keys of the command line and of DJL_SERVING_API_KEY.
        traces: whether requests are traced (OTEL_* variables).
        provenance: key -> "config.properties:2", "environment SERVING_BATCH_SIZE", "command line", "default".
        warnings: complete sentences for the start-up log.
    """

    inference_address: Annotated[
        Address,
        Meta(
            description="The address for inference: http://host:port, https://host:port or unix:/path. "
            "Unset: https where certificate_file is set."
        ),
    ] = Address()
    management_address: Annotated[
        Address | None,
        Meta(
            description="The address for management, in the form of inference_address. The same address: every client "
            "there manages models. Unset: the same address, for the clients that management_access names."
        ),
    ] = None
    management_access: Annotated[
        Literal["local", "open"],
        Meta(
            description="The clients that manage models if management_address is unset: local, those on this machine; "
            "open, all."
        ),
    ] = "local"
    certificate_file: Annotated[
        str,
        Meta(
            description="PEM file of the certificate for https, followed by intermediate ones. A renewed file is read "
            "again for new connections."
        ),
    ] = ""
    private_key_file: Annotated[
        str,
        Meta(description="PEM file of the certificate's private key; unset: it is in certificate_file."),
    ] = ""
    client_ca_file: Annotated[
        str,
        Meta(description="PEM file of the authorities that sign clients' certificates; unset: clients need none."),
    ] = ""
    client_certificates: Annotated[
        Literal["required", "optional"],
        Meta(description="With client_ca_file: required, clients need a certificate; optional, they may have one."),
    ] = "required"
    worker_address: Annotated[
        str,
        Meta(
            pattern=r"^(\[[\da-fA-F:.]+\]|[\w.-]*)(:\d{1,5})?$",
            description="The server's address for workers on other machines (option.placement=ray): host, host:port "
            "or :port. Unset: this machine's address in the cluster, and any free port.",
            extra={"expected": "host, host:port or :port"},
        ),
    ] = ""
    worker_certificate_file: Annotated[
        str,
        Meta(
            description="PEM file of the certificate for the connections of these workers, which accept no other "
            "certificate. Unset: their connections are not encrypted."
        ),
    ] = ""
    worker_private_key_file: Annotated[
        str,
        Meta(description="PEM file of its private key; unset: it is in worker_certificate_file."),
    ] = ""
    api_keys: Annotated[
        str,
        Meta(
            description="File of API keys, as hashes (`djl-serving keys`), read again when it changes. With it, "
            "`--api-key` or `DJL_SERVING_API_KEY`, requests need a key; a key with the scope `manage` manages models "
            "from any address."
        ),
    ] = ""
    metrics_access: Annotated[
        Literal["open", "key"],
        Meta(description="With API keys: open, /metrics needs no key; key, it needs one with the scope `metrics`."),
    ] = "open"
    requests_per_minute: Annotated[
        Positive | None,
        Meta(
            description="Inference requests a minute for each tenant: an API key's name (the key's line may have "
            "another limit), or tenant_header's value; without either, for each client address. Others get 429."
        ),
    ] = None
    tokens_per_minute: Annotated[
        Positive | None, Meta(description="Tokens of prompts and answers a minute, for whom requests_per_minute is.")
    ] = None
    tokens_in_flight: Annotated[
        Positive | None,
        Meta(
            description="Tokens of prompts and answers of requests that wait or run, for whom requests_per_minute is."
        ),
    ] = None
    tenant_header: Annotated[
        str,
        Meta(
            description="The header with the name of a request's tenant, such as x-tenant, for its share and limits. "
            "Set it only behind a gateway that writes the header, and name the gateway in trusted_proxies. Unset: the "
            "tenant is the API key's name."
        ),
    ] = ""
    tenant_requests_per_minute: Annotated[
        TenantLimits,
        Meta(
            description="requests_per_minute of single tenants: NAME=NUMBER or NAME=none, separated by commas.",
            extra={"type": "text"},
        ),
    ] = TenantLimits()
    tenant_tokens_per_minute: Annotated[
        TenantLimits,
        Meta(description="tokens_per_minute of single tenants, in the same form.", extra={"type": "text"}),
    ] = TenantLimits()
    tenant_tokens_in_flight: Annotated[
        TenantLimits,
        Meta(description="tokens_in_flight of single tenants, in the same form.", extra={"type": "text"}),
    ] = TenantLimits()
    tenant_weights: Annotated[
        TenantWeights,
        Meta(
            description="Tenants' shares of a busy model: NAME=WEIGHT, separated by commas; the default is 1.",
            extra={"type": "text"},
        ),
    ] = TenantWeights()
    trusted_proxies: Annotated[
        Networks,
        Meta(
            description="Addresses or networks (10.0.0.0/8, ...), or unix, of proxies. Their X-Forwarded-For names the "
            "client's address. If this is set, tenant_header counts from these proxies alone.",
            extra={"type": "text"},
        ),
    ] = Networks()
    console: Annotated[
        bool,
        Meta(
            description="Serve the console at /console and the API reference at /docs. Clients that may manage models "
            "do so in the console too; others see there what /metrics shows."
        ),
    ] = True
    model_url_pattern: Annotated[
        ModelUrls | None,
        Meta(
            description="The source of a model that a request names and that is not registered: a path or URL with "
            "{model}, loaded at the first request; without {model}, a regular expression for a request's model_url.",
            extra={"type": "text"},
        ),
    ] = None
    max_lazy_models: Annotated[
        int, Meta(ge=1, description="Limit on models that are loaded on demand (model_url_pattern).")
    ] = 100
    load_on_request: Annotated[
        bool, Meta(description="Start a model's workers at its first request instead of at the server's start.")
    ] = False
    memory_budget: Annotated[
        Positive | None,
        Meta(
            description="Bytes of memory for the workers of all models together. Before a load that exceeds it, the "
            "model whose last request is longest ago is unloaded. Unset: no limit."
        ),
    ] = None
    model_store: Annotated[str, Meta(description="Directory of model directories, or one model directory.")] = ""
    load_models: Annotated[
        str, Meta(description="ALL (the models in model_store), NONE, or name:version:engine:devices=url, ...")
    ] = "ALL"
    default_model: Annotated[str, Meta(description="Model of requests that name none; unset: the only model.")] = ""
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
    heartbeat_timeout_s: Annotated[float, Meta(gt=0, description="The models' default for heartbeat_timeout.")] = field(
        default=5.0, name="heartbeat_timeout"
    )
    load_on_devices: Annotated[
        str,
        Meta(
            pattern=DEVICES_PATTERN,
            description="The models' default for load_on_devices.",
            extra={"expected": DEVICES_EXPECTED},
        ),
    ] = "*"
    max_request_size: Annotated[
        int, Meta(ge=1, le=MAX_FRAME_BYTES, description="Largest body of a request, in bytes after decompression.")
    ] = 64 << 20
    max_bodies_size: Annotated[
        int,
        Meta(
            ge=1,
            description="Bytes of the bodies of all requests that wait for a worker. Requests beyond it are refused as "
            "by a full queue.",
        ),
    ] = 1 << 30
    memory_cache_capacity: Annotated[
        int, Meta(ge=1, description="Limit on stored answers to asynchronous requests (x-synchronous: false).")
    ] = 1000
    memory_cache_bytes: Annotated[int, Meta(ge=1, description="Bytes of these answers together.")] = field(
        default=256 << 20, name="memory_cache_size"
    )
    memory_cache_expiration_s: Annotated[
        float, Meta(gt=0, description="Seconds that such an answer is kept after it is complete, or was last fetched.")
    ] = field(default=3600.0, name="memory_cache_expiration")
    max_connections: Annotated[
        Positive | None,
        Meta(
            description="Limit on connections. A further one replaces the connection that has been idle for longest; "
            "if none is idle, it gets 503. Unset: the limit on open files, less a reserve."
        ),
    ] = None
    max_connections_per_address: Annotated[
        Positive | None,
        Meta(
            description="Limit on connections from one IP address, or one /64 of IPv6, other than this machine's; "
            "further ones get 503. Unset: no limit."
        ),
    ] = None
    header_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            description="Seconds until a request's path and headers have to be complete; for the first request of a "
            "connection, with its TLS handshake.",
        ),
    ] = field(default=20.0, name="header_timeout")
    body_timeout_s: Annotated[float, Meta(gt=0, description="Seconds until a request's body has to be complete.")] = (
        field(default=600.0, name="body_timeout")
    )
    idle_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            description="Seconds until a connection is closed that waits for its next request, or for its client to "
            "read the rest of an answer.",
        ),
    ] = field(default=900.0, name="idle_timeout")
    drain_timeout_s: Annotated[float, Meta(ge=0, description="Seconds for running requests to finish at shutdown.")] = (
        field(default=30.0, name="drain_timeout")
    )
    drain_delay_s: Annotated[
        float,
        Meta(
            ge=0,
            description="Seconds after SIGTERM in which new requests get 503, so that load balancers notice.",
        ),
    ] = field(default=5.0, name="drain_delay")
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
    allowed_hosts: Annotated[
        str,
        Meta(
            pattern=HOSTS_PATTERN,
            description="Host names that requests may have, separated by commas: models.example.com, *.example.com for "
            "all below it, * for any. localhost, *.internal and IP addresses are always allowed. Unset: no others at "
            "loopback addresses, any name at other addresses.",
            extra={"expected": HOSTS_EXPECTED},
        ),
    ] = ""
    cors_allowed_origin: Annotated[
        str,
        Meta(
            pattern=ORIGINS_PATTERN,
            description="Origins whose pages may use the server, separated by commas: https://app.example.com; * for "
            "any, but not to manage models. Unset: the server's own, at loopback addresses.",
            extra={"expected": ORIGINS_EXPECTED},
        ),
    ] = ""
    cors_allowed_methods: Annotated[
        HeaderValue, Meta(description="Access-Control-Allow-Methods; unset: the methods of the path.")
    ] = ""
    cors_allowed_headers: Annotated[
        HeaderValue, Meta(description="Access-Control-Allow-Headers; unset: the headers that a page asks for.")
    ] = ""
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
        Meta(description="Directory of /v1/files and /v1/batches; unset: the server has neither."),
    ] = ""
    batch_max_files: Annotated[
        int,
        Meta(
            ge=1,
            description="Limit on files, and on batches. An API key may have as many as are still free: half of them "
            "if it is alone.",
        ),
    ] = 1000
    batch_max_file_bytes: Annotated[
        int,
        Meta(ge=1, description="Largest uploaded file, in bytes after decompression; OpenAI's batches take 200 MB."),
    ] = 200 << 20
    batch_max_bytes: Annotated[
        int, Meta(ge=1, description="Bytes of all files together; then uploads are refused.")
    ] = 16 << 30
    batch_max_requests: Annotated[int, Meta(ge=1, description="Limit on requests of one batch.")] = 50_000
    batch_max_running: Annotated[
        int,
        Meta(
            ge=1,
            description="Batches that run at a time; others wait. At most half of them, rounded up, are one API key's.",
        ),
    ] = 2
    batch_share: Annotated[float, Meta(gt=0, le=1, description="The models' default for batch_share.")] = 0.5
    batch_busy_share: Annotated[float, Meta(ge=0, le=1, description="The models' default for batch_busy_share.")] = (
        0.125
    )
    responses_directory: Annotated[
        str, Meta(description="Directory of stored responses (/v1/responses); unset: memory.")
    ] = ""
    responses_max: Annotated[
        int,
        Meta(ge=0, description="Limit on stored responses; the least recently used are dropped. 0: none are stored."),
    ] = 10_000
    responses_max_bytes: Annotated[
        int, Meta(ge=1, description="Bytes of these responses and their input together.")
    ] = 128 << 20
    responses_expiration_s: Annotated[
        float, Meta(gt=0, description="Seconds that a response is stored; OpenAI stores one for 30 days.")
    ] = field(default=30 * 24 * 3600.0, name="responses_expiration")
    log_format: Annotated[
        Literal["text", "json"],
        Meta(description="Form of the log: text; or json, an object on each line, for printed lines too."),
    ] = "text"
    given_keys: tuple[ApiKey, ...] = ()
    traces: bool = False
    provenance: dict[str, str] = {}
    warnings: tuple[str, ...] = ()
