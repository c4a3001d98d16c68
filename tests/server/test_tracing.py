"""Traces and log lines of one server, whose collector is an HTTP server that reads OTLP as the protocol defines it."""

from __future__ import annotations

import gzip
import http.server
import json
import queue
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from djl_python.testing import FAKE_ENGINE, RunningServer, running_server, write_byte_tokenizer

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
CONTEXT = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=opaque"}
#: FAKE_ENGINE fails at this byte.
FAILING = "!"
HANDLER = """\
import logging

from djl_python import Output


def handle(inputs):
    if inputs.is_empty():
        return None
    logging.getLogger("mine").warning("called")
    print("printed")
    if inputs.trace:
        inputs.trace.note({"my.key": 1})
    if inputs.get_as_string() == "fail":
        raise ValueError("it fails")
    return Output().add_as_json({name: inputs.get_property(name) for name in ("traceparent", "tracestate")})
"""


class Collector:
    """Keeps the spans that it is sent."""

    def __init__(self) -> None:
        self.spans: queue.SimpleQueue[Span] = queue.SimpleQueue()
        self.resources: list[dict[str, Any]] = []
        spans, resources = self.spans, self.resources

        class Request(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path == "/v1/traces"
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    resources.append(attributes(resource.resource))
                    for scope in resource.scope_spans:
                        for span in scope.spans:
                            spans.put(span)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Request)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def span(self) -> Span:
        return self.spans.get(timeout=30)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def attributes(holder: Any) -> dict[str, Any]:
    """The attributes of a span or a resource."""

    def plain(value: AnyValue) -> Any:
        kind = value.WhichOneof("value")
        if kind == "array_value":
            return [plain(one) for one in value.array_value.values]
        return getattr(value, str(kind))

    return {one.key: plain(one.value) for one in holder.attributes}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    text, own = tmp_path_factory.mktemp("text"), tmp_path_factory.mktemp("own")
    write_byte_tokenizer(text)
    (text / "serving.properties").write_text(
        f"option.model_id={text}\noption.rolling_batch={FAKE_ENGINE}\noption.fake_step_ms=5\n"
        f"option.fake_failing_token={ord(FAILING)}\noption.entryPoint=djl_python.huggingface\n"
    )
    (own / "model.py").write_text(HANDLER)
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "OTEL_SERVICE_NAME": "llms",
        "SERVING_DEFAULT_MODEL": "text",
        "SERVING_BATCH_DIRECTORY": str(tmp_path_factory.mktemp("batches")),
    }
    arguments = ("-m", f"text={text}", "-m", f"own={own}", "--log-format", "json")
    with running_server(*arguments, environment=environment) as running:
        yield running


def lines(server: RunningServer, request_id: str) -> list[dict[str, Any]]:
    """The log's lines about a request."""
    records = [json.loads(line) for line in server.output().splitlines()]
    return [line for line in records if line.get("request_id") == request_id]


def complete(server: RunningServer, prompt: str, request_id: str, **body: Any) -> httpx.Response:
    return httpx.post(
        f"{server.url}/v1/completions",
        json={"model": "text", "prompt": prompt, "max_tokens": 8, **body},
        headers={**CONTEXT, "x-request-id": request_id},
    )


def test_a_request_is_a_span_below_its_clients(server: RunningServer, collector: Collector) -> None:
    answer = complete(server, "hello", "whole", n=2, temperature=0.5, seed=1)
    assert answer.status_code == 200
    span = collector.span()
    assert (span.trace_id.hex(), span.parent_span_id.hex(), span.trace_state) == (TRACE, PARENT, "vendor=opaque")
    assert span.kind == Span.SPAN_KIND_SERVER and span.name == "text_completion text"
    assert answer.headers["traceresponse"] == f"00-{TRACE}-{span.span_id.hex()}-01"
    values = attributes(span)
    usage = answer.json()["usage"]
    assert (
        values.items()
        >= {
            "http.request.method": "POST",
            "http.route": "/v1/completions",
            "http.response.status_code": 200,
            "djl.request.id": "whole",
            "gen_ai.request.model": "text",
            "gen_ai.request.max_tokens": 8,
            "gen_ai.request.choice.count": 2,
            "gen_ai.request.temperature": 0.5,
            "gen_ai.request.stream": False,
            "gen_ai.usage.input_tokens": usage["prompt_tokens"],
            "gen_ai.usage.output_tokens": usage["completion_tokens"],
        }.items()
    )
    assert len(values["gen_ai.response.finish_reasons"]) == 2
    assert [event.name for event in span.events] == ["queue", "dispatch", "prefill", "decode"]
    times = [event.time_unix_nano for event in span.events]
    assert [span.start_time_unix_nano, *times, span.end_time_unix_nano] == sorted(
        [span.start_time_unix_nano, *times, span.end_time_unix_nano]
    )
    assert span.status.code == Status.STATUS_CODE_UNSET
    assert "hello" not in str(span)
    assert collector.resources[-1]["service.name"] == "llms"


def test_a_client_that_leaves_has_a_span(server: RunningServer, collector: Collector) -> None:
    body = {"model": "text", "prompt": "hello", "max_tokens": 4000, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as response:
        next(response.iter_lines())
    span = collector.span()
    assert span.parent_span_id == b"" and span.end_time_unix_nano > span.start_time_unix_nano
    assert [event.name for event in span.events] == ["queue", "dispatch", "prefill", "decode"]
    values = attributes(span)
    assert values["gen_ai.request.stream"] is True and values["djl.abandoned"] == "disconnect"


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_of_the_engine_is_told_of_its_request(
    server: RunningServer, collector: Collector, stream: bool
) -> None:
    request_id = f"failing-{stream}"
    answer = complete(server, f"abc{FAILING}", request_id, stream=stream)
    span = collector.span()
    assert span.status.code == Status.STATUS_CODE_ERROR
    assert attributes(span)["error.type"] == "generation"
    about = lines(server, request_id)
    assert [line["name"] for line in about if line["level"] == "ERROR"] == ["text/0/engine"]
    (access,) = (line for line in about if line["logger"] == "djl_python.access")
    assert access["status"] == answer.status_code and access["trace_id"] == TRACE
    assert access["method"] == "POST" and access["path"] == "/v1/completions" and access["duration_ms"] > 0


def test_a_mistake_of_the_client_is_no_error_of_the_server(server: RunningServer, collector: Collector) -> None:
    assert complete(server, "hello", "wrong", max_tokens=-1).status_code == 400
    span = collector.span()
    assert span.status.code == Status.STATUS_CODE_UNSET and attributes(span)["error.type"] == "parameter"
    assert httpx.post(f"{server.url}/v1/completions", json={"model": "none", "prompt": "a"}).status_code == 404
    span = collector.span()
    assert span.name == "POST /v1/completions" and attributes(span)["http.response.status_code"] == 404


def test_a_handler_gets_the_spans_context_and_logs_about_its_request(
    server: RunningServer, collector: Collector
) -> None:
    url = f"{server.url}/predictions/own"
    passed_on = httpx.post(url, content=b"x", headers={**CONTEXT, "x-request-id": "mine"}).json()
    span = collector.span()
    assert passed_on == {"traceparent": f"00-{TRACE}-{span.span_id.hex()}-01", "tracestate": "vendor=opaque"}
    assert span.name == "POST /predictions/{model}" and attributes(span)["my.key"] == 1
    (line,) = (line for line in lines(server, "mine") if line["logger"] == "mine")
    assert (line["message"], line["name"], line["trace_id"]) == ("called", "own/0", TRACE)
    assert httpx.post(url, content=b"fail", headers={"x-request-id": "raised"}).status_code == 424
    assert attributes(collector.span())["error.type"] == "handler"
    (line,) = (line for line in lines(server, "raised") if line["level"] == "ERROR")
    assert "ValueError: it fails" in line["message"]


def test_an_answer_that_is_fetched_later_is_one_span(server: RunningServer, collector: Collector) -> None:
    body = {"inputs": "hello", "parameters": {"max_new_tokens": 8}}
    begun = httpx.post(f"{server.url}/invocations", json=body, headers={"x-synchronous": "false"})
    assert begun.status_code == 200 and begun.headers["x-next-token"]
    span = collector.span()
    assert [event.name for event in span.events] == ["queue", "dispatch", "prefill", "decode"]
    assert attributes(span)["gen_ai.usage.output_tokens"] == 8


def test_pages_are_not_traced_and_all_lines_are_json(server: RunningServer, collector: Collector) -> None:
    assert "traceresponse" not in httpx.get(f"{server.url}/ping").headers
    records = [json.loads(line) for line in server.output().splitlines()]
    assert {line["message"] for line in records} >= {"printed"}
    assert any(re.match("djl-serving is ready at", line["message"]) for line in records)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"]) for line in records)
    assert collector.spans.empty()


@pytest.mark.slow
def test_a_collector_that_is_not_there_costs_no_request_anything(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(HANDLER)
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_BSP_SCHEDULE_DELAY": "50"}
    with running_server("-m", f"own={tmp_path}", environment=environment) as server:
        assert httpx.post(f"{server.url}/predictions/own", content=b"x").status_code == 200


def test_requests_of_a_batch_have_traces_of_their_own_linked_with_its_creation(
    server: RunningServer, collector: Collector
) -> None:
    bodies: tuple[dict[str, Any], ...] = (
        {"prompt": "hello", "max_tokens": 4},
        {"prompt": "hello", "temperature": -1},
        {"prompt": FAILING},
    )
    content = b"".join(
        json.dumps(
            {"custom_id": f"r{number}", "method": "POST", "url": "/v1/completions", "body": {"model": "text", **body}}
        ).encode()
        + b"\n"
        for number, body in enumerate(bodies)
    )
    file = httpx.post(f"{server.url}/v1/files", files={"file": content}, data={"purpose": "batch"}).json()
    wanted = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    batch = httpx.post(f"{server.url}/v1/batches", json=wanted, headers=CONTEXT).json()
    created = collector.span()
    assert (created.name, created.kind) == ("create batch", Span.SPAN_KIND_PRODUCER)
    assert (created.trace_id.hex(), created.parent_span_id.hex()) == (TRACE, PARENT)
    assert attributes(created) == {"djl.batch.id": batch["id"]}
    spans = [collector.span() for _ in range(4)]  # what fails is tried again
    assert len({span.trace_id for span in spans} | {created.trace_id}) == 5
    for span in spans:
        assert span.kind == Span.SPAN_KIND_CONSUMER and not span.parent_span_id
        assert [(link.trace_id, link.span_id) for link in span.links] == [(created.trace_id, created.span_id)]
        assert not any(name.startswith("http.") for name in attributes(span))
    by_id = {attributes(span)["djl.batch.custom_id"]: span for span in spans}
    told = {custom_id: attributes(span) for custom_id, span in by_id.items()}
    assert told["r0"].items() >= {"djl.batch.id": batch["id"], "djl.batch.status_code": 200}.items()
    assert told["r0"]["gen_ai.usage.output_tokens"] == 4 and by_id["r0"].name == "text_completion text"
    assert [event.name for event in by_id["r0"].events] == ["queue", "dispatch", "prefill", "decode"]
    assert told["r1"]["djl.batch.status_code"] == 400 and by_id["r1"].status.code == Status.STATUS_CODE_UNSET
    assert told["r2"]["djl.batch.status_code"] >= 500 and by_id["r2"].status.code == Status.STATUS_CODE_ERROR
