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
            description="Where inference requests are answered: http://host:port, https://host:port or unix:/path. "
            "Unset: https where certificate_file is set."
        ),
    ] = Address()
    management_address: Annotated[
        Address | None,
        Meta(
            description="Address for managing models, in the form of inference_address. If it is the same "
            "address, every client manages models there. Unset: inference_address, for the clients "
            "that management_access allows."
        ),
    ] = None
    management_access: Annotated[
        Literal["local", "open"],
        Meta(
            description="Who manages models where management_address is unset: local, clients on this machine; open, "
            "every client."
        ),
    ] = "local"
    certificate_file: Annotated[
        str,
        Meta(
            description="PEM file of the certificate for https, with the intermediate ones behind it. New connections "
            "get a renewed one."
        ),
    ] = ""
    private_key_file: Annotated[
        str,
        Meta(description="PEM file of the certificate's private key; unset: it is in certificate_file."),
    ] = ""
    client_ca_file: Annotated[
        str,
        Meta(
            description="PEM file of the authorities that sign clients' certificates; unset: clients need none over "
            "https."
        ),
    ] = ""
    client_certificates: Annotated[
        Literal["required", "optional"],
        Meta(
            description="With client_ca_file: required, every client needs a certificate; optional, one that is sent "
            "must be valid."
        ),
    ] = "required"
    worker_address: Annotated[
        str,
        Meta(
            pattern=r"^(\[[\da-fA-F:.]+\]|[\w.-]*)(:\d{1,5})?$",
            description="Where workers on other machines (option.placement=ray) connect to the server: host, host:port "
            "or :port. Unset: this machine's address in the cluster, and any free port.",
            extra={"expected": "host, host:port or :port"},
        ),
    ] = ""
    worker_certificate_file: Annotated[
        str,
        Meta(
            description="PEM file of the certificate for the connections of these workers, which trust only "
            "this certificate. Unset: the connections are not encrypted."
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
            "`--api-key` or `DJL_SERVING_API_KEY`, requests need a key, and one with the scope `manage` manages models "
            "from anywhere."
        ),
    ] = ""
    metrics_access: Annotated[
        Literal["open", "key"],
        Meta(
            description="Who reads /metrics where there are API keys: open, everyone; key, clients with a key for them."
        ),
    ] = "open"
    requests_per_minute: Annotated[
        Positive | None,
        Meta(
            description="Inference requests a minute of each tenant: an API key, whose line may say another number, "
            "or a name in tenant_header; without either, of each client address. More are answered with 429."
        ),
    ] = None
    tokens_per_minute: Annotated[
        Positive | None, Meta(description="Tokens a minute, of prompts and answers; as requests_per_minute.")
    ] = None
    tokens_in_flight: Annotated[
        Positive | None,
        Meta(
            description="Tokens, of prompts and answers, of requests that wait or run at a time; as "
            "requests_per_minute."
        ),
    ] = None
    tenant_header: Annotated[
        str,
        Meta(
            description="A header that names the tenant whose share and limits a request counts towards, such as "
            "x-tenant: only where a gateway sets it, whose address trusted_proxies may say. Unset: the API key's name "
            "is the tenant."
        ),
    ] = ""
    tenant_requests_per_minute: Annotated[
        TenantLimits,
        Meta(
            description="Single tenants' requests_per_minute, as NAME=NUMBER or NAME=none, with commas between them.",
            extra={"type": "text"},
        ),
    ] = TenantLimits()
    tenant_tokens_per_minute: Annotated[
        TenantLimits,
        Meta(description="Single tenants' tokens_per_minute, in the same form.", extra={"type": "text"}),
    ] = TenantLimits()
    tenant_tokens_in_flight: Annotated[
        TenantLimits,
        Meta(description="Single tenants' tokens_in_flight, in the same form.", extra={"type": "text"}),
    ] = TenantLimits()
    tenant_weights: Annotated[
        TenantWeights,
        Meta(
            description="Tenants' shares of a busy model, as NAME=WEIGHT with commas between them; all others have 1.",
            extra={"type": "text"},
        ),
    ] = TenantWeights()
    trusted_proxies: Annotated[
        Networks,
        Meta(
            description="Addresses or networks (10.0.0.0/8, ...), or unix, of proxies whose X-Forwarded-For says which "
            "client asks, and where there are any, whose tenant_header alone is believed.",
            extra={"type": "text"},
        ),
    ] = Networks()
    console: Annotated[
        bool,
        Meta(
            description="Serve the console at /console and the API reference at /docs. Clients that may manage "
            "models at an address can do so in the console; others see what /metrics shows."
        ),
    ] = True
    model_url_pattern: Annotated[
        ModelUrls | None,
        Meta(
            description="Path or URL, with {model} in it, of models that requests name and that are not "
            "registered: each is loaded at its first request. Without {model}, a regular "
            "expression for a request's model_url.",
            extra={"type": "text"},
        ),
    ] = None
    max_lazy_models: Annotated[
        int, Meta(ge=1, description="Models loaded on demand (model_url_pattern) at a time, at most.")
    ] = 100
    load_on_request: Annotated[
        bool, Meta(description="Load the models that the server starts with at their first request, not at start.")
    ] = False
    memory_budget: Annotated[
        Positive | None,
        Meta(
            description="Bytes of memory that the workers of all models may have together: a load that needs "
            "more first unloads the least recently used models. Unset: no limit."
        ),
    ] = None
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
        int, Meta(ge=1, le=MAX_FRAME_BYTES, description="Bytes a request's body may have, decompressed.")
    ] = 64 << 20
    max_bodies_size: Annotated[
        int,
        Meta(
            ge=1,
            description="Bytes of the bodies of all requests that wait for a worker; requests beyond that are "
            "refused as by a full queue.",
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
    max_connections: Annotated[
        Positive | None,
        Meta(
            description="Connections at most. Beyond them, the one that has waited longest for a request is closed, "
            "and 503 is answered where none waits. Unset: what the limit on open files leaves, less a reserve."
        ),
    ] = None
    max_connections_per_address: Annotated[
        Positive | None,
        Meta(
            description="Connections at most of an IP address, or of a /64 of IPv6, that is not this machine's; more "
            "are answered with 503. Unset: any number."
        ),
    ] = None
    header_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            description="Seconds that a request's path and headers may take to come in, for the first of a connection "
            "with its TLS handshake.",
        ),
    ] = field(default=20.0, name="header_timeout")
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
    drain_delay_s: Annotated[
        float,
        Meta(
            ge=0,
            description="Seconds after SIGTERM in which new requests are still answered, with 503: load balancers "
            "notice meanwhile.",
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
            description="Names under which clients may address the server, separated by commas: models.example.com, "
            "*.example.com for all below, * for any. Beside them localhost, *.internal and IP addresses. Unset: "
            "these at loopback addresses, any name at others.",
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
        HeaderValue, Meta(description="Access-Control-Allow-Methods; unset: those of the path, when a page asks.")
    ] = ""
    cors_allowed_headers: Annotated[
        HeaderValue, Meta(description="Access-Control-Allow-Headers; unset: those that a page asks for.")
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
        Meta(
            description="Directory of /v1/files and /v1/batches, which every client that may use models can "
            "use; unset: the server does not have these routes."
        ),
    ] = ""
    batch_max_files: Annotated[int, Meta(ge=1, description="Files, and batches, that are kept at most.")] = 1000
    batch_max_file_bytes: Annotated[
        int, Meta(ge=1, description="Bytes that an uploaded file may have, decompressed; OpenAI's batches take 200 MB.")
    ] = 200 << 20
    batch_max_bytes: Annotated[
        int, Meta(ge=1, description="Bytes of all kept files; uploads beyond that are refused.")
    ] = 16 << 30
    batch_max_requests: Annotated[int, Meta(ge=1, description="Requests that a batch may have.")] = 50_000
    batch_max_running: Annotated[int, Meta(ge=1, description="Batches that run at a time; others wait.")] = 2
    batch_share: Annotated[float, Meta(gt=0, le=1, description="The models' default for batch_share.")] = 0.5
    batch_busy_share: Annotated[float, Meta(ge=0, le=1, description="The models' default for batch_busy_share.")] = (
        0.125
    )
    responses_directory: Annotated[
        str, Meta(description="Directory of the responses (/v1/responses) that are kept; unset: they are in memory.")
    ] = ""
    responses_max: Annotated[
        int, Meta(ge=0, description="Responses that are kept at most, the least recently used go first; 0: none are.")
    ] = 10_000
    responses_max_bytes: Annotated[
        int, Meta(ge=1, description="Bytes of these responses and their input together.")
    ] = 128 << 20
    responses_expiration_s: Annotated[
        float, Meta(gt=0, description="Seconds that a response is kept; OpenAI keeps one for 30 days.")
    ] = field(default=30 * 24 * 3600.0, name="responses_expiration")
    log_format: Annotated[
        Literal["text", "json"],
        Meta(description="Format of log lines: text, or json (an object on each line, printed text included)."),
    ] = "text"
    given_keys: tuple[ApiKey, ...] = ()
    traces: bool = False
    provenance: dict[str, str] = {}
    warnings: tuple[str, ...] = ()
