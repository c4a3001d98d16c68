"""A file's request is answered as if it had come over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from djl_python.batch.lines import RequestLine
from djl_python.batch.runner import NoReplyError, NotTakenError
from djl_python.dialects import all_dialects
from djl_python.server.batches.calls import Calls
from djl_python.server.dispatch.dispatch import Dispatch
from djl_python.server.metrics.metrics import Metrics
from tests.server.harness import Site, model_config, running, until
from tests.server.in_process import InProcess


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with running(placement=InProcess()) as made:
        yield made


def calls(site: Site) -> Calls:
    return Calls(site.front_end.routes, Dispatch(all_dialects(), site.registry.models), Metrics())


def request(url: str = "/invocations", **body: Any) -> RequestLine:
    return RequestLine(1, "r", url, json.dumps(body).encode())


async def test_a_batchs_request_is_answered_as_over_http(site: Site) -> None:
    reply = await calls(site).send(request("/predictions/m?model_version=&a=b"))
    told = json.loads(reply.body)
    assert (reply.status, reply.failed) == (200, False)
    assert (told["path"], told["query"]) == ("/predictions/m", [["model_version", ""], ["a", "b"]])
    assert told["headers"] == {"content-type": "application/json", "x-request-id": reply.request_id}


@pytest.mark.parametrize(
    ("url", "status", "said"),
    [
        ("/nothing", 404, "there is nothing at /nothing"),
        ("/v1/nothing", 404, "there is nothing at /v1/nothing"),
        ("/models", 404, "/models is not for batches"),
        ("/v1/batches", 404, "/v1/batches is not for batches"),
        ("/ping", 405, "does not take POST"),
        ("/predictions/other", 404, "other"),
    ],
)
async def test_a_batchs_request_is_refused_as_over_http(site: Site, url: str, status: int, said: str) -> None:
    reply = await calls(site).send(request(url))
    assert reply.status == status and reply.failed and said in reply.body.decode()


async def test_a_stream_is_taken_as_it_is(site: Site) -> None:
    """A handler streams unasked, beyond what it may be ahead of its client."""
    reply = await calls(site).send(request(do="flow", n=20, size=1 << 18, ahead=1 << 19))
    assert len(reply.body) == 20 << 18


async def test_failures_of_the_server_are_no_results_of_the_request(site: Site) -> None:
    with pytest.raises(NotTakenError):
        await calls(site).send(request(do="headers", status=503))
    with pytest.raises(NoReplyError, match="ended before it was complete"):
        await calls(site).send(request(do="break"))
    async with running(model_config(properties={"load": "later"}), placement=InProcess(), wait=False) as loading:
        with pytest.raises(NotTakenError, match="loading"):
            await calls(loading).send(request())


async def test_a_worker_that_dies_is_the_servers_fault() -> None:
    async with running() as site:
        reply = await calls(site).send(request(do="die"))
        assert reply.status == 424 and b"the worker that was answering this request" in reply.body


async def test_a_request_that_nobody_waits_for_is_taken_back(site: Site) -> None:
    task = asyncio.ensure_future(calls(site).send(request(do="hang")))
    await until(lambda: site.model.pool.in_flight == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: site.model.pool.in_flight == 0)
