"""Connections as they are accepted: without descriptors, and when there are too many."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Iterator

import pytest
from tornado.httputil import HTTPServerConnectionDelegate

from djl_python.server.connections.limits import Connections
from djl_python.server.http import server as http_server
from djl_python.server.http.server import HttpServer
from tests.server.harness import until


class Failing(socket.socket):
    """A listening socket that fails with each of these errors before it accepts a connection."""

    errors: list[int]

    def accept(self) -> tuple[socket.socket, object]:
        if self.errors:
            number = self.errors.pop(0)
            raise OSError(number, os.strerror(number))
        return super().accept()


@contextlib.contextmanager
def listening(*errors: int) -> Iterator[Failing]:
    with Failing() as sock:
        sock.errors = list(errors)
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        sock.setblocking(False)
        yield sock


@pytest.mark.parametrize(
    ("number", "waits_s", "logged"),
    [
        (errno.EMFILE, 0.35, ["no connection can be accepted: Too many open files; the next try is in 0.2 s"] * 2),
        (errno.ECONNABORTED, 0, []),
    ],
)
async def test_a_connection_that_can_not_be_accepted_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int, waits_s: float, logged: list[str]
) -> None:
    monkeypatch.setattr(http_server, "EXHAUSTED_S", 0.2)
    accepted = asyncio.Event()
    server = HttpServer(HTTPServerConnectionDelegate())

    def serve(connection: socket.socket, address: object) -> None:
        connection.close()
        accepted.set()

    monkeypatch.setattr(server, "serve_connection", serve)
    with listening(number, number) as sock, socket.socket() as client:
        server.add_sockets([sock])
        begun = asyncio.get_running_loop().time()
        client.connect(sock.getsockname())
        await asyncio.wait_for(accepted.wait(), 10)
        assert asyncio.get_running_loop().time() - begun > waits_s
        server.stop()
    assert caplog.messages == logged


async def test_a_server_may_stop_while_it_waits_for_descriptors(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_server, "EXHAUSTED_S", 0.05)
    server = HttpServer(HTTPServerConnectionDelegate())
    with listening(errno.EMFILE) as sock, socket.socket() as client:
        address = sock.getsockname()
        server.add_sockets([sock])
        client.connect(address)
        await until(lambda: bool(caplog.messages))
        server.stop()
        await asyncio.sleep(0.1)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
    assert len(caplog.messages) == 1


async def test_a_silent_connection_makes_room_only_for_one_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a descriptor for one connection, none is closed until a second client wants one."""
    checks: list[int] = []

    def one_left(some: int) -> None:
        checks.append(some)
        if len(checks) > 1:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    asked = asyncio.Event()
    connections = Connections()
    monkeypatch.setattr(connections, "make_room", asked.set)
    monkeypatch.setattr(http_server, "check_descriptors", one_left)
    server = HttpServer(HTTPServerConnectionDelegate(), connections)
    monkeypatch.setattr(server, "serve_connection", lambda connection, address: connection.close())
    with listening() as sock, socket.socket() as first, socket.socket() as second:
        server.add_sockets([sock])
        first.connect(sock.getsockname())
        await until(lambda: len(checks) == 2)
        assert not asked.is_set()
        second.connect(sock.getsockname())
        await asyncio.wait_for(asked.wait(), 10)
        server.stop()
