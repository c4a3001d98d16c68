import asyncio
import json
import re
from collections.abc import Awaitable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from djl_python.config import ModelConfig
from djl_python.core.errors import PayloadError, ServingError
from djl_python.dialects import DIALECTS, all_dialects
from djl_python.dialects.lmi.dialect import LmiDialect
from djl_python.dialects.shared.base import Answer, Dialect, Kind, Parsed, Route
from djl_python.dialects.shared.views import ServerView
from djl_python.inputs import Input
from djl_python.server.app import OWN_ROUTES
from djl_python.server.metrics.metrics import CONTENT_TYPE
from djl_python.server.models.health import Health
from tests.server.harness import Site, model_config, running, until, wait_ready
from tests.server.in_process import InProcess


async def test_ping_is_djls_and_health_is_strict() -> None:
    async with running(model_config("a"), model_config("b", "2", properties={"load": "fail"}), wait=False) as site:
        early = await site.client.get("/ping")
        assert early.status_code == 200
        assert early.json() == {"a": {"status": "PENDING"}, "b:2": {"status": "PENDING"}}
        assert (await site.client.get("/health")).status_code == 503
        for model in site.models.values():
            await wait_ready(model)
        late = await site.client.get("/ping")
        assert late.status_code == 500
        assert late.json() == {"a": {"status": "Healthy"}, "b:2": {"status": "FAILED"}}
        assert late.text.startswith('{\n  "a": {\n')
        assert (await site.client.get("/health")).status_code == 503
        assert (await site.post("/predictions/b", do="echo")).status_code == 503
        assert (await site.post("/predictions/a", do="echo")).status_code == 200


@pytest.mark.parametrize(("override", "status"), [(False, 200), (True, 500)])
async def test_ping_while_a_worker_is_lost(override: bool, status: int) -> None:
    async with running(model_config(properties={"load": "later"}), health_check_override=override) as site:
        assert (await site.client.get("/ping")).status_code == 200
        site.model.workers.kill()
        await until(lambda: site.model.health is Health.UNHEALTHY)
        response = await site.client.get("/ping")
        assert (response.status_code, response.json()) == (status, {"m": {"status": "Unhealthy"}})


async def test_everything_ready() -> None:
    async with running() as site:
        assert (await site.client.get("/health")).status_code == 200
        assert (await site.client.get("/ping")).json() == {"m": {"status": "Healthy"}}


@pytest.mark.parametrize("path", ["/health", "/v2/health/ready"])
async def test_a_server_that_has_no_model_left_is_not_ready(path: str) -> None:
    async with running() as site:
        assert (await site.client.post("/v2/repository/models/m/unload")).status_code == 200
        assert (await site.client.get(path)).status_code == 503
        assert (await site.client.get("/v2/health/live")).status_code == 200
        assert (await site.client.post("/v2/repository/models/m/load")).status_code == 200
        assert (await site.client.get(path)).status_code == 200


async def test_a_model_that_is_loading_is_503_and_says_so() -> None:
    async with running(model_config(properties={"load": "later"}), wait=False, allow_multi_status=True) as site:
        answer = await site.post(do="echo")
        assert answer.status_code == 503 and "model 'm' is loading" in answer.text
        assert answer.headers["retry-after"] == "5"
        assert (await site.client.get("/ping")).status_code == 207
        await until(lambda: site.model.ready)
        assert (await site.post(do="echo")).status_code == 200
        assert (await site.client.get("/ping")).status_code == 200


async def test_the_pages_take_get_and_head() -> None:
    async with running() as site:
        for path in ("/ping", "/openapi.json", "/metrics"):
            got, head = await site.client.get(path), await site.client.head(path)
            assert got.status_code == head.status_code == 200
            assert head.content == b"" and int(head.headers["content-length"]) > 0
            wrong = await site.client.post(path)
            assert wrong.status_code == 405 and wrong.headers["allow"] == "GET, HEAD, OPTIONS"
        assert got.headers["content-type"] == CONTENT_TYPE


async def test_requests_are_counted_by_code() -> None:
    async with running() as site:
        for _ in range(2):
            await site.post(do="echo")
        await site.client.post("/nothing")
        text = (await site.client.get("/metrics")).text
        assert 'djl_requests_total{code="200",dialect="lmi",model="m",version=""} 2.0' in text
        assert 'djl_requests_total{code="404",dialect="",model="",version=""} 1.0' in text
        assert re.search(r'djl_request_duration_seconds_count\{dialect="lmi",model="m",version=""\} 2\.0', text)


async def test_cors_headers_only_where_configured() -> None:
    async with running(cors_allowed_origin="*", cors_allowed_methods="POST", cors_allowed_headers="x-a") as site:
        preflight = await site.client.options("/invocations", headers={"origin": "http://page"})
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "*"
        assert preflight.headers["access-control-allow-methods"] == "POST"
        assert preflight.headers["access-control-allow-headers"] == "x-a"
        assert (await site.post(do="echo")).headers["access-control-allow-origin"] == "*"
    async with running() as site:
        assert "access-control-allow-origin" not in (await site.post(do="echo")).headers


class Paged(Dialect):
    """A dialect with pages, a model in the body, and a speaker for models called `other`."""

    name = "paged"
    routes = (
        Route("GET", "/paged/{model}", "show", Kind.PAGE),
        Route("POST", "/paged/{model}", "echo", Kind.PAGE),
        Route("POST", "/paged", "refuse", Kind.PAGE),
        Route("POST", "/late/{model}", "unload", Kind.PAGE),
        Route("GET", "/ping", "ping", Kind.PAGE),
        Route("POST", "/generate", "predict"),
    )

    def parse(self, inputs: Input, model: ModelConfig) -> Parsed:
        raise NotImplementedError

    def page(
        self, operation: str, server: ServerView, path_values: Mapping[str, str], body: bytes
    ) -> Answer | Awaitable[Answer]:
        if operation == "refuse":
            raise PayloadError("no")
        if operation == "unload":
            return self.unload(server, path_values["model"])
        models = [] if operation == "ping" else [server.select(path_values["model"]).config.name]
        return Answer(200, json.dumps([operation, models, body.decode(), server.ready]).encode())

    async def unload(self, server: ServerView, name: str) -> Answer:
        await server.unload(name)
        return Answer(200, json.dumps([model.config.name for model in server.models]).encode())

    def model_of(self, body: bytes) -> str | None:
        model: str | None = json.loads(body).pop("model", None)
        return model

    def answering_dialect(self, operation: str, model: ModelConfig, task: str, body: bytes) -> str:
        return "lmi" if model.name == "other" else self.name

    def error(
        self, error: ServingError, model: ModelConfig | None = None, *, operation: str = "", inputs: Input | None = None
    ) -> Answer:
        return Answer(error.status, json.dumps(["paged", error.message]).encode())

    def stream_error(self, error: ServingError, headers: Mapping[str, str], model: ModelConfig | None = None) -> bytes:
        return b""


def paged(*names: str, **server: Any) -> AbstractAsyncContextManager[Site]:
    return running(*map(model_config, names or ("m",)), dialects={"lmi": LmiDialect(), "paged": Paged()}, **server)


async def test_a_page_is_answered_without_a_worker() -> None:
    hanging = model_config(properties={"load": "hang"})
    async with running(hanging, wait=False, dialects={"paged": Paged()}) as site:
        assert (await site.client.get("/paged/m")).json() == ["show", ["m"], "", False]
        head = await site.client.head("/paged/m")
        assert head.status_code == 200 and head.content == b"" and int(head.headers["content-length"]) > 0
        assert (await site.client.post("/paged/m", content="body")).json()[:3] == ["echo", ["m"], "body"]
        assert (await site.client.get("/ping")).json()[0] == "ping"


async def test_a_pages_errors_are_its_dialects() -> None:
    async with paged() as site:
        refused = await site.client.post("/paged")
        assert (refused.status_code, refused.json()) == (400, ["paged", "no"])
        unknown = await site.client.get("/paged/x")
        assert (unknown.status_code, unknown.json()) == (404, ["paged", "there is no model 'x'; loaded: m"])
        wrong = await site.client.delete("/paged/m")
        assert (wrong.status_code, wrong.json()[0]) == (405, "paged")
        assert wrong.headers["allow"] == "GET, HEAD, OPTIONS, POST"


async def test_a_page_may_take_its_time() -> None:
    async with paged("a", "b") as site:
        assert (await site.client.post("/late/a")).json() == ["b"]
        again = await site.client.post("/late/a")
        assert (again.status_code, again.json()) == (404, ["paged", "there is no model 'a' to unload; loaded: b"])


async def ask(site: Site, **body: str) -> tuple[int, Any]:
    answer = await site.client.post("/generate", json=body)
    return answer.status_code, answer.json()


async def test_of_several_models_the_body_says_which() -> None:
    async with paged("m", "other") as site:
        assert (await ask(site, model="m", do="echo"))[0] == 200
        assert await ask(site, model="x") == (404, ["paged", "there is no model 'x'; loaded: m, other"])
        assert (await ask(site, do="echo"))[0] == 400
        tallies = {name: model.tally for name, model in site.models.items()}
        assert (tallies["m:"].succeeded, tallies["other:"].succeeded) == (1, 0)
    async with paged("m", "other", default_model="other") as site:
        assert (await ask(site, do="echo"))[0] == 200
        assert site.models["other:"].tally.succeeded == 1


async def test_on_v1_the_bodys_model_comes_before_any_other_name() -> None:
    async with running(model_config("a"), model_config("b")) as site:
        for target, headers in (("", {"model_name": "a"}), ("?model_name=a", {})):
            path = f"/v1/chat/completions{target}"
            answer = await site.client.post(path, json={"model": "b", "do": "echo"}, headers=headers)
            assert answer.status_code == 200
            answer = await site.client.post(path, json={"do": "echo"}, headers=headers)
            assert answer.status_code == 200
        assert {name: model.tally.succeeded for name, model in site.models.items()} == {"a:": 2, "b:": 2}
        broken = await site.client.post("/v1/chat/completions", content=b"{bad")
        assert broken.status_code == 400
        assert broken.json()["error"]["message"].startswith("the request body is not valid JSON: ")


async def test_an_unknown_model_is_refused_in_the_only_models_dialect() -> None:
    compat = model_config("m", option={"tgi_compat": True})
    async with running(compat) as site:
        for answer in (
            await site.client.get("/v1/models/nope"),
            await site.client.post("/v1/chat/completions?model_name=nope", json={}),
            await site.client.post("/v1/nope", json={}),
        ):
            assert answer.status_code == 404
            assert answer.json().keys() == {"error", "error_type"}
    async with running(compat, model_config("other")) as site:
        answer = await site.client.get("/v1/models/nope")
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "model_not_found"


async def test_the_only_model_answers_whatever_the_body_says() -> None:
    async with paged("m") as site:
        assert (await ask(site, model="x", do="echo"))[0] == 200


async def test_a_model_may_have_another_speaker() -> None:
    async with paged("other") as site:
        assert (await ask(site, do="echo"))[0] == 200
        assert await site.metric('djl_requests_total{code="200",dialect="lmi",model="other"') == 1
        site.models["other:"].pool.refusal = "closed"
        assert (await ask(site, do="echo"))[1]["type"] == "ServiceUnavailableException"


async def test_the_document_is_of_every_route() -> None:
    async with paged() as site:
        answer = await site.client.get("/openapi.json")
        assert answer.headers["content-type"] == "application/json"
        paths = answer.json()["paths"]
        assert set(paths["/paged/{model}"]) == {"get", "post"}
        assert paths["/ping"]["get"]["tags"] == ["paged"] and paths["/metrics"]["get"]["tags"] == ["server"]


async def test_a_model_tells_what_became_of_its_requests() -> None:
    async with running() as site:
        await asyncio.gather(*(site.post(do="echo") for _ in range(3)))
        await site.post(do="headers", status=418)
        tally = site.model.status.tally
        assert (tally.succeeded, tally.failed) == (3, 1)
        assert tally.succeeded_s > 0 and tally.last_s > site.model.registered_s


def _places(routes: Iterable[Route]) -> set[tuple[str, str]]:
    return {(route.method, route.path) for route in routes}


@pytest.mark.parametrize("absent", DIALECTS)
async def test_a_server_does_without_any_of_its_dialects(absent: str, tmp_path: Path) -> None:
    """What is missing are the routes of that one, and with OpenAI's API the batches, which it alone has."""
    dialects = all_dialects()
    gone = dialects.pop(absent)
    async with running(dialects=dialects, placement=InProcess(), batch_directory=str(tmp_path)) as site:
        assert (await site.client.get("/ping")).status_code == 200
        paths = (await site.client.get("/openapi.json")).json()["paths"]
        others = [*OWN_ROUTES, *(route for one in dialects.values() for route in (*one.routes, *one.shared))]
        left = {(method.upper(), path) for path, methods in paths.items() for method in methods}
        assert not left & (_places(gone.routes) - _places(others))
        assert (await site.client.get("/v1/batches")).status_code == (404 if absent == "openai" else 200)
