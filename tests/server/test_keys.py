"""API keys over real sockets: who gets in, what answers say who does not, and what belongs to whom."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from djl_python.config import Networks
from djl_python.core.access.api_key import ApiKey, digest
from djl_python.core.access.scopes import Scope
from djl_python.server.keys.key_file import add_key
from tests.server.batches.serving import create, lines, status, upload
from tests.server.harness import Site, model_config, running
from tests.server.in_process import InProcess

INFER, MANAGE, METRICS = "djl_for_infer", "djl_for_manage", "djl_for_metrics"
#: Every way of inference, by what answers it: method and path.
ROUTES = {
    "lmi": ("POST", "/invocations"),
    "lmi of a model": ("POST", "/predictions/m"),
    "openai": ("POST", "/v1/chat/completions"),
    "openai's completions": ("POST", "/v1/completions"),
    "openai's page": ("GET", "/v1/models"),
    "openai's files": ("GET", "/v1/files"),
    "tgi": ("POST", "/generate"),
    "tgi's stream": ("POST", "/generate_stream"),
    "tgi's query": ("GET", "/info"),
    "triton": ("POST", "/v2/models/m/generate"),
    "triton's page": ("GET", "/v2"),
    "the console": ("GET", "/console/state"),
}


def key(secret: str, *scopes: Scope, name: str = "", **more: Any) -> ApiKey:
    name = name or secret.removeprefix("djl_for_")
    return ApiKey(name=name, sha256=digest(secret), scopes=scopes or (Scope.INFER,), **more)


KEYS = (key(INFER), key(MANAGE, Scope.MANAGE), key(METRICS, Scope.METRICS))


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


@asynccontextmanager
async def guarded(*models: Any, keys: tuple[ApiKey, ...] = KEYS, **settings: Any) -> AsyncIterator[Site]:
    async with running(*models, placement=InProcess(), given_keys=keys, **settings) as site:
        yield site


def sentence(answer: httpx.Response) -> str:
    """What an error says, whatever its shape."""
    text = answer.text.removeprefix("data:").strip()
    body = json.loads(text)
    error = body.get("message", body.get("error"))
    return str(error["message"] if isinstance(error, dict) else error)


async def test_every_dialect_refuses_in_its_own_shape(tmp_path: Path) -> None:
    async with guarded(batch_directory=str(tmp_path)) as site:
        for name, (method, path) in ROUTES.items():
            body: dict[str, Any] | None = {} if method == "POST" else None
            for headers, told in (
                ({}, "You didn't provide an API key"),
                (bearer("djl_wrong"), "Incorrect API key provided"),
                ({"x-api-key": "djl_wrong"}, "Incorrect API key provided"),
            ):
                refused = await site.client.request(method, path, json=body, headers=headers)
                assert refused.status_code == 401, name
                assert refused.headers["www-authenticate"] == "Bearer", name
                assert told in sentence(refused), name
            forbidden = await site.client.request(method, path, json=body, headers=bearer(METRICS))
            assert forbidden.status_code == 403, name
            assert "needs an API key with the scope infer; the key 'metrics' has metrics" in sentence(forbidden)
            for secret in (INFER, MANAGE):
                for headers in (bearer(secret), {"x-api-key": secret}, {"api-key": secret}):
                    taken = await site.client.request(method, path, json=body, headers=headers)
                    assert taken.status_code not in (401, 403), name
        for headers in ({}, bearer("djl_wrong")):
            upload = {"file": ("in.jsonl", b"{}" * 1000)}
            refused = await site.client.post("/v1/files", data={"purpose": "batch"}, files=upload, headers=headers)
            assert refused.status_code == 401
        refused = await site.client.post("/v1/chat/completions", json={})
        assert refused.json() == {
            "error": {
                "message": "You didn't provide an API key. It is expected in the header Authorization (Bearer KEY), "
                "x-api-key or api-key",
                "type": "invalid_request_error",
                "param": None,
                "code": "invalid_api_key",
            }
        }
        assert (await site.client.post("/generate", json={})).json()["error_type"] == "unauthorized"
        assert set((await site.client.post("/invocations", json={})).json()) == {"code", "type", "message"}
        assert set((await site.client.post("/v2/models/m/infer", json={})).json()) == {"error"}


@pytest.mark.parametrize(("option", "shape"), [("tgi_dialect", "mindie"), ("tgi_compat", "true")])
async def test_a_models_own_shape(option: str, shape: str) -> None:
    value: Any = True if shape == "true" else shape
    async with guarded(model_config(option={option: value})) as site:
        for path in ("/generate_stream", "/invocations", "/v1/chat/completions"):
            assert (await site.client.post(path, json={})).status_code == 401


async def test_probes_and_pages_need_no_key_and_metrics_may() -> None:
    async with guarded() as site:
        for path in ("/ping", "/health", "/v2/health/live", "/v2/health/ready", "/v2/models/m/ready"):
            for headers in ({}, bearer("djl_wrong")):
                assert (await site.client.get(path, headers=headers)).status_code == 200, path
        for path in ("/openapi.json", "/docs", "/console", "/console/app.js", "/metrics", "/server/metrics"):
            assert (await site.client.get(path)).status_code == 200, path
        assert (await site.client.options("/v1/models")).status_code == 200  # browsers ask without a key
    async with guarded(metrics_access="key") as site:
        for path in ("/metrics", "/server/metrics"):
            statuses = [
                (await site.client.get(path, headers=bearer(one))).status_code for one in (METRICS, MANAGE, INFER)
            ]
            assert statuses == [200, 200, 403]
            assert (await site.client.get(path)).status_code == 401


async def test_a_key_manages_from_anywhere_and_nobody_else_does() -> None:
    elsewhere = {"x-forwarded-for": "203.0.113.7", "host": "models.example.com", "origin": "https://else.example"}
    for access in ("local", "open"):
        async with guarded(management_access=access) as site:
            assert (await site.client.get("/models")).status_code == 401
            assert (await site.client.get("/models", headers=bearer(INFER))).status_code == 403
            assert (await site.client.get("/models", headers={**bearer(MANAGE), **elsewhere})).status_code == 200
            for secret, manages in ((INFER, False), (MANAGE, True)):
                state = (await site.client.get("/console/state", headers={**bearer(secret), **elsewhere})).json()
                assert (state["manages"], state["generates"], state["key_name"]) == (manages, True, secret[8:])


async def test_secrets_go_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    async with guarded() as site:
        with caplog.at_level(logging.DEBUG):
            seen = await site.client.post("/invocations", json={}, headers=bearer(INFER))
            pages = [await site.client.get(path, headers=bearer(MANAGE)) for path in ("/console/settings", "/models/m")]
        assert seen.status_code == 200
        assert "authorization" not in seen.text
        [line] = [record.getMessage() for record in caplog.records if "POST /invocations" in record.getMessage()]
        assert line.startswith('127.0.0.1 infer "POST /invocations" 200 ')
        texts = [seen.text, *(page.text for page in pages), caplog.text, repr(site.front_end.config)]
        assert not [text for text in texts if INFER in text or MANAGE in text]


async def test_metrics_count_by_key() -> None:
    async with guarded() as site:
        for secret in (INFER, INFER, METRICS):
            order = {"do": "tokens", "prompt": 5, "generated": 7}
            await site.client.post("/invocations", json=order, headers=bearer(secret))
        assert await site.metric('djl_key_requests_total{code="200",key="infer"}') == 2
        assert await site.metric('djl_key_requests_total{code="403",key="metrics"}') == 1
        assert await site.metric('djl_key_tokens_total{key="infer",kind="prompt"}') == 10
        assert await site.metric('djl_key_tokens_total{key="infer",kind="generated"}') == 14


async def test_the_document_says_how_to_send_a_key() -> None:
    async with guarded() as site:
        document = (await site.client.get("/openapi.json")).json()
        assert set(document["components"]["securitySchemes"]) == {"bearer", "x-api-key", "api-key"}
        assert {next(iter(one)) for one in document["security"]} == {"bearer", "x-api-key", "api-key"}
        assert document["paths"]["/ping"]["get"]["security"] == []
        assert "security" not in document["paths"]["/v1/chat/completions"]["post"]
        assert "401" in document["paths"]["/v1/chat/completions"]["post"]["responses"]
    async with running(placement=InProcess()) as site:
        document = (await site.client.get("/openapi.json")).json()
        assert "security" not in document and "securitySchemes" not in document["components"]
        assert "security" not in document["paths"]["/ping"]["get"]


async def test_a_key_for_some_models_sees_no_others() -> None:
    keys = (key("djl_a", name="only-a", models=("a",)), key(INFER))
    async with guarded(model_config("a"), model_config("b"), keys=keys) as site:
        only, all_of = bearer("djl_a"), bearer(INFER)

        async def served(headers: dict[str, str]) -> list[str]:
            return [one["id"] for one in (await site.client.get("/v1/models", headers=headers)).json()["data"]]

        assert (await served(only), await served(all_of)) == (["a"], ["a", "b"])
        state = (await site.client.get("/console/state", headers=only)).json()
        assert [one["name"] for one in state["models"]] == ["a"]
        for method, path in (
            *(("POST", "/predictions/b"), ("GET", "/v1/models/b"), ("POST", "/v2/models/b/generate")),
            *(("GET", "/v2/models/b"), ("POST", "/invocations?model_name=b"), ("GET", "/console/defaults/b")),
        ):
            assert (await site.client.request(method, path, json={}, headers=only)).status_code == 404, path
            assert (await site.client.request(method, path, json={}, headers=all_of)).status_code != 404, path
            assert (await site.client.request(method, path.replace("b", "a"), json={}, headers=only)).status_code != 404


#: Ways to ask for a model by name, in a body or in a path.
NAMING = (
    *(("/v1/chat/completions", "model"), ("/v1/messages", "model"), ("/v1/responses", "model"), ("/api/chat", "model")),
    *(("/v1/embeddings", "model"), ("/tokenize", "model"), ("/api/show", "model"), ("/generate", "model")),
    *(("/invocations?model_name=NAME", ""), ("/predictions/NAME", ""), ("/predictions/NAME/7", "")),
    *(("/v2/models/NAME/generate", ""), ("/v2/models/NAME/versions/7/infer", "")),
)


@pytest.mark.parametrize(("path", "field"), NAMING)
async def test_a_model_that_a_key_may_not_use_is_answered_as_one_that_does_not_exist(path: str, field: str) -> None:
    """No answer says which other models there are."""
    keys = (key("djl_a", name="only", models=("mine", "gone")),)
    models = (model_config("mine"), model_config("secret"))
    async with guarded(*models, keys=keys) as site:
        answers = {}
        for name in ("secret", "absent", "gone"):
            body: dict[str, Any] = {"messages": [], "input": "a", "inputs": "a", **({field: name} if field else {})}
            answer = await site.client.post(path.replace("NAME", name), json=body, headers=bearer("djl_a"))
            assert answer.status_code == 404
            answers[name] = answer.text.replace(name, "NAME")
        assert answers["secret"] == answers["absent"] == answers["gone"] and "secret" not in answers["gone"]


@pytest.mark.parametrize("default", ["", "secret"])
async def test_a_request_that_names_no_model_is_told_of_those_that_its_key_may_use(default: str) -> None:
    keys = (key("djl_a", name="only", models=("mine",)), key("djl_b", name="none", models=("gone",)))
    models = (model_config("mine"), model_config("secret"))
    async with guarded(*models, keys=keys, default_model=default) as site:
        for path in ("/invocations", "/v1/chat/completions", "/generate", "/tokenize"):
            answer = await site.client.post(path, json={"messages": [], "inputs": "a"}, headers=bearer("djl_a"))
            assert answer.status_code == 400 and "loaded: mine" in answer.text and "secret" not in answer.text
            answer = await site.client.post(path, json={"messages": [], "inputs": "a"}, headers=bearer("djl_b"))
            assert answer.status_code == 404 and "no model is loaded" in answer.text


async def test_a_manager_of_some_models_changes_no_others_and_makes_none() -> None:
    keys = (key("djl_some", Scope.MANAGE, name="some", models=("mine", "new")), key(MANAGE, Scope.MANAGE))
    models = (model_config("mine"), model_config("secret"))
    async with guarded(*models, keys=keys) as site:

        async def asked(method: str, path: str, **body: object) -> httpx.Response:
            json = body if method in ("POST", "PUT") else None
            return await site.client.request(method, path, json=json, headers=bearer("djl_some"))

        assert [one["modelName"] for one in (await asked("GET", "/models")).json()["models"]] == ["mine"]
        assert [one["workflowName"] for one in (await asked("GET", "/workflows")).json()["workflows"]] == ["mine"]
        for method, path in (
            *(
                ("GET", "/models/NAME"),
                ("PUT", "/models/NAME"),
                ("DELETE", "/models/NAME"),
                ("DELETE", "/workflows/NAME"),
            ),
            *(("POST", "/models/NAME/unload"), ("GET", "/models/NAME/adapters"), ("POST", "/models/NAME/adapters")),
            *(
                ("DELETE", "/models/NAME/adapters/a"),
                ("GET", "/models/NAME/adapters/a"),
                ("PUT", "/models/NAME/adapters/a"),
            ),
            ("POST", "/v2/repository/models/NAME/load"),
            ("POST", "/v2/repository/models/NAME/unload"),
        ):
            texts = set()
            for name in ("secret", "absent"):
                more = {"name": "a", "src": "a"} if path.endswith("/adapters") else {}
                answer = await asked(method, path.replace("NAME", name), **more)
                assert answer.status_code == 404, (method, path)
                texts.add(answer.text.replace(name, "NAME"))
            assert len(texts) == 1 and "secret" not in texts.pop()
        for path, body, status in (
            ("/models", {"url": "a", "model_name": "secret"}, 403),
            ("/models", {"url": "a", "model_name": "secret", "reload": True}, 403),
            ("/models", {"model_name": "secret", "reload": True}, 404),
            ("/models", {"url": "a", "model_name": "other"}, 403),
            ("/workflows", {"url": "a", "model_name": "other"}, 403),
            ("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "a", "model": "secret"}, 404),
            ("/v1/unload_lora_adapter", {"lora_name": "a", "model": "secret"}, 404),
            ("/adapters", {"name": "a", "src": "a"}, 400),
            ("/api/copy", {"source": "secret", "destination": "new"}, 404),
            ("/api/copy", {"source": "mine", "destination": "other"}, 403),
        ):
            answer = await asked("POST", path, **body)
            assert answer.status_code == status, (path, body, answer.text)
            assert "secret" not in answer.text or body.get("model_name") == "secret" or "secret" in body.values()
        assert (await asked("PUT", "/models/mine", min_worker=1)).status_code == 200
        assert (await asked("POST", "/models/mine/unload")).status_code == 200
        assert (await asked("DELETE", "/models/mine")).status_code == 200
        left = (await site.client.get("/models", headers=bearer(MANAGE))).json()["models"]
        assert [(one["modelName"], one["status"]) for one in left] == [("secret", "READY")]


async def test_openais_client_raises_its_exceptions(tmp_path: Path) -> None:
    path = tmp_path / "keys.jsonl"
    add_key(path, key(INFER))
    add_key(path, key(METRICS, Scope.METRICS))
    async with guarded(keys=(), api_keys=str(path)) as site:
        url = f"http://127.0.0.1:{site.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key=INFER, max_retries=0) as client:
            assert [one.id async for one in client.models.list()] == ["m"]
            with pytest.raises(openai.AuthenticationError) as refused:
                await client.with_options(api_key="djl_wrong").models.list()
            assert refused.value.code == "invalid_api_key"
            with pytest.raises(openai.PermissionDeniedError):
                await client.with_options(api_key=METRICS).models.list()


async def test_files_and_batches_belong_to_their_key(tmp_path: Path) -> None:
    keys = (*KEYS, key("djl_for_other"))
    async with guarded(keys=keys, batch_directory=str(tmp_path)) as site:
        url = f"http://127.0.0.1:{site.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key=INFER, max_retries=0) as own:
            made = await status(own, await create(own, lines({})), "completed")
            assert made.output_file_id is not None
            ids = {made.input_file_id, made.output_file_id}
            other, manager = own.with_options(api_key="djl_for_other"), own.with_options(api_key=MANAGE)
            for client, sees in ((own, True), (other, False), (manager, True)):
                assert {one.id async for one in client.files.list()} == (ids if sees else set())
                assert [one.id async for one in client.batches.list()] == ([made.id] if sees else [])
            for file_id in ids:
                for ask in (other.files.retrieve, other.files.content, other.files.delete):
                    with pytest.raises(openai.NotFoundError, match="No such File object"):
                        await ask(file_id)
                assert (await manager.files.retrieve(file_id)).id == file_id
            for ask_batch in (other.batches.retrieve, other.batches.cancel):
                with pytest.raises(openai.NotFoundError, match="No batch found"):
                    await ask_batch(made.id)
            with pytest.raises(openai.BadRequestError, match="No such File object"):
                await other.batches.create(
                    input_file_id=made.input_file_id, endpoint="/v1/chat/completions", completion_window="24h"
                )
            assert "owner" not in (await own.files.with_raw_response.retrieve(made.input_file_id)).text
    async with guarded(keys=keys, batch_directory=str(tmp_path)) as site:  # and after another start
        listed = [
            [one["id"] for one in (await site.client.get(path, headers=bearer(secret))).json()["data"]]
            for path in ("/v1/files", "/v1/batches")
            for secret in ("djl_for_other", INFER)
        ]
        assert [len(one) for one in listed] == [0, 2, 0, 1]


async def test_files_of_a_key_leave_as_much_room_to_others(tmp_path: Path) -> None:
    keys = (*KEYS, key("djl_for_other"))
    settings = {"batch_directory": str(tmp_path), "batch_max_files": 6, "batch_max_bytes": 6_000}
    async with guarded(keys=keys, **settings) as site:
        url = f"http://127.0.0.1:{site.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key=INFER, max_retries=0) as own:
            other = own.with_options(api_key="djl_for_other")
            first = await upload(own, bytes(2_500))
            with pytest.raises(
                openai.APIStatusError, match="batch_max_bytes; a key may have as much as is left"
            ) as large:
                await upload(own, bytes(1_000))
            for _ in range(2):
                await upload(own, b"x")
            with pytest.raises(
                openai.APIStatusError, match="batch_max_files; a key may have as much as is left"
            ) as many:
                await upload(own, b"x")
            assert (large.value.status_code, many.value.status_code) == (413, 413)
            await upload(other, bytes(1_500))
            await own.files.delete(first)
            await upload(own, b"x")


async def test_batches_of_a_key_leave_as_many_to_others_and_replace_none_of_theirs(tmp_path: Path) -> None:
    keys = (*KEYS, key("djl_for_other"))
    settings = {"batch_directory": str(tmp_path), "batch_max_files": 6, "batch_max_running": 2}
    async with guarded(keys=keys, **settings) as site:
        url = f"http://127.0.0.1:{site.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key=INFER, max_retries=0) as own:
            other = own.with_options(api_key="djl_for_other")
            kept = await create(other, b"no line")
            await status(other, kept, "failed")
            file_id = await upload(own, lines({"do": "hang"}))

            async def begin() -> openai.types.Batch:
                return await own.batches.create(
                    input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h"
                )

            made = [await begin() for _ in range(3)]
            with pytest.raises(openai.RateLimitError, match="batch_max_files; a key may have as much as is left"):
                await begin()
            await status(own, made[0], "in_progress")
            ran = await status(other, await create(other, lines({})), "completed")  # beside one that does not end
            for _ in range(4):
                for batch in made:
                    await own.batches.cancel(batch.id)
                    await status(own, batch, "cancelled")
                made = [await begin()]
            assert {one.id async for one in other.batches.list()} == {kept.id, ran.id}
            await own.batches.cancel(made[0].id)


async def test_ended_batches_that_keys_have_left_make_room_without_keys(tmp_path: Path) -> None:
    settings = {"batch_directory": str(tmp_path), "batch_max_files": 4}
    async with guarded(keys=(*KEYS, key("djl_for_other")), **settings) as site:
        url = f"http://127.0.0.1:{site.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key=INFER, max_retries=0) as own:
            for client in (own, own.with_options(api_key="djl_for_other")):
                left = await status(client, await create(client, b"no line"), "failed")
                await client.files.delete(left.input_file_id)
    async with guarded(keys=(), **settings) as site:
        url = f"http://127.0.0.1:{site.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            file_id = await upload(client, lines({"do": "hang"}))
            for _ in range(4):
                last = await client.batches.create(
                    input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h"
                )
            assert last.status == "validating"
            with pytest.raises(openai.RateLimitError, match=r"4 batches have not ended"):
                await client.batches.create(
                    input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h"
                )


async def test_answers_that_are_fetched_later_belong_to_their_key() -> None:
    async with guarded(keys=(*KEYS, key("djl_for_other"))) as site:
        asked = await site.client.post("/invocations", json={}, headers={**bearer(INFER), "x-synchronous": "false"})
        token = {"x-starting-token": asked.headers["x-next-token"]}
        for secret, status_code in (("djl_for_other", 400), (INFER, 200), (MANAGE, 200)):
            fetched = await site.client.post("/invocations", json={}, headers={**bearer(secret), **token})
            assert (fetched.status_code == 400) == (status_code == 400), secret
        unknown = await site.client.post("/invocations", json={}, headers={**bearer(INFER), "x-starting-token": "x"})
        other = await site.client.post("/invocations", json={}, headers={**bearer("djl_for_other"), **token})
        assert other.text == unknown.text


async def test_each_key_has_its_own_rate() -> None:
    keys = (key("djl_a", name="a"), key("djl_b", name="b", requests_per_minute=1000))
    async with guarded(keys=keys, requests_per_minute=2) as site:

        async def ask(path: str, secret: str) -> httpx.Response:
            return await site.client.post(path, json={}, headers=bearer(secret))

        first = await ask("/invocations", "djl_a")
        assert first.headers["x-ratelimit-limit-requests"] == "2"
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        await ask("/generate", "djl_a")
        for path in ("/invocations", "/generate", "/v1/chat/completions", "/v2/models/m/generate"):
            refused = await ask(path, "djl_a")
            assert refused.status_code == 429, path
            assert 1 <= int(refused.headers["retry-after"]) <= 30
            assert refused.headers["x-ratelimit-remaining-requests"] == "0"
            assert "2 requests a minute (requests_per_minute)" in sentence(refused)
            assert (await ask(path, "djl_b")).status_code != 429
        error = (await ask("/v1/chat/completions", "djl_a")).json()["error"]
        assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
        assert (await site.client.get("/v1/models", headers=bearer("djl_a"))).status_code == 200  # pages are free


async def test_without_keys_each_address_has_its_rate() -> None:
    async with running(
        placement=InProcess(), requests_per_minute=1, trusted_proxies=Networks.parse("127.0.0.1")
    ) as site:
        statuses = [
            (await site.client.post("/invocations", json={}, headers={"x-forwarded-for": client})).status_code
            for client in ("203.0.113.1", "203.0.113.1", "203.0.113.2", "2001:db8::1", "2001:db8::2")
        ]
        assert statuses == [200, 429, 200, 200, 429]


async def test_tokens_count_against_a_rate() -> None:
    async with guarded(keys=(key(INFER, tokens_per_minute=100),)) as site:

        async def ask(generated: int) -> httpx.Response:
            order = {"do": "tokens", "prompt": 10, "generated": generated}
            return await site.client.post("/v1/completions", json=order, headers=bearer(INFER))

        assert (await ask(10)).json() == {"key": "infer", "is_manager": False}
        second = await ask(5000)  # how long its answer will be nobody knows before
        assert second.status_code == 200
        assert 80 <= int(second.headers["x-ratelimit-remaining-tokens"]) <= 100
        refused = await ask(1)
        assert refused.status_code == 429
        assert refused.json()["error"]["type"] == "tokens"
        assert int(refused.headers["retry-after"]) > 1000
        deferred = await site.client.post("/invocations", json={}, headers={**bearer(INFER), "x-synchronous": "false"})
        assert deferred.status_code == 429


async def test_without_keys_nobody_counts() -> None:
    async with running(placement=InProcess()) as site:
        order = {"do": "tokens", "prompt": 10, "generated": 10}
        answer = await site.client.post("/invocations", json=order, headers=bearer("my own"))
        assert answer.json() == {"key": "", "is_manager": True}
        assert not [name for name in answer.headers if name.startswith("x-ratelimit")]
        echoed = await site.client.post("/invocations", json={}, headers=bearer("my own"))
        assert echoed.json()["headers"]["authorization"] == "Bearer my own"
