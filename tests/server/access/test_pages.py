"""What browsers send for pages, and which of it is refused: rule by rule, and at a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from djl_python.config import Address, ServerConfig
from djl_python.core.access.scopes import Scope
from djl_python.core.errors import ForbiddenError
from djl_python.server.access.pages import Pages
from tests.server.batches.serving import serving
from tests.server.harness import Site, running

LOOPBACK, EVERYWHERE = Address(), Address("0.0.0.0", 8080)


def refused(
    headers: dict[str, str],
    address: Address = LOOPBACK,
    scope: Scope = Scope.INFER,
    method: str = "POST",
    any_type: bool = False,
    **config: Any,
) -> str:
    """ "Host" or "Origin", by which it is refused, or ""."""
    pages = Pages(address, ServerConfig(inference_address=address, **config), manages_locally=True)
    try:
        pages.check(scope, method, {"host": "localhost:8080", **headers}, any_type=any_type)
    except ForbiddenError as exc:
        return exc.message.split()[0]
    return ""


@pytest.mark.parametrize("scope", Scope)
def test_a_foreign_page_gets_to_probes_only(scope: Scope) -> None:
    expected = ("", "") if scope is Scope.PROBE else ("Origin", "Host")
    assert (refused({"origin": "http://evil.example"}, scope=scope), refused({"host": "evil"}, scope=scope)) == expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, ""),
        ({"origin": "http://localhost:8080"}, ""),
        ({"origin": "http://localhost:3000"}, "Origin"),
        ({"origin": "null"}, "Origin"),
        ({"origin": ""}, "Origin"),
        ({"sec-fetch-site": "cross-site"}, "Origin"),
        ({"sec-fetch-site": "same-site"}, "Origin"),
        ({"sec-fetch-site": "none"}, ""),
        # behind a proxy, which asks for the upstream's name
        ({"host": "127.0.0.1:8080", "origin": "https://app.example", "sec-fetch-site": "same-origin"}, ""),
        ({"host": "app.example", "origin": "https://app.example", "sec-fetch-site": "same-origin"}, "Host"),
    ],
)
def test_pages_of_other_origins(headers: dict[str, str], expected: str) -> None:
    assert refused(headers) == expected


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        (None, "Origin"),
        ("text/plain", "Origin"),
        ("application/x-www-form-urlencoded", "Origin"),
        ("multipart/form-data; boundary=x", "Origin"),
        ("application/json; charset=utf-8", ""),  # a browser asks first, and is told that the page may not
    ],
)
def test_an_unasked_body_of_a_foreign_page_is_refused_at_every_address_where_any_type_is_taken(
    content_type: str | None, expected: str
) -> None:
    typed = {} if content_type is None else {"content-type": content_type}
    for foreign in ({"origin": "http://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}):
        assert refused({**foreign, **typed}, EVERYWHERE, any_type=True) == expected
        assert refused({**foreign, **typed}, EVERYWHERE) == ""
    assert refused(typed, EVERYWHERE, any_type=True) == ""  # a program's
    own = {"host": "models.example", "origin": "http://models.example"}
    assert refused({**own, **typed}, EVERYWHERE, any_type=True) == ""


def test_somebody_may_follow_a_link() -> None:
    assert refused({"sec-fetch-site": "cross-site"}, method="GET") == ""


@pytest.mark.parametrize(
    "host",
    [
        "",
        "localhost",
        "localhost.",
        "LOCALHOST:1",
        "a.localhost:8080",
        "127.0.0.1",
        "[::1]:8080",
        "host.docker.internal",
    ],
)
def test_names_that_no_page_can_have(host: str) -> None:
    assert refused({"host": host}) == ""


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "xlocalhost", "internal."]
)
def test_names_that_a_page_may_have(host: str) -> None:
    assert refused({"host": host}) == "Host"
    assert refused({"host": host}, EVERYWHERE) == ""
    assert refused({"host": host}, EVERYWHERE, Scope.MANAGE) == "Host"


@pytest.mark.parametrize(
    ("allowed", "host", "expected"),
    [
        ("models.example", "models.example:8080", ""),
        ("models.example", "MODELS.example.", ""),
        ("models.example, other.example", "other.example", ""),
        ("models.example", "a.models.example", "Host"),
        ("*.example", "a.models.example", ""),
        ("*.example", "example", "Host"),
        ("*.models.example", "notmodels.example", "Host"),
        ("*", "anything", ""),
    ],
)
@pytest.mark.parametrize("address", [LOOPBACK, EVERYWHERE])
def test_allowed_hosts(address: Address, allowed: str, host: str, expected: str) -> None:
    assert refused({"host": host}, address, allowed_hosts=allowed) == expected


@pytest.mark.parametrize(
    ("allowed", "origin", "expected"),
    [
        ("https://a.example", "https://a.example", ("", "")),
        ("https://A.example , http://b.example:3000", "http://b.example:3000", ("", "")),
        ("https://a.example", "http://a.example", ("Origin", "Origin")),
        ("https://a.example", "https://a.example.evil", ("Origin", "Origin")),
        ("*", "https://evil.example", ("", "Origin")),
        ("*", "null", ("", "Origin")),
    ],
)
def test_allowed_origins_of_inference_and_of_management(allowed: str, origin: str, expected: tuple[str, str]) -> None:
    refusals = [
        refused({"origin": origin}, scope=scope, cors_allowed_origin=allowed) for scope in (Scope.INFER, Scope.MANAGE)
    ]
    assert tuple(refusals) == expected


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with running(cors_allowed_origin="https://app.example") as made:
        yield made


EVIL = {"Origin": "http://evil.example", "Content-Type": "text/plain"}
#: Where each dialect has the message of an error.
SHAPES = {
    "/invocations": "message",
    "/v1/chat/completions": "error.message",
    "/generate": "error",
    "/v2/models/m/infer": "error",
}


@pytest.mark.parametrize(("path", "where"), SHAPES.items())
async def test_a_simple_request_of_a_foreign_page_is_refused_in_the_routes_shape(
    site: Site, path: str, where: str
) -> None:
    for headers in (EVIL, {"Host": "evil.example", "Content-Type": "text/plain"}):
        answer = await site.client.post(path, content=b"{}", headers=headers)
        assert answer.status_code == 403
        told: Any = answer.json()
        for step in where.split("."):
            told = told[step]
        assert "evil.example" in told
        assert "access-control-allow-origin" not in answer.headers
    assert (await site.client.get("/ping", headers={**EVIL, "Host": "evil.example"})).status_code == 200
    assert (await site.client.get("/metrics", headers=EVIL)).status_code == 403


async def test_ollamas_api_takes_json_of_any_type_but_not_from_foreign_pages() -> None:
    async with running(inference_address=Address("0.0.0.0", 0)) as site:
        for typed in ({}, {"Content-Type": "application/x-www-form-urlencoded"}, {"Content-Type": "text/plain"}):
            answer = await site.client.post("/api/generate", content=b"{}", headers=typed)
            assert answer.status_code == 200 and answer.json()["headers"]["content-type"] == "application/json"
            foreign = {"Origin": "http://evil.example", **typed}
            for path in ("/api/generate", "/api/show", "/api/pull"):
                answer = await site.client.post(path, content=b"{}", headers=foreign)
                assert (answer.status_code, "evil.example" in answer.json()["error"]) == (403, True)
        sent = await site.client.post("/invocations", content=b"{}", headers={"Content-Type": "text/plain"})
        assert sent.json()["headers"]["content-type"] == "text/plain"  # other APIs go by the type


async def test_files_of_batches_are_no_foreign_pages(tmp_path: Path) -> None:
    async with serving(tmp_path / "batches") as (site, _):
        for path in ("/v1/files", "/v1/batches"):
            assert (await site.client.get(path)).status_code == 200
            assert (await site.client.get(path, headers={"Host": "evil.example"})).status_code == 403
        upload = await site.client.post(
            "/v1/files", files={"file": b"{}"}, data={"purpose": "batch"}, headers=dict(list(EVIL.items())[:1])
        )
        assert upload.status_code == 403


async def test_an_allowed_page_asks_sends_and_reads(site: Site) -> None:
    page = {"Origin": "https://app.example"}
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    asked = await site.client.options("/v1/chat/completions", headers={**page, **asks})
    assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, "https://app.example")
    assert "POST" in asked.headers["access-control-allow-methods"]
    assert asked.headers["access-control-allow-headers"] == "authorization,content-type"
    answer = await site.client.post("/invocations", json={"do": "headers", "vary": "Accept"}, headers=page)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "https://app.example")
    assert answer.headers["vary"] == "Origin, Accept"
    foreign = await site.client.options("/v1/chat/completions", headers={**asks, "Origin": "https://evil.example"})
    assert [name for name in foreign.headers if name.startswith("access-control")] == []
    assert foreign.headers["vary"] == "Origin"
