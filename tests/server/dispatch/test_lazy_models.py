"""Models that are loaded because a request names them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from djl_python.config import ModelUrls
from djl_python.core.errors import ModelNotFoundError
from djl_python.server.dispatch import lazy_models
from tests.server.harness import Site, directory, running, until
from tests.server.in_process import InProcess


@pytest.fixture
def place() -> InProcess:
    return InProcess()


@pytest.fixture
async def site(tmp_path: Path, place: InProcess) -> AsyncIterator[Site]:
    """Loads models of tmp_path, three at a time."""
    pattern = ModelUrls.parse(f"{tmp_path}/{{model}}")
    async with running(placement=place, directories=True, model_url_pattern=pattern, max_lazy_models=3) as made:
        yield made


@pytest.fixture
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_models, "PAUSE_S", 0.3)


async def ask(site: Site, name: str, **options: Any) -> httpx.Response:
    return await site.client.post(f"/predictions/{name}", json={"do": "echo"}, **options)


async def test_the_first_requests_share_a_load(site: Site, tmp_path: Path, place: InProcess) -> None:
    directory(tmp_path, **{"option.load": "later"})
    answers = await asyncio.gather(*(ask(site, "a") for _ in range(20)))
    assert [answer.status_code for answer in answers] == [200] * 20
    assert [spec.config.name for spec, _ in place.started] == ["m", "a"]
    assert (await ask(site, "a")).status_code == 200
    assert not site.registry.describe("a")[0].at_startup


@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        ("/invocations?model_name=a", {}, {}),
        ("/invocations", {}, {"model_name": "a"}),
        ("/v1/chat/completions", {"model": "a"}, {}),
        ("/v2/models/a/generate", {}, {}),
        ("/v2/models/a/versions/1/generate", {}, {}),
    ],
)
async def test_however_a_request_names_it(
    site: Site, tmp_path: Path, path: str, body: dict[str, str], headers: dict[str, str]
) -> None:
    directory(tmp_path)
    answer = await site.client.post(path, json={"do": "echo", **body}, headers=headers)
    assert answer.status_code == 200 and "a:" in site.models


@pytest.mark.parametrize(
    "name", ["%2e%2e", "..%2fa", "%2Fetc", "a%2f..%2f..%2fetc", ".hidden", "a%00", "a%5c..", "%C3%A9", "x" * 200]
)
async def test_names_that_are_none(site: Site, tmp_path: Path, name: str) -> None:
    directory(tmp_path, ".hidden")
    answer = await ask(site, name)
    assert answer.status_code == 404 and set(site.models) == {"m:"}
    named = await site.client.post(f"/invocations?model_name={name}", json={})
    assert named.status_code == 404 and set(site.models) == {"m:"}


async def test_nothing_of_that_name_is_there(site: Site, tmp_path: Path) -> None:
    answer = await ask(site, "none")
    assert answer.status_code == 404 and answer.json()["message"] == "there is no model 'none'; loaded: m"
    assert str(tmp_path) not in answer.text  # where it would be is not the client's business
    assert (await ask(site, "m/7")).status_code == 404  # a version
    assert set(site.models) == {"m:"}


async def test_a_failed_lazy_load_is_reported_and_retried_after_a_pause(
    short_pause: None, site: Site, tmp_path: Path, place: InProcess
) -> None:
    directory(tmp_path, **{"option.load": "fail"})
    answers = await asyncio.gather(*(ask(site, "a") for _ in range(5)))
    for answer in (*answers, await ask(site, "a")):
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert 'did not load: ZeroDivisionError: \\"oops\\"; the next try is 0.3 s after that one' in answer.text
    assert len(place.started) == 2 and set(site.models) == {"m:"}
    directory(tmp_path)
    async with asyncio.timeout(5):
        while (await ask(site, "a")).status_code == 503:
            await asyncio.sleep(0.05)
    assert (await ask(site, "a")).status_code == 200


async def test_their_number_is_bounded(site: Site, tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d"):
        directory(tmp_path, name)
    answers = await asyncio.gather(*(ask(site, name) for name in ("a", "b", "c", "d")))
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 503]
    (refused,) = (answer for answer in answers if answer.status_code == 503)
    assert "3 models are loaded on demand already, which is max_lazy_models" in refused.text
    await site.client.delete("/models/a")
    assert (await ask(site, "d")).status_code == 200


async def test_a_client_that_leaves_ends_nobody_elses_wait(site: Site, tmp_path: Path) -> None:
    directory(tmp_path, **{"option.load": "later"})
    async with site.connect() as (_, writer):
        writer.write(b"POST /predictions/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
        await until(lambda: "a:" in site.models)
        other = asyncio.create_task(ask(site, "a"))
        await asyncio.sleep(0)
    assert (await other).status_code == 200
    await until(lambda: site.models["a:"].pool.busy == 0)


async def test_a_model_that_is_unregistered_while_it_loads(site: Site, tmp_path: Path) -> None:
    directory(tmp_path, **{"option.load": "later"})
    asking = asyncio.create_task(ask(site, "a"))
    await until(lambda: "a:" in site.models)
    await site.client.delete("/models/a")
    assert (await asking).status_code == 503 and "unregistered meanwhile" in (await asking).text
    assert set(site.models) == {"m:"}


class TestPatterns:
    @pytest.mark.parametrize("text", ["s3://bucket/{model}", "/models/{model}/current", "https://host/.*[.]zip"])
    def test_good_ones(self, text: str) -> None:
        assert str(ModelUrls.parse(text)) == text

    def test_a_bad_one(self) -> None:
        with pytest.raises(ValueError, match=r"expected a URL with \{model\} in it, or a regular expression for URLs"):
            ModelUrls.parse("/models/(")

    @pytest.mark.parametrize(
        "url", ["s3://b/secret/x", "s3://b/open/x/more", "", "s3://b/open/..%2fx", "s3://b/open/../secret", "\n"]
    )
    def test_urls_that_a_request_may_not_bring(self, url: str) -> None:
        with pytest.raises(ModelNotFoundError, match="model_url"):
            ModelUrls.parse("s3://b/open/[^/]+|s3://b/open/[.][.]/secret").url_of("a", url)

    def test_a_url_that_the_pattern_permits_is_taken(self) -> None:
        assert ModelUrls.parse("s3://b/open/.*").url_of("a", "s3://b/open/x") == "s3://b/open/x"


@pytest.mark.parametrize("place_of_url", ["params", "headers"])
async def test_a_url_that_the_request_brings(tmp_path: Path, place_of_url: str) -> None:
    """DJL's form. A header is not permitted more than a parameter."""
    (tmp_path / "open").mkdir()
    inside, outside = directory(tmp_path / "open"), directory(tmp_path, "b")
    pattern = ModelUrls.parse(f"{tmp_path}/open/.*")
    async with running(placement=InProcess(), directories=True, model_url_pattern=pattern) as site:
        assert (await ask(site, "any", **{place_of_url: {"model_url": str(outside)}})).status_code == 404
        assert (await ask(site, "any", **{place_of_url: {"model_url": f"{tmp_path}/open/../b"}})).status_code == 404
        assert "model_url (query parameter or header)" in (await ask(site, "any")).text
        assert (await ask(site, "any", **{place_of_url: {"model_url": str(inside)}})).status_code == 200
        assert (await ask(site, "any")).status_code == 200  # it is there now
