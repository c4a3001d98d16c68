"""Traces of requests with OpenTelemetry: one span for each request that a model answers, also of those in batches.

Runs in the front end's event loop; the exporter has a thread of its own. What the worker knows of a request comes in
`Trace` messages. Names follow OpenTelemetry's semantic conventions for HTTP servers (stable) and for generative AI (in
development, as of 1.44); what begins with `djl.` is this project's own. No prompt and no answer is in a span.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Mapping
from typing import Final

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode

from .. import __version__
from ..config import ModelConfig
from ..core.call_trace import AttributeValue
from ..core.errors import ServingError
from ..ipc.protocol import Trace
from .spans import Batched, RequestHead, Span, Spans

log = logging.getLogger(__name__)

#: How long a server that ends waits until the collector has taken the last spans.
FLUSH_TIMEOUT_S: Final = 5.0
_PROVIDER: Final = "djl-serving"
_OPERATION: Final = "gen_ai.operation.name"


class RequestSpan(Span):
    """A span of OpenTelemetry's. `recorded`: whether it is sampled.

    `call_headers` has `traceparent`, `tracestate` and what else OTEL_PROPAGATORS names; `answer_headers` has
    `traceresponse` (an editor's draft of W3C's Trace Context).
    """

    def __init__(self, span: trace.Span, context: Context, status: str = "http.response.status_code") -> None:
        self._span = span
        self._status = status
        self._model = ""
        self._failed = False
        span_context = span.get_span_context()
        trace_id = trace.format_trace_id(span_context.trace_id)
        self.log_extra = {"trace_id": trace_id}
        self.recorded = span.is_recording()
        passed_on: dict[str, str] = {}
        propagate.inject(passed_on, trace.set_span_in_context(span, context))
        self.call_headers = passed_on
        span_id = trace.format_span_id(span_context.span_id)
        self.answer_headers = {"traceresponse": f"00-{trace_id}-{span_id}-{span_context.trace_flags:02x}"}

    def admitted(self, config: ModelConfig) -> None:
        self._model = config.name
        self._span.set_attributes({"gen_ai.provider.name": _PROVIDER, "gen_ai.request.model": config.name})
        if config.version:
            self._span.set_attribute("djl.model.version", config.version)
        self._span.add_event("queue")

    def dispatched(self) -> None:
        self._span.add_event("dispatch")

    def noted(self, notes: Trace) -> None:
        for name, at_ns in notes.events:
            self._span.add_event(name, timestamp=at_ns)
        self._note(notes.attributes)
        if _OPERATION in notes.attributes:
            self._span.update_name(f"{notes.attributes[_OPERATION]} {self._model}")

    def failed(self, error: ServingError) -> None:
        self._note({"error.type": error.kind})

    def ended(self, status: int, abandoned: str = "") -> None:
        self._span.set_attribute(self._status, status)
        if abandoned:
            self._span.set_attribute("djl.abandoned", abandoned)
        if status >= 500 or (self._failed and status < 400):  # an error that the client made is none of a server's span
            self._span.set_status(StatusCode.ERROR)
        self._span.end()

    def _note(self, attributes: Mapping[str, AttributeValue]) -> None:
        self._failed = self._failed or "error.type" in attributes
        self._span.set_attributes(attributes)


class Tracing(Spans):
    """Sends spans to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names, in batches, from a thread."""

    def __init__(self) -> None:
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer(__package__, __version__)

    def begin(self, head: RequestHead, route: str, request_id: str, received_s: float) -> RequestSpan:
        context = propagate.extract(head.headers)
        span = self._tracer.start_span(
            f"{head.method} {route}",
            context,
            SpanKind.SERVER,
            {
                "http.request.method": head.method,
                "http.route": route,
                "url.path": head.path,
                "url.scheme": "http",
                "djl.request.id": request_id,
            },
            start_time=time.time_ns() - int((time.monotonic() - received_s) * 1e9),
        )
        return RequestSpan(span, context)

    def batch_created(self, headers: Mapping[str, str], batch_id: str) -> Mapping[str, str]:
        context = propagate.extract(headers)
        span = self._tracer.start_span("create batch", context, SpanKind.PRODUCER, {"djl.batch.id": batch_id})
        span.end()
        created: dict[str, str] = {}
        propagate.inject(created, trace.set_span_in_context(span, context))
        return created

    def begin_batched(self, request: Batched) -> RequestSpan:
        """A trace of its own: one of all requests together would have thousands of spans, over hours."""
        created = trace.get_current_span(propagate.extract(request.created)).get_span_context()
        span = self._tracer.start_span(
            f"batch {request.url}",
            Context(),
            SpanKind.CONSUMER,
            {
                "djl.batch.id": request.batch_id,
                "djl.batch.custom_id": request.custom_id,
                "djl.batch.url": request.url,
                "djl.request.id": request.request_id,
            },
            [trace.Link(created)] if created.is_valid else None,
        )
        return RequestSpan(span, Context(), "djl.batch.status_code")

    async def close(self) -> None:
        """Send what is left, for `FLUSH_TIMEOUT_S` at most."""
        flush = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        flush.start()
        await asyncio.to_thread(flush.join, FLUSH_TIMEOUT_S)
        if flush.is_alive():
            log.warning("the collector of traces did not take the last spans within %g s", FLUSH_TIMEOUT_S)


def _resource() -> Resource:
    """The server, as OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES name it, or as djl-serving."""
    resource = Resource.create()
    ours = {SERVICE_VERSION: __version__}
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        ours[SERVICE_NAME] = "djl-serving"
    return Resource(ours).merge(resource) if SERVICE_NAME not in ours else resource.merge(Resource(ours))
