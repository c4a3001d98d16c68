"""Turns on a busy model: tenants' shares, priorities, and requests that have to begin within a time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import openai
import pytest

from djl_python.testing import RunningServer, running_server
from tests.server.batches.serving import create, lines, status

DEMO = Path("serving_templates/demo").resolve()
#: The batch's places: a flood of more requests has to wait.
PLACES = 4
FLOOD = 48


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("demo")
    (folder / "serving.properties").write_text(
        f"option.model_id={DEMO}\noption.max_rolling_batch_size={PLACES}\noption.dtype=fp32\n"
    )
    environment = {
        "SERVING_TENANT_HEADER": "X-Tenant",
        "SERVING_TENANT_WEIGHTS": "gold=3",
        "SERVING_BATCH_DIRECTORY": str(tmp_path_factory.mktemp("batches")),
    }
    with running_server("-m", f"demo={folder}", environment=environment) as running:
        yield running


class Ledger:
    """The names of the requests in the order in which they were answered. `begun` is set with the first answer."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.ended: list[str] = []
        self.begun = asyncio.Event()
        self._session = session
        self._url = url

    async def ask(self, name: str, headers: dict[str, str], **fields: Any) -> None:
        body = {"prompt": f"{name}: what is deep learning?", "max_tokens": 100, "ignore_eos": True, **fields}
        async with self._session.post(f"{self._url}/v1/completions", json=body, headers=headers) as response:
            answer = await response.json()
            assert response.status == 200, answer
            assert answer["usage"]["completion_tokens"] == body["max_tokens"]
        self.ended.append(name)
        self.begun.set()


#: A request's name, headers and further fields.
Request = tuple[str, dict[str, str], dict[str, Any]]


async def flooded(url: str, *others: Request, tenant: str = "flood") -> list[str]:
    """The order of the answers, where a tenant has sent many requests before the others."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        ledger = Ledger(session, url)
        async with asyncio.TaskGroup() as tasks:
            for number in range(FLOOD):
                tasks.create_task(ledger.ask(f"flood {number}", {"x-tenant": tenant}))
            await ledger.begun.wait()
            for name, headers, fields in others:
                tasks.create_task(ledger.ask(name, headers, **fields))
    assert len(ledger.ended) == FLOOD + len(others)
    return ledger.ended


@pytest.mark.asyncio
async def test_a_single_request_does_not_wait_for_another_tenants_flood(server: RunningServer) -> None:
    ended = await flooded(server.url, ("single", {"x-tenant": "b"}, {}))
    assert ended.index("single") < FLOOD / 2


def test_tenants_use_nothing_of_each_others_prefix_cache(server: RunningServer) -> None:
    body = {"prompt": [500 + i % 7 for i in range(33)], "max_tokens": 1}
    found = []
    for tenant in ("a", "b", "a", "b"):
        answer = httpx.post(f"{server.url}/v1/completions", json=body, headers={"x-tenant": tenant}, timeout=60)
        found.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert found == [0, 0, 32, 32]


@pytest.mark.asyncio
async def test_tenants_batches_use_nothing_of_each_others_prefix_cache(server: RunningServer) -> None:
    body = {"messages": [{"role": "user", "content": "What is deep learning? " * 20}], "max_tokens": 1}
    found = []
    for tenant in ("a", "b", "a"):
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="-", default_headers={"x-tenant": tenant}, max_retries=0
        ) as client:
            ended = await status(client, await create(client, lines(body)), "completed")
            assert ended.output_file_id is not None
            output = json.loads((await client.files.content(ended.output_file_id)).text)
            found.append(output["response"]["body"]["usage"]["prompt_tokens_details"]["cached_tokens"])
    first, other, again = found
    assert first == other < again


@pytest.mark.asyncio
async def test_an_urgent_request_goes_before_its_tenants_others(server: RunningServer) -> None:
    low, high = ("low", {"x-tenant": "a"}, {"priority": 9}), ("high", {"x-tenant": "a"}, {"priority": -9})
    header: Request = ("by header", {"x-tenant": "a", "x-request-priority": "-9"}, {})
    ended = await flooded(server.url, low, high, header, tenant="a")
    assert ended.index("high") < FLOOD / 2 and ended.index("by header") < FLOOD / 2
    assert ended[-4:].count("low") == 1


def test_wrong_turns_are_refused_in_the_dialects_shape(server: RunningServer) -> None:
    body = {"prompt": "x", "max_tokens": 1}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, headers={"x-request-priority": "high"})
    assert answer.status_code == 400
    assert "x-request-priority: expected an integer" in answer.json()["error"]["message"]
    answer = httpx.post(f"{server.url}/v1/completions", json=body | {"priority": 2**40})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "priority"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/invocations", {"inputs": "x", "parameters": {"max_new_tokens": 1, "priority": 3}}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "priority": 3}),
        ("/v2/models/demo/generate", {"text_input": "x", "parameters": {"max_tokens": 1, "priority": 3}}),
    ],
)
def test_priority_is_a_parameter_of_each_dialect_that_has_extensions(
    server: RunningServer, path: str, body: dict[str, Any]
) -> None:
    answer = httpx.post(f"{server.url}{path}", json=body)
    assert answer.status_code == 200, answer.text
    assert "x-ignored-parameters" not in answer.headers
