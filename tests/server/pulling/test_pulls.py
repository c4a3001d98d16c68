"""Models that Ollama's clients pull: downloaded over a real connection, registered, loaded by their first request."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import ollama
import pytest

from djl_python.config import Address
from djl_python.config.specs import is_model_name
from djl_python.core.access.api_key import ApiKey
from djl_python.core.access.scopes import Scope
from djl_python.core.errors import ForbiddenError, ParameterError
from djl_python.dialects.ollama.pulling import place_of
from djl_python.server.view import PartialView
from tests.server.harness import Site, running, until
from tests.server.in_process import InProcess
from tests.server.pulling.archives import Archives, archives


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Archives]:
    monkeypatch.setenv("DJL_CACHE_DIR", str(tmp_path / "cache"))
    with archives() as made:
        yield made


@pytest.fixture
async def site(remote: Archives) -> AsyncIterator[Site]:
    async with running(directories=True, placement=InProcess()) as made:
        yield made


@pytest.fixture
async def client(site: Site) -> AsyncIterator[ollama.AsyncClient]:
    async with ollama.AsyncClient(host=f"http://127.0.0.1:{site.port}") as made:
        yield made


async def lines(site: Site, model: str) -> list[dict[str, Any]]:
    answer = await site.client.post("/api/pull", json={"model": model})
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


async def names(client: ollama.AsyncClient) -> list[str | None]:
    return [model.model for model in (await client.list()).models]


async def test_a_pulled_model_is_listed_and_its_first_request_loads_it(
    remote: Archives, site: Site, client: ollama.AsyncClient
) -> None:
    told = [step async for step in await client.pull(remote.url, stream=True)]
    assert (told[0].status, told[-1].status) == ("pulling manifest", "success")
    layers = told[1:-1]
    (digest,) = {step.digest or "" for step in layers}
    assert {(step.status, step.total) for step in layers} == {(f"pulling {digest[7:19]}", len(remote.archive))}
    completed = [step.completed or 0 for step in layers]
    assert completed == sorted(completed) and completed[-1] == len(remote.archive)
    assert await names(client) == ["m:latest", "pulled:latest"]
    assert [model.model for model in (await client.ps()).models] == ["m:latest"]
    answer = await site.client.post("/api/chat", json={"model": "pulled"})
    assert answer.status_code == 200 and answer.json()["path"] == "/api/chat"
    assert [model.model for model in (await client.ps()).models] == ["m:latest", "pulled:latest"]
    assert (await lines(site, remote.url))[-1] == {"status": "success"}  # it stays as it is
    assert [model.model for model in (await client.ps()).models] == ["m:latest", "pulled:latest"]


async def test_a_pull_without_a_stream_is_one_object(client: ollama.AsyncClient) -> None:
    assert (await client.pull("template://demo")).status == "success"
    assert await names(client) == ["m:latest", "demo:latest"]


async def test_a_client_that_leaves_lets_the_download_go_on_and_the_next_one_joins_it(
    remote: Archives, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    remote.may_end.clear()
    async with site.connect() as (reader, writer), asyncio.timeout(10):
        body = json.dumps({"model": remote.url}).encode()
        writer.write(b"POST /api/pull HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        while b'"completed"' not in await reader.readline():
            pass
    await until(lambda: site.front_end.draining.doing == 0)  # nothing waits for the next part on its behalf
    assert caplog.record_tuples == []
    async with site.client.stream("POST", "/api/pull", json={"model": remote.url}) as answer:
        coming = answer.aiter_lines()
        begun = [json.loads(await anext(coming)) for _ in range(2)]
        remote.may_end.set()
        told = begun + [json.loads(line) async for line in coming]
    assert (told[0]["status"], told[-1]) == ("pulling manifest", {"status": "success"})
    assert 0 < told[1]["completed"] < told[1]["total"] == told[-2]["completed"]
    assert remote.asked == ["/pulled.zip"] * 2  # once for both, and once to see that what is registered is the same


async def test_a_download_that_is_followed_does_not_hold_up_the_servers_end(remote: Archives, site: Site) -> None:
    remote.may_end.clear()
    async with site.client.stream("POST", "/api/pull", json={"model": remote.url}) as answer:
        coming = answer.aiter_lines()
        told = [json.loads(await anext(coming)) for _ in range(2)]
        whole = asyncio.create_task(site.client.post("/api/pull", json={"model": remote.url, "stream": False}))
        await until(lambda: site.front_end.draining.doing == 2)
        site.front_end.begin_draining()
        told += [json.loads(line) async for line in coming]
    assert told[-1] == {"error": "the server is shutting down"} and "completed" in told[-2]
    assert (await whole).status_code == 503
    async with asyncio.timeout(5):
        await site.front_end.draining.wait_done()


async def test_names_that_can_not_be_pulled_are_refused(
    remote: Archives, site: Site, client: ollama.AsyncClient, tmp_path: Path
) -> None:
    lost = remote.url.replace("pulled", "lost")
    for name, status, why in (
        (lost, 404, "the server answered 404"),
        (str(tmp_path), 400, "what is on the server's disk is registered with POST /models"),
        (tmp_path.as_uri(), 400, "expected smollm2, hf.co/OWNER/NAME:Q4_K_M"),
        ("llama3.2:1b", 400, "'llama3.2:1b' can't be pulled"),
        ("template://m", 409, "model 'm' is another one"),
        ("hf.co/a/b%", 400, "can't be pulled"),
    ):
        with pytest.raises(ollama.ResponseError, match=re.escape(why)) as refused:
            await client.pull(name)
        assert refused.value.status_code == status
    assert (await lines(site, lost))[-1]["error"].startswith(lost)
    assert await names(client) == ["m:latest"]


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("smollm2", ("smollm2", "package://smollm2")),
        ("hf.co/owner/name:Q4_K_M", ("hf.co/owner/name:Q4_K_M", "hf://owner/name:Q4_K_M")),
        ("huggingface.co/owner/name", ("huggingface.co/owner/name", "hf://owner/name")),
        ("owner/name:Q8_0", ("owner/name:Q8_0", "hf://owner/name:Q8_0")),
        ("ollama://smollm2:135m", ("", "ollama://smollm2:135m")),
    ],
)
def test_places_of_names(name: str, place: tuple[str, str]) -> None:
    assert place_of(name) == place
    assert is_model_name(place[0] or "any")


def test_a_body_without_a_name_is_refused() -> None:
    with pytest.raises(ParameterError, match="model: required"):
        place_of("")


async def test_a_key_for_some_models_pulls_no_others(site: Site) -> None:
    key = ApiKey(name="a", sha256="0" * 64, scopes=(Scope.MANAGE,), models=("owner/name",))
    with pytest.raises(ForbiddenError, match="for other models than 'smollm2'"):
        PartialView(site.front_end.view, key).pull("smollm2", "package://smollm2")


async def test_a_key_for_some_models_pulls_the_url_of_one_of_these(remote: Archives, site: Site) -> None:
    key = ApiKey(name="a", sha256="0" * 64, scopes=(Scope.MANAGE,), models=("pulled",))
    view = PartialView(site.front_end.view, key)
    with pytest.raises(ForbiddenError, match="for other models than 'other'"):
        view.pull("", remote.url.replace("pulled", "other"))
    with pytest.raises(ParameterError, match="can't be a model's name"):
        view.pull("a b", remote.url)
    assert [part.digest async for part in view.pull("", remote.url)]
    assert [model.config.name for model in view.models] == ["pulled"]


async def test_only_clients_who_may_manage_pull(remote: Archives) -> None:
    async with running(management_address=Address(port=1), placement=InProcess()) as apart:
        refused = await apart.client.post("/api/pull", json={"model": remote.url})
        assert refused.status_code == 403 and "management_address" in refused.json()["error"]
    assert remote.asked == []
