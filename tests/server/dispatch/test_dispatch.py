"""The way of a request into a pool: the same over HTTP and from a batch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from djl_python.batch.lines import RequestLine
from djl_python.config import ModelConfig
from djl_python.core.budgets import LARGE_BODY_BYTES
from djl_python.dialects import all_dialects
from djl_python.server.batches.calls import Calls, Origin
from djl_python.server.dispatch.dispatch import Dispatch
from djl_python.server.dispatch.hold import Hold
from djl_python.server.dispatch.request import ModelRequest
from djl_python.server.metrics.metrics import Metrics
from djl_python.server.models.served_model import ServedModel
from tests.server.harness import Site, model_config, running
from tests.server.in_process import InProcess

COMPLETIONS = "/v1/completions"
PADDING = '{"model": "first"}, ' * 20_000


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """Two models, of which one has an adapter."""
    adapted = msgspec.structs.replace(model_config("second"), adapters={"tuned": "/adapters/tuned"})
    async with running(model_config("first"), adapted, placement=InProcess()) as made:
        yield made


def dispatch(site: Site) -> Dispatch:
    return Dispatch(all_dialects(), site.registry.models)


def request(site: Site, body: bytes, path: str = COMPLETIONS) -> ModelRequest:
    match = site.front_end.routes.match("POST", path)
    assert match.dialect is not None
    return ModelRequest(
        match=match,
        dialect=match.dialect,
        sender=Origin(),
        request_id="1",
        method="POST",
        path=path,
        query=(),
        headers={},
        body=body,
    )


async def through_http(site: Site, body: bytes) -> tuple[int, str]:
    answer = await site.client.post(COMPLETIONS, content=body)
    return answer.status_code, answer.text


async def through_a_batch(site: Site, body: bytes) -> tuple[int, str]:
    calls = Calls(site.front_end.routes, dispatch(site), Metrics())
    reply = await calls.send(RequestLine(1, "r", COMPLETIONS, body))
    return reply.status, reply.body.decode()


@pytest.mark.parametrize("send", [through_http, through_a_batch])
@pytest.mark.parametrize("named", ["second", "tuned"])
async def test_a_body_names_a_model_or_its_adapter(site: Site, send: Any, named: str) -> None:
    status, _ = await send(site, json.dumps({"model": named, "do": "echo"}).encode())
    assert (status, site.models["second:"].pool.in_flight, site.models["first:"].tally.succeeded) == (200, 0, 0)
    assert (await send(site, b'{"model": "third", "do": "echo"}'))[0] == 404


@pytest.mark.parametrize("send", [through_http, through_a_batch])
@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (f'{{"messages": [{PADDING}1], "model": 5}}', 400, "model: expected a string, got 5"),
        (f'{{"messages": [{PADDING}1], "n": 1}}', 400, "model is required: loaded: first, second"),
        (f'{{"messages": [{PADDING}1], "model": "third"}}', 404, "third"),
        (f'{{"messages": [{PADDING}1], "model": "second"', 400, "the request body"),
        (f"[{PADDING}1]", 400, "the request body: expected a JSON object"),
    ],
    ids=["type", "none", "unknown", "unfinished", "array"],
)
async def test_a_large_body_that_names_no_model_is_refused(
    site: Site, send: Any, body: str, status: int, said: str
) -> None:
    told = await send(site, body.encode())
    assert told[0] == status and said in told[1]


async def test_other_requests_have_their_turn_while_a_large_body_is_read(site: Site) -> None:
    body = f'{{"messages": [{PADDING}1], "model": "second", "tools": [{PADDING}1]}}'.encode()
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    waiting = dispatch(site).model_of(request(site, body), Hold())
    assert not isinstance(waiting, ServedModel)
    running_beside = asyncio.create_task(others())
    assert (await waiting).config.name == "second"
    running_beside.cancel()
    assert turns >= len(body) / LARGE_BODY_BYTES


@pytest.mark.parametrize("path", ["/predictions/first", "/v2/models/first/generate"])
async def test_a_body_is_not_read_where_the_path_names_the_model(site: Site, path: str) -> None:
    model = dispatch(site).model_of(request(site, b"x" * (LARGE_BODY_BYTES + 1), path), Hold())
    assert isinstance(model, ServedModel) and model.config.name == "first"


async def test_a_small_body_takes_no_turn(site: Site) -> None:
    model = dispatch(site).model_of(request(site, b'{"model": "second"}'), Hold())
    assert isinstance(model, ServedModel) and model.config.name == "second"


@pytest.mark.parametrize("send", [through_http, through_a_batch])
async def test_the_answering_dialect_is_found_once(site: Site, send: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may mean reading the body."""
    asked: list[str] = []
    answering = Dispatch.answering

    def counting(self: Dispatch, wanted: ModelRequest, model: ServedModel) -> Any:
        asked.append(wanted.path)
        return answering(self, wanted, model)

    monkeypatch.setattr(Dispatch, "answering", counting)
    status, _ = await send(site, b'{"model": "first", "do": "echo"}')
    assert (status, asked) == (200, [COMPLETIONS])


@pytest.mark.parametrize("others", [[], [model_config("other")]], ids=["one name", "several names"])
@pytest.mark.parametrize("padding", ["", "x" * LARGE_BODY_BYTES], ids=["small", "large"])
async def test_the_version_that_has_the_adapter_answers(others: list[ModelConfig], padding: str) -> None:
    """The newer one would answer as the base model."""
    older = msgspec.structs.replace(model_config("m", "1"), adapters={"tuned": "/adapters/tuned"})
    async with running(older, model_config("m", "2"), *others, placement=InProcess()) as site:

        async def answered(named: str, **headers: str) -> tuple[int, int, int]:
            """The status, and how many answers each version has given by now."""
            body = {"model": named, "do": "anything", "pad": padding}
            answer = await site.client.post(COMPLETIONS, json=body, headers=headers)
            older, newer = (site.models[f"m:{version}"].tally.succeeded for version in (1, 2))
            return answer.status_code, older, newer

        assert await answered("tuned") == (200, 1, 0)
        assert await answered("m") == (200, 1, 1)
        assert await answered("tuned", model_version="1") == (200, 2, 1)
        assert await answered("tuned", model_version="2") == (404, 2, 1)
        assert await answered("gpt-4") == ((404, 2, 1) if others else (200, 2, 2))
        names = [model["id"] for model in (await site.client.get("/v1/models")).json()["data"]]
        assert names.count("tuned") == 1
