"""Limits of tenants over real sockets: what each API answers, what is counted, and what OpenAI's client makes of it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import openai
import pytest

from djl_python.core.access.tenant_limits import TenantLimits
from tests.server.harness import Site, running, until
from tests.server.in_process import InProcess

#: A path of each API, and the error that it answers with; ... stands for its sentence.
SHAPES: dict[str, Any] = {
    "/invocations": {"code": 429, "type": "ThrottlingException", "message": ...},
    "/generate": {"error": ..., "error_type": "rate_limit"},
    "/v1/chat/completions": {
        "error": {"message": ..., "type": "requests", "param": None, "code": "rate_limit_exceeded"}
    },
    "/v1/embeddings": {"error": {"message": ..., "type": "requests", "param": None, "code": "rate_limit_exceeded"}},
    "/v1/responses": {"error": {"message": ..., "type": "requests", "param": None, "code": "rate_limit_exceeded"}},
    "/v1/messages": {"type": "error", "error": {"type": "rate_limit_error", "message": ...}},
    "/api/chat": {"error": ...},
    "/v2/models/m/generate": {"error": ...},
    "/v2/models/m/infer": {"error": ...},
    "/embed": {"error": ..., "error_type": "Overloaded"},
}
TOLD = "Rate limit reached: 1 requests a minute (requests_per_minute). Please try again in"


def tenant(name: str) -> dict[str, str]:
    return {"x-tenant": name}


def shape(body: Any) -> Any:
    """An error with ... for its sentence."""
    if isinstance(body, dict):
        return {name: shape(value) for name, value in body.items()}
    return ... if isinstance(body, str) and TOLD in body else body


async def test_each_api_refuses_in_its_own_shape_and_says_when_to_come_again() -> None:
    async with running(placement=InProcess(), tenant_header="x-tenant", requests_per_minute=1) as site:
        for path, expected in SHAPES.items():
            headers = {**tenant(path), "anthropic-version": "2023-06-01"}
            first = await site.client.post(path, json={}, headers=headers)
            assert first.status_code != 429, path
            assert first.headers["x-ratelimit-remaining-requests"] == "0", path
            refused = await site.client.post(path, json={}, headers=headers)
            assert refused.status_code == 429, path
            assert 55 <= int(refused.headers["retry-after"]) <= 60
            assert {name: value for name, value in refused.headers.items() if name.startswith("x-ratelimit")} == {
                "x-ratelimit-limit-requests": "1",
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-requests": refused.headers["x-ratelimit-reset-requests"],
            }
            error = refused.json()
            error.pop("request_id", None)
            assert shape(error) == expected, path
        assert await site.metric('djl_rate_limited_requests_total{limit="requests_per_minute",tenant="other"}') == len(
            SHAPES
        )


async def test_openais_client_comes_again_when_it_was_told() -> None:
    async with (
        running(placement=InProcess(), tenant_header="x-tenant", requests_per_minute=20) as site,
        openai.AsyncOpenAI(
            base_url=f"{site.client.base_url}/v1", api_key="-", default_headers=tenant("a"), max_retries=0
        ) as client,
    ):
        for _ in range(3):  # pages count nothing
            await client.models.list()
        await asyncio.gather(*(site.client.post("/invocations", json={}, headers=tenant("a")) for _ in range(20)))
        order: Any = {"model": "m", "prompt": "x", "extra_body": {"do": "anything"}}
        with pytest.raises(openai.RateLimitError, match="20 requests a minute") as refused:
            await client.completions.create(**order)
        wait_s = int(refused.value.response.headers["retry-after"])
        assert 1 <= wait_s <= 3
        began_s = time.monotonic()
        answer = await client.with_options(max_retries=1).completions.with_raw_response.create(**order)
        assert answer.http_response.status_code == 200
        assert time.monotonic() - began_s >= wait_s - 1


async def in_flight(site: Site) -> float:
    return await site.metric('djl_tenant_tokens_in_flight{tenant="gold"}')


async def test_tokens_in_flight_are_counted_until_the_request_ends_whatever_its_end() -> None:
    settings: dict[str, Any] = {
        "tenant_header": "x-tenant",
        "tenant_tokens_in_flight": TenantLimits.parse("gold=100"),
    }
    async with running(placement=InProcess(), **settings) as site:

        def ask(**order: Any) -> asyncio.Task[httpx.Response]:
            asking = site.client.post("/v1/completions", json=order, headers=tenant("gold"))
            return asyncio.create_task(asking)

        answered = await ask(do="tokens", prompt=60, generated=20)
        assert answered.status_code == 200 and await in_flight(site) == 0
        (model,) = site.registry.models
        running_one = ask(do="hang")
        await until(lambda: model.pool.in_flight == 1)
        assert await in_flight(site) == 80
        refused = await ask(do="tokens", prompt=60, generated=20)
        assert refused.status_code == 429
        assert refused.json()["error"]["type"] == "tokens"
        assert "100 tokens in flight (tokens_in_flight)" in refused.json()["error"]["message"]
        assert int(refused.headers["retry-after"]) == 1
        other = await site.client.post("/v1/completions", json={"do": "anything"}, headers=tenant("free"))
        assert other.status_code == 200
        running_one.cancel()  # its client leaves
        await until(lambda: model.pool.in_flight == 0)
        assert await in_flight(site) == 0
        with pytest.raises(httpx.RemoteProtocolError):
            await ask(do="break")
        assert await in_flight(site) == 0
        assert (await ask(do="anything")).status_code == 200


async def test_no_tokens_are_in_flight_at_rest_whatever_the_requests_counted_as() -> None:
    """The means of what they had are fractions, and so are quarters of their bodies' lengths."""
    settings: dict[str, Any] = {
        "tenant_header": "x-tenant",
        "tenant_tokens_per_minute": TenantLimits.parse("gold=1000000"),
        "tenant_tokens_in_flight": TenantLimits.parse("gold=1000000"),
    }
    async with running(placement=InProcess(), **settings) as site:
        for _ in range(4):
            orders = [{"do": "tokens", "prompt": prompt, "generated": 7} for prompt in (1, 33, 110, 1007)]
            sent = [site.client.post("/v1/completions", json=order, headers=tenant("gold")) for order in orders]
            assert {answer.status_code for answer in await asyncio.gather(*sent)} == {200}
            assert await in_flight(site) == 0
