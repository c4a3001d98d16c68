import asyncio
import contextlib
import os
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from djl_python.config import ServerConfig
from djl_python.core.errors import ConfigError
from djl_python.ipc import joining
from djl_python.ipc.channel import Channel
from djl_python.ipc.framing import MAX_FRAME_BYTES
from djl_python.ipc.joining import Endpoint, JoiningPort, join
from djl_python.ipc.protocol import AnyMessage, Beat
from djl_python.ipc.remote_protocol import Ticket
from djl_python.server.tls.self_signed import make_pair
from djl_python.server.tls.workers import worker_endpoint
from tests.server.harness import until


@contextlib.asynccontextmanager
async def listening(endpoint: Endpoint = Endpoint()) -> AsyncIterator[JoiningPort]:  # noqa: B008
    port = JoiningPort(endpoint)
    port.listen("127.0.0.1")
    try:
        yield port
    finally:
        port.close()


@pytest.fixture(autouse=True)
def opened() -> Iterator[None]:
    """Close what a test has left open."""
    yield
    while _opened:
        _opened.pop().close()


_opened: list[socket.socket] = []


async def received(sock: socket.socket, length: int = 1) -> bytes:
    """What comes next; b"" if the other side has closed, or broken off."""
    sock.setblocking(False)
    try:
        return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(sock, length), 5)
    except ConnectionError:
        return b""


async def connected(port: JoiningPort) -> socket.socket:
    """A connection that has proved nothing."""
    sock = socket.socket()
    _opened.append(sock)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, port.address)
    return sock


async def talks(theirs: socket.socket, ours: socket.socket) -> bool:
    """Whether messages pass both ways."""
    got: asyncio.Queue[list[AnyMessage]] = asyncio.Queue()
    channels = [Channel(got.put_nowait, lambda: None) for _ in range(2)]
    for channel, sock in zip(channels, (theirs, ours), strict=True):
        await channel.attach(sock)
    for channel, answers in zip(channels, (True, False), strict=True):
        channel.send(Beat(answers))
    messages = [message for _ in channels for message in await asyncio.wait_for(got.get(), 5)]
    for channel in channels:
        channel.close()
    return {message.answers for message in messages if isinstance(message, Beat)} == {True, False}


async def test_the_holder_of_a_ticket_joins_once() -> None:
    async with listening() as port:
        ticket, joined = port.expect()
        theirs = await join(ticket)
        assert await talks(theirs, await joined)
        with pytest.raises(ConnectionRefusedError, match="does not know this ticket"):
            await join(ticket)
        assert port.refused == 1


async def test_a_ticket_does_not_show_its_token_and_does_not_send_it() -> None:
    ticket = Ticket("127.0.0.1", 1, b"i" * 16, b"token" * 6)
    assert "token" not in repr(ticket) and "token" not in str([ticket])
    async with listening() as port:
        ticket, joined = port.expect()
        seen = b""
        relay = socket.create_server(("127.0.0.1", 0))
        relay.setblocking(False)
        loop = asyncio.get_running_loop()

        async def pass_on() -> None:
            nonlocal seen
            theirs, _ = await loop.sock_accept(relay)
            _opened.append(theirs)
            ours = await connected(port)
            for source, sink, length in ((theirs, ours, 56), (ours, theirs, 64), (theirs, ours, 32)):
                piece = await received(source, length)
                seen += piece
                await loop.sock_sendall(sink, piece)

        passing = asyncio.create_task(pass_on())
        theirs = await join(msgspec.structs.replace(ticket, port=relay.getsockname()[1]))
        _opened.append(await joined)
        await passing
        assert len(seen) == 56 + 64 + 32 and ticket.id in seen and ticket.token not in seen
        theirs.close()
        relay.close()


@pytest.mark.parametrize("greeting", [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" + bytes(64), b"DJLJOIN1" + bytes(48)])
async def test_a_connection_without_a_ticket_is_cut_without_an_answer(greeting: bytes) -> None:
    async with listening() as port:
        port.expect()
        sock = await connected(port)
        await asyncio.get_running_loop().sock_sendall(sock, greeting)
        assert await received(sock) == b""
        assert port.refused == 1


async def test_a_tickets_id_alone_is_not_enough() -> None:
    async with listening() as port:
        ticket, joined = port.expect()
        sock = await connected(port)
        await asyncio.get_running_loop().sock_sendall(sock, b"DJLJOIN1" + ticket.id + bytes(32))
        assert len(await received(sock, 64)) == 64
        await asyncio.get_running_loop().sock_sendall(sock, bytes(32))
        assert await received(sock) == b"" and not joined.done()
        assert await talks(await join(ticket), await joined)  # it is still good


async def test_a_wrong_token_is_noticed_by_its_holder() -> None:
    async with listening() as port:
        ticket, joined = port.expect()
        with pytest.raises(ConnectionRefusedError, match="does not know the ticket's token"):
            await join(msgspec.structs.replace(ticket, token=bytes(32)))
        await until(lambda: port.refused == 1)
        assert not joined.done()


async def test_a_half_open_connection_is_cut_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "PROOF_TIMEOUT_S", 0.05)
    async with listening() as port:
        silent, slow = await connected(port), await connected(port)
        await asyncio.get_running_loop().sock_sendall(slow, b"DJLJOIN1")
        assert await received(silent) == await received(slow) == b""


async def test_half_open_connections_leave_room_for_holders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "MAX_UNPROVED", 2)
    async with listening() as port:
        idle = [await connected(port) for _ in range(4)]
        await until(lambda: port.refused >= 2)
        ticket, joined = port.expect()
        assert await talks(await join(ticket), await joined)
        assert await received(idle[0]) == b""
        for sock in idle:
            sock.close()


async def test_connections_that_come_all_at_once_are_held_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening() as port:
        monkeypatch.setattr(joining, "MAX_UNPROVED", 2)
        _opened.extend(socket.create_connection(port.address) for _ in range(20))
        first, last = _opened[0], _opened[-1]
        await until(lambda: port.refused == 18, 2)
        assert await received(first) == b""
        last.setblocking(False)
        with pytest.raises(BlockingIOError):  # it is still open
            last.recv(1)


async def test_a_ticket_that_nobody_waits_for_is_void() -> None:
    async with listening() as port:
        ticket, joined = port.expect()
        joined.cancel()
        with pytest.raises(ConnectionRefusedError):
            await join(ticket)


async def test_a_frame_beyond_the_limit_ends_the_connection() -> None:
    async with listening() as port:
        ticket, joined = port.expect()
        theirs, lost = await join(ticket), asyncio.Event()
        _opened.append(theirs)
        channel = Channel(lambda _: None, lost.set)
        await channel.attach(await joined)
        await asyncio.get_running_loop().sock_sendall(theirs, struct.pack("<I", MAX_FRAME_BYTES + 1))
        await asyncio.wait_for(lost.wait(), 5)
        assert await received(theirs) == b""


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, Path]]:
    """Two certificates for a host that nobody has, and their keys."""
    folder = tmp_path_factory.mktemp("pairs")
    made = [(folder / f"{name}.pem", folder / f"{name}-key.pem") for name in "ab"]
    for certificate, key in made:
        make_pair(certificate, key, ["front-end.example"], 1)
    return made


def endpoint_of(pair: tuple[Path, Path]) -> Endpoint:
    certificate, key = map(str, pair)
    return worker_endpoint(ServerConfig(worker_certificate_file=certificate, worker_private_key_file=key))


async def test_with_a_certificate_all_is_encrypted(pairs: list[tuple[Path, Path]]) -> None:
    async with listening(endpoint_of(pairs[0])) as port:
        ticket, joined = port.expect()
        assert "PRIVATE" not in ticket.certificate
        assert await talks(await join(ticket), await joined)
        ticket, joined = port.expect()
        theirs, ours = await join(ticket), await joined
        theirs.close()
        assert await received(ours) == b""  # the end of one side passes through
        ours.close()
        ticket, joined = port.expect()
        with pytest.raises((OSError, ssl.SSLError)):  # without TLS
            await join(msgspec.structs.replace(ticket, certificate=""))
        with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
            await join(msgspec.structs.replace(ticket, certificate=pairs[1][0].read_text()))
        assert not joined.done()


def connections() -> set[tuple[int, Any, Any]]:
    """This process's TCP connections, of which other tests may have left some: descriptors and both addresses."""
    every = psutil.Process().net_connections("tcp")
    return {(each.fd, each.laddr, each.raddr) for each in every if each.status == psutil.CONN_ESTABLISHED}


def unanswered_ms(made: set[tuple[int, Any, Any]]) -> set[int]:
    """For how long the system lets what was sent over them be unanswered; 0: any time."""
    timeouts = set()
    for descriptor, _, _ in made:
        with socket.socket(fileno=os.dup(descriptor)) as sock:
            timeouts.add(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
    return timeouts


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has no such limit")
@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("may_stall", [False, True])
async def test_only_who_always_reads_is_cut_for_not_reading(
    pairs: list[tuple[Path, Path]], secure: bool, may_stall: bool
) -> None:
    before = connections()
    async with listening(endpoint_of(pairs[0]) if secure else Endpoint()) as port:
        ticket, joined = port.expect(may_stall=may_stall)
        _opened.append(await join(ticket, may_stall=may_stall))
        _opened.append(await joined)
        made = connections() - before
        assert len(made) == 2 and unanswered_ms(made) == {0 if may_stall else 20_000}


async def test_a_cut_connection_does_not_stay_open_for_tls_to_end(pairs: list[tuple[Path, Path]]) -> None:
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    async with listening(endpoint_of(pairs[0])) as port:
        secure = await asyncio.to_thread(trusting.wrap_socket, socket.create_connection(port.address))
        secure.sendall(bytes(56))  # no ticket
        sock = socket.socket(fileno=secure.detach())
        _opened.append(sock)
        async with asyncio.timeout(2):
            while await received(sock, 4096):  # TLS's own, which nobody answers
                pass
        assert port.refused == 1


async def test_of_a_chain_only_the_front_ends_own_certificate_is_trusted(
    pairs: list[tuple[Path, Path]], tmp_path: Path
) -> None:
    own, other = pairs
    chain = tmp_path / "chain.pem"
    chain.write_text(own[0].read_text() + other[0].read_text())
    async with listening(endpoint_of((chain, own[1]))) as port, listening(endpoint_of(other)) as impostor:
        ticket, joined = port.expect()
        assert await talks(await join(ticket), await joined)
        ticket, joined = impostor.expect()
        trusting = endpoint_of((chain, own[1])).certificate
        with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
            await join(msgspec.structs.replace(ticket, certificate=trusting))
        assert not joined.done()


def test_where_workers_connect(pairs: list[tuple[Path, Path]]) -> None:
    shown = {
        address: (endpoint.host, endpoint.port)
        for address in ("", "10.0.0.7", ":7000", "0.0.0.0:7000", "[::1]:7000", "[::1]", "front.example")
        if (endpoint := worker_endpoint(ServerConfig(worker_address=address)))
    }
    assert shown == {
        "": ("", 0),
        "10.0.0.7": ("10.0.0.7", 0),
        ":7000": ("", 7000),
        "0.0.0.0:7000": ("0.0.0.0", 7000),
        "[::1]:7000": ("::1", 7000),
        "[::1]": ("::1", 0),
        "front.example": ("front.example", 0),
    }
    with pytest.raises(ConfigError, match="expected a certificate and its private key"):
        endpoint_of((pairs[0][0], pairs[1][1]))
