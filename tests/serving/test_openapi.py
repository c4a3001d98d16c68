"""Requests made up from /openapi.json: nothing gets an internal error, and every answer is one that is documented."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from djl_python.core.access.scopes import Scope
from djl_python.dialects import all_dialects
from djl_python.dialects.shared.base import Kind, Route
from djl_python.server.app import OWN_ROUTES
from djl_python.server.routes import RouteTable
from djl_python.testing import FAKE_ENGINE, RunningServer, running_server, write_byte_tokenizer
from tests.serving.test_text_tasks import EXAMPLES

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
ALL_ROUTES = [route for route, _ in RouteTable(all_dialects(), OWN_ROUTES).rows]
#: But for those that change what is served, for every later request.
ROUTES = [route for route in ALL_ROUTES if route.method == "GET" or route.scope is not Scope.MANAGE]
#: What changes the server, or is about a file that is not there.
CHANGING = {"/v1/batches", *(route.path for route in ALL_ROUTES if route.scope is Scope.MANAGE)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A model that repeats its prompt, with a context so short that no request takes long."""
    path = write_byte_tokenizer(tmp_path_factory.mktemp("models") / "echo")
    (path / "chat_template.jinja").write_text(TEMPLATE)
    (path / "serving.properties").write_text(
        f"option.model_id={path}\noption.rolling_batch={FAKE_ENGINE}\noption.max_model_len=160\n"
    )
    with running_server("-m", f"echo={path}") as running:
        yield running


@pytest.fixture(scope="module")
def schema(server: RunningServer) -> Any:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def modes(route: Route) -> list[Any]:
    """What has neither body nor parameters can't be asked wrongly."""
    return list(GenerationMode) if route.request is not None else [GenerationMode.POSITIVE]


def test_examples_are_answered_as_they_are(server: RunningServer, schema: Any) -> None:
    bodies = {
        path: body["content"]["application/json"]["example"]
        for path, operations in schema.raw_schema["paths"].items()
        if "example"
        in (body := operations.get("post", {}).get("requestBody", {})).get("content", {}).get("application/json", {})
    }
    generating = {route.path for route in ROUTES if route.request is not None and route.kind is Kind.GENERATE}
    assert generating <= set(bodies)
    for path, example in bodies.items():
        if "{version}" in path or path in CHANGING or path in EXAMPLES:  # it has no version, and generates text
            continue
        body = example | {"model": "echo"} if "model" in example else example
        answer = httpx.post(server.url + path.format(model="echo"), json=body, timeout=30)
        assert answer.status_code == 200, f"{path}: {answer.text}"


@pytest.mark.parametrize(
    ("route", "mode"),
    [pytest.param(r, m, id=f"{r.method} {r.path} {m.value}") for r in ROUTES for m in modes(r)],
)
def test_operation(schema: Any, route: Route, mode: Any) -> None:
    @settings(
        max_examples=8,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=schema[route.path][route.method].as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        if "model" in case.path_parameters:
            # That unknown names are 404 is tested elsewhere; what is behind a known one is of interest here.
            case.path_parameters |= {"model": "echo"} | ({"version": "1"} if "version" in case.path_parameters else {})
        # This model has no sessions: requests in one would all be refused alike.
        case.headers.pop("X-Amzn-SageMaker-Session-Id", None)
        case.call_and_validate(checks=CHECKS, timeout=10)

    run()


def test_afterwards(server: RunningServer) -> None:
    """Nothing went wrong inside, and the requests were neither all good nor all bad."""
    assert "Traceback" not in server.output()
    metrics = httpx.get(f"{server.url}/metrics").text
    answered = set(re.findall(r'djl_requests_total{code="(\d)\d\d",dialect="(\w+)"', metrics))
    assert {(first, name) for first in "24" for name in ("lmi", "openai", "tgi", "triton")} <= answered
    assert 'code="500"' not in metrics
