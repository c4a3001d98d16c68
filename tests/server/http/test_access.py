"""Who gets to what manages: table by table, and at real addresses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from djl_python.config import Address, ServerConfig
from djl_python.core.access.scopes import Scope
from djl_python.core.errors import ForbiddenError, RouteError
from djl_python.dialects.shared.base import Kind, Route
from djl_python.server.access.clients import UNIX
from djl_python.server.http.access import Access, Door, Rights, doors
from tests.server.harness import Site, running

MANAGES = Route("POST", "/models", "register", Kind.PAGE, scope=Scope.MANAGE)
SHOWS = Route("GET", "/ping", "ping", Kind.PAGE, scope=Scope.PROBE)
ANSWERS = Route("POST", "/invocations", "predict")
OTHER = Address(port=8081)
LOCAL, OPENED = ServerConfig(), ServerConfig(management_access="open")
APART = ServerConfig(management_address=OTHER)
PUBLIC = ServerConfig(management_address=Address("0.0.0.0", 8081))


def refusal(access: Access, client: str = "127.0.0.1", method: str = "POST", **headers: str) -> str:
    """Why a request that manages is refused; "" if it is not."""
    named = {"host": "localhost:8080"} | {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        access.check(MANAGES, method, named, client)
    except ForbiddenError as exc:
        return exc.message
    return ""


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LOCAL, {Door.LOCAL: Address()}),
        (OPENED, {Door.OPEN: Address()}),
        (ServerConfig(management_address=Address()), {Door.OPEN: Address()}),  # as DJL's container has it
        (APART, {Door.INFERENCE: Address(), Door.MANAGEMENT: OTHER}),
    ],
)
def test_doors(config: ServerConfig, expected: dict[Door, Address]) -> None:
    assert doors(config) == expected


@pytest.mark.parametrize("door", [Door.INFERENCE, Door.MANAGEMENT])
def test_pages_that_only_show_are_at_both_addresses(door: Door) -> None:
    Access(door, APART).check(SHOWS, "GET", {}, "10.0.0.1")


@pytest.mark.parametrize(
    ("door", "config", "client", "rights"),
    [
        (Door.LOCAL, LOCAL, "127.0.0.1", Rights(manages=True, generates=True)),
        (Door.LOCAL, LOCAL, "10.0.0.1", Rights(manages=False, generates=True)),
        (Door.OPEN, OPENED, "10.0.0.1", Rights(manages=True, generates=True)),
        (Door.INFERENCE, APART, "127.0.0.1", Rights(manages=False, generates=True)),
        (Door.MANAGEMENT, PUBLIC, "10.0.0.1", Rights(manages=True, generates=False)),
    ],
)
def test_a_pages_rights_depend_on_address_and_client(
    door: Door, config: ServerConfig, client: str, rights: Rights
) -> None:
    assert Access(door, config).rights({"host": "127.0.0.1:8080"}, client) == rights


def test_requests_for_models_are_at_the_address_for_inference() -> None:
    Access(Door.INFERENCE, APART).check(ANSWERS, "POST", {}, "10.0.0.1")
    with pytest.raises(RouteError, match="/invocations is at inference_address"):
        Access(Door.MANAGEMENT, APART).check(ANSWERS, "POST", {}, "127.0.0.1")


@pytest.mark.parametrize("client", ["127.0.0.1", "127.9.9.9", "::1", "::1%lo", "::ffff:127.0.0.1", UNIX])
def test_clients_on_this_machine(client: str) -> None:
    assert refusal(Access(Door.LOCAL, LOCAL), client) == ""


@pytest.mark.parametrize("client", ["10.0.0.1", "192.168.1.2", "8.8.8.8", "fe80::1%eth0", "::ffff:10.0.0.1"])
def test_clients_elsewhere(client: str) -> None:
    refused = refusal(Access(Door.LOCAL, LOCAL), client, x_forwarded_for="127.0.0.1", x_real_ip="127.0.0.1")
    assert "management_access=open opens it to all" in refused and "management_address" in refused
    everywhere = ServerConfig(management_access="open", inference_address=Address("0.0.0.0"))
    for door, config in ((Door.OPEN, everywhere), (Door.MANAGEMENT, PUBLIC)):
        assert refusal(Access(door, config), client, host="models.example.com") == ""
    assert refusal(Access(Door.INFERENCE, APART), client) == "POST /models is answered at management_address only"


@pytest.mark.parametrize("name", ["x_forwarded_for", "forwarded", "x_real_ip", "via", "cf_connecting_ip", "cdn_loop"])
@pytest.mark.parametrize("client", ["127.0.0.1", UNIX])
def test_a_proxy_on_this_machine_is_not_its_client(client: str, name: str) -> None:
    assert "for clients on the server's machine" in refusal(Access(Door.LOCAL, LOCAL), client, **{name: "127.0.0.1"})


class TestPages:
    """What a browser on this machine sends for the pages of others."""

    @pytest.mark.parametrize(
        ("door", "config"),
        [
            (Door.LOCAL, LOCAL),
            (Door.OPEN, OPENED),
            (Door.MANAGEMENT, APART),
            (Door.LOCAL, ServerConfig(cors_allowed_origin="*")),  # opened to read answers, not to change the server
        ],
    )
    @pytest.mark.parametrize(
        "origin", ["http://evil.example", "http://localhost:3000", "https://localhost", "null", ""]
    )
    @pytest.mark.parametrize("method", ["POST", "GET"])
    def test_of_another_origin(self, door: Door, config: ServerConfig, origin: str, method: str) -> None:
        assert "expected this server's own" in refusal(Access(door, config), method=method, origin=origin)

    @pytest.mark.parametrize("site", ["cross-site", "same-site"])
    def test_without_an_origin(self, site: str) -> None:
        assert "(of another site)" in refusal(Access(Door.LOCAL, LOCAL), sec_fetch_site=site)
        assert refusal(Access(Door.LOCAL, LOCAL), method="GET", sec_fetch_site=site) == ""  # somebody follows a link

    def test_of_its_own_and_of_the_one_that_is_configured(self) -> None:
        assert refusal(Access(Door.LOCAL, LOCAL), origin="http://LOCALHOST:8080") == ""
        config = ServerConfig(cors_allowed_origin="https://console.example")
        assert refusal(Access(Door.LOCAL, config), origin="https://console.example") == ""
        assert refusal(Access(Door.LOCAL, config), origin="https://console.example.evil") != ""

    @pytest.mark.parametrize("host", ["evil.example:8080", "evil.example", "localhost.evil.example", "127.0.0.1.evil"])
    def test_a_foreign_host_name_is_refused(self, host: str) -> None:
        """DNS rebinding: the page's own name leads here, so that its origin is the server's."""
        origin = f"http://{host}"
        for door, config in ((Door.LOCAL, LOCAL), (Door.MANAGEMENT, APART)):
            assert "expected localhost, an IP address, or one of allowed_hosts" in refusal(
                Access(door, config), host=host, origin=origin
            )
        assert refusal(Access(Door.LOCAL, LOCAL), UNIX, host=host) == ""  # no browser gets there

    @pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1:8080", "[::1]:8080", "10.0.0.1", ""])
    def test_names_of_this_machine(self, host: str) -> None:
        assert refusal(Access(Door.LOCAL, LOCAL), host=host) == ""

    def test_the_name_that_is_configured(self) -> None:
        config = ServerConfig(inference_address=Address("inner.example", 8080))
        assert refusal(Access(Door.LOCAL, config), host="inner.example:8080") == ""


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with running() as made:
        yield made


STATUS = {"DELETE /models/none": 404, "GET /models": 200, "POST /v2/repository/models/none/load": 404}


@pytest.mark.parametrize(("line", "status"), STATUS.items())
async def test_a_refusal_has_its_routes_shape(site: Site, line: str, status: int) -> None:
    method, path = line.split()
    assert (await site.client.request(method, path)).status_code == status
    refused = await site.client.request(method, path, headers={"Origin": "http://evil.example"})
    assert refused.status_code == 403
    told: dict[str, Any] = refused.json()
    assert "Origin http://evil.example" in told["error" if "/v2/" in path else "message"]
    assert set(told) == ({"error"} if "/v2/" in path else {"code", "type", "message"})


async def test_a_simple_request_of_a_page_changes_nothing(site: Site) -> None:
    """What a form (of another site) sends without asking first."""
    for content_type in ("application/x-www-form-urlencoded", "text/plain"):
        answer = await site.client.post(
            "/models",
            content=b"url=/tmp/evil&model_name=evil",
            headers={"content-type": content_type, "Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
        )
        assert answer.status_code == 403
    assert [model.config.name for model in site.registry.models] == ["m"]


async def test_a_body_that_is_held_back_is_not_asked_for(site: Site) -> None:
    async with site.connect() as (reader, writer):
        writer.write(
            b"POST /models HTTP/1.1\r\nHost: evil\r\nOrigin: http://evil\r\nExpect: 100-continue\r\n"
            b"Content-Length: 5\r\n\r\n"
        )
        assert (await reader.readline()).startswith(b"HTTP/1.1 403 ")


async def test_a_unix_socket_is_this_machines(tmp_path: Path) -> None:
    async with running(inference_address=Address("", 0, str(tmp_path / "s"))) as site:
        assert site.port == 0
        transport = httpx.AsyncHTTPTransport(uds=str(tmp_path / "s"))
        async with httpx.AsyncClient(transport=transport, base_url="http://anything") as client:
            assert (await client.get("/models")).status_code == 200
    await asyncio.sleep(0)
