"""The transport for URLs of requests: the addresses that are checked are the ones it connects to."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from aiohttp import web

from djl_python.fetching.addresses import AddressError
from djl_python.fetching.images import CheckedTransport


class Names:
    """A name server whose answers come in order; the last one stays."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """The port of a web server on 127.0.0.1 that answers with the host it was asked for."""

    async def host(request: web.Request) -> web.Response:
        return web.Response(text=request.host)

    app = web.Application()
    app.router.add_get("/", host)
    runner = web.AppRunner(app, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield runner.addresses[0][1]
    await runner.cleanup()


async def ask(url: str, *allowed: str, names: Names) -> str:
    async with httpx2.AsyncClient(transport=CheckedTransport(allowed, names)) as client:
        return (await client.get(url)).text


async def test_the_checked_address_is_connected_to(port: int) -> None:
    names = Names(["127.0.0.1"], ["169.254.169.254"])
    assert await ask(f"http://images.test:{port}/", "images.test", names=names) == f"images.test:{port}"
    assert names.asked == ["images.test"]


async def test_an_answer_that_changes_is_checked_again(port: int) -> None:
    names = Names(["127.0.0.1"], ["169.254.169.254"])
    async with httpx2.AsyncClient(transport=CheckedTransport(["images.test"], names)) as client:
        assert (await client.get(f"http://images.test:{port}/")).status_code == 200
        with pytest.raises(AddressError):
            await client.get(f"http://images.test:{port}/")


async def test_another_address_where_one_does_not_answer(port: int) -> None:
    names = Names(["127.0.0.2", "127.0.0.1"])
    assert await ask(f"http://images.test:{port}/", "images.test", names=names) == f"images.test:{port}"
    with pytest.raises(httpx2.ConnectError):
        await ask(f"http://images.test:{port}/", "images.test", names=Names([]))


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["8.8.8.8", "10.0.0.1"], ["64:ff9b::7f00:1"]])
async def test_a_private_address_only_for_a_host_that_is_named(port: int, addresses: list[str]) -> None:
    with pytest.raises(AddressError, match="not public"):
        await ask(f"http://images.test:{port}/", "*", "other.test", names=Names(addresses))


async def test_metadata_never() -> None:
    with pytest.raises(AddressError):
        await ask("http://images.test/", "images.test", "*", names=Names(["169.254.169.254"]))


async def test_a_host_that_is_not_listed_is_not_even_resolved() -> None:
    names = Names(["8.8.8.8"])
    with pytest.raises(AddressError, match="not in the list"):
        await ask("http://images.test/", "other.test", names=names)
    assert names.asked == []


async def test_proxies_of_the_environment_are_not_used(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    names = Names(["127.0.0.1"])
    assert await ask(f"http://images.test:{port}/", "images.test", names=names) == f"images.test:{port}"


async def test_tls_is_for_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The certificate is for images.test; the connection goes to an address."""
    file = Path(__file__).with_name("images.test.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    asked: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: asked.append(name)

    async def hello(request: web.Request) -> web.Response:
        return web.Response(text=request.host)

    app = web.Application()
    app.router.add_get("/", hello)
    runner = web.AppRunner(app, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    port, names = runner.addresses[0][1], Names(["127.0.0.1"])
    assert await ask(f"https://images.test:{port}/", "images.test", names=names) == f"images.test:{port}"
    with pytest.raises(httpx2.ConnectError, match=r"not valid for 'other\.test'"):
        await ask(f"https://other.test:{port}/", "other.test", names=names)
    assert asked == ["images.test", "other.test"]
    await runner.cleanup()
