"""The table of the server's metrics: a metric that is not here does not exist.

Read in the front end, and by what writes the documents.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

PREFIX: Final = "djl_"

_MODEL: Final = ("model", "version")
_WORKER: Final = (*_MODEL, "worker")
#: Fields of `EngineInfo` that distinguish engines; the labels of `engine_info`.
ENGINE_LABELS: Final = ("runner", "dtype", "quantize", "device")
_REQUEST_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_FIRST_TOKEN_S: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_STEP_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 5)
_QUEUE_S: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60)
_TOKENS: Final = (1, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 131072)
_BATCH: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class MetricKind(enum.Enum):
    """Prometheus' metric types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Spec:
    """One metric. `name` is without the prefix, and without `_total` for counters, as in `Report`.

    `reported`: whether workers may report it. `report_label`: value of the last label for what they report, if any.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = _MODEL
    buckets: tuple[float, ...] = ()
    reported: bool = True
    report_label: str = ""

    @property
    def full_name(self) -> str:
        """The name in /metrics."""
        return f"{PREFIX}{self.name}{'_total' if self.kind is MetricKind.COUNTER else ''}"


def _server(name: str, kind: MetricKind, text: str, *labels: str, buckets: tuple[float, ...] = ()) -> Spec:
    """A metric that only the front end sets."""
    return Spec(name, kind, text, (*_MODEL, *labels), buckets, reported=False)


def _batches(name: str, text: str, *labels: str) -> Spec:
    """A gauge of the server's batches, which belong to no model."""
    return Spec(name, MetricKind.GAUGE, text, labels, reported=False)


def _worker(name: str, text: str) -> Spec:
    """A gauge of one worker."""
    return Spec(name, MetricKind.GAUGE, text, _WORKER)


_C, _G, _H = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM

SPECS: Final = (
    _server("requests", _C, "Requests answered, by HTTP status.", "dialect", "code"),
    _server(
        "request_duration_seconds", _H, "From a request's last byte to its answer's.", "dialect", buckets=_REQUEST_S
    ),
    Spec("key_requests", _C, "Requests of each API key, by HTTP status.", ("key", "code"), reported=False),
    Spec("key_tokens", _C, "Tokens of each API key's requests: prompt, generated.", ("key", "kind"), reported=False),
    Spec(
        "rate_limited_requests",
        _C,
        "Requests that a limit of their tenant refused, by the limit (tenant: API keys' names and those that settings "
        "name; all others are other).",
        ("tenant", "limit"),
        reported=False,
    ),
    Spec(
        "tenant_tokens_in_flight",
        _G,
        "Tokens of requests in flight of tenants whose tokens are limited; requests count as many as are expected.",
        ("tenant",),
        reported=False,
    ),
    _server("queued_requests", _G, "Requests waiting in the front end for a worker."),
    _server("in_flight_requests", _G, "Requests that are with a worker."),
    _server(
        "routed_requests",
        _C,
        "Requests that went to the worker that knows most of their prompt (hit), to another since that one was busy "
        "(busy), or whose prompt no worker knows (miss).",
        "outcome",
    ),
    _server("workers", _G, "Worker processes, by state.", "state"),
    _server("model_loaded", _G, "1 while the model has workers; 0 while it is unloaded until a request names it."),
    _server("model_loads", _C, "Loads of unloaded models, by outcome: loaded, failed.", "outcome"),
    _server("model_unloads", _C, "Unloadings of the model, by reason: idle, memory, request.", "reason"),
    _server("worker_restarts", _C, "Workers started again after one ended by itself."),
    _server("worker_node", _G, "The node that a worker on another machine runs on; always 1.", "worker", "node"),
    _server("rerun_requests", _C, "Requests sent to another worker because their worker's node was lost."),
    Spec(
        "engine_info",
        _G,
        "What runs the model, in labels (refused: whether native kernels could and do not); always 1.",
        (*_WORKER, *ENGINE_LABELS, "refused"),
        reported=False,
    ),
    _worker("running_requests", "Requests in the batch."),
    _worker("waiting_requests", "Requests waiting in a worker for a place in the batch."),
    _worker("kv_cache_blocks_used", "Blocks of the KV cache in use."),
    _worker("kv_cache_blocks_total", "Blocks of the KV cache."),
    _worker("kv_cache_usage_ratio", "Share of the KV cache in use, 0 to 1."),
    Spec("time_to_first_token_seconds", _H, "From arrival in the worker to the first token.", buckets=_FIRST_TOKEN_S),
    Spec("inter_token_latency_seconds", _H, "Between two tokens of one request.", buckets=_STEP_S),
    Spec(
        "queue_seconds",
        _H,
        "Waiting: for a worker (stage server), then for a place in its batch (stage worker).",
        (*_MODEL, "stage"),
        _QUEUE_S,
        report_label="worker",
    ),
    Spec("request_queue_seconds", _H, "A sequence's whole waiting, in both stages.", buckets=_QUEUE_S),
    Spec("request_validation_seconds", _H, "Parsing and tokenizing a request.", buckets=_QUEUE_S),
    Spec("request_inference_seconds", _H, "From a sequence's first step to its last token.", buckets=_REQUEST_S),
    Spec("request_time_per_token_seconds", _H, "A sequence's inference time, divided by its tokens.", buckets=_STEP_S),
    Spec("request_prompt_tokens", _H, "Tokens of a prompt.", buckets=_TOKENS),
    Spec("request_generated_tokens", _H, "Tokens generated for a sequence.", buckets=_TOKENS),
    Spec("request_max_new_tokens", _H, "Tokens that a sequence might have had.", buckets=_TOKENS),
    Spec("engine_step_seconds", _H, "One step of the engine.", buckets=_STEP_S),
    Spec("batch_size", _H, "Sequences in one step, or requests in one dynamic batch.", buckets=_BATCH),
    Spec("prompt_tokens", _C, "Tokens of prompts."),
    Spec("cached_prompt_tokens", _C, "Of these, tokens that the engine found in its prefix cache."),
    Spec("generated_tokens", _C, "Tokens generated."),
    Spec("preemptions", _C, "Sequences sent back to wait because the KV cache was full."),
    Spec("draft_tokens", _C, "Draft tokens that the model verified (speculative decoding)."),
    Spec("accepted_draft_tokens", _C, "Draft tokens that became part of the text."),
    Spec(
        "aborted_requests",
        _C,
        "Requests that ended before their answer was complete.",
        (*_MODEL, "reason"),
        report_label="engine_failed",
    ),
    _server("batch_requests", _C, "Requests of batches (/v1/batches) that were answered, by status.", "code"),
    _server("batch_in_flight_requests", _G, "Requests of batches that are with a worker."),
    _batches("batches", "Batches that are kept, by status.", "status"),
    _batches("batch_oldest_seconds", "Age of the oldest batch that has not ended; 0: all have."),
    _batches("batch_bytes_used", "Bytes of the files that are kept, and of those that arrive."),
    _batches("batch_bytes_limit", "Bytes of files at which no further one is taken (batch_max_bytes)."),
)
SPEC_BY_NAME: Final = {spec.name: spec for spec in SPECS}
