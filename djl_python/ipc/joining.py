"""How a process on another machine becomes the front end's: it connects to a port with a ticket that is good once.

`JoiningPort` runs in the front end's event loop, `join` in an agent's. Both sides prove that they know the ticket's
token, which does not cross the network, each with an HMAC over both sides' random numbers. Until then nothing is parsed
but bytes of fixed lengths, and at most `MAX_UNPROVED` connections are held, none for longer than `PROOF_TIMEOUT_S`.

    joining process                        front end
    "DJLJOIN1", id, random number   ->
                                    <-     random number, HMAC("front end")
    HMAC("agent")                   ->

An unknown id is cut at once. With a certificate all of it goes through TLS; the joining process trusts that certificate
alone (the first of a chain), whatever host it is made for: the ticket contains it.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import secrets
import socket
import ssl
from dataclasses import dataclass
from typing import Final

from .remote_protocol import Ticket
from .tls_relay import secured

log = logging.getLogger(__name__)

PROOF_TIMEOUT_S: Final = 10.0
#: The most connections that have proved nothing yet: with one more, the oldest is cut.
MAX_UNPROVED: Final = 64
#: How long nothing is logged about refused connections after the last such line.
_QUIET_S: Final = 10.0
_MAGIC: Final = b"DJLJOIN1"
_ID_BYTES, _RANDOM_BYTES, _TOKEN_BYTES, _PROOF_BYTES = 16, 32, 32, 32
#: A peer that has gone without a word is noticed after three probes, seconds apart, that nobody answers.
_PROBE_EVERY_S, _PROBES = 5, 3


@dataclass(frozen=True)
class Endpoint:
    """Where processes of other machines connect.

    Attributes:
        host, port: what is listened on; port 0: any free one.
        context: the front end's certificate and key; None: connections are not encrypted.
        certificate: that certificate, in PEM.
    """

    host: str = ""
    port: int = 0
    context: ssl.SSLContext | None = None
    certificate: str = ""


@dataclass(frozen=True)
class _Expected:
    """A ticket that is good, and what its holder's connection goes to."""

    ticket: Ticket
    joined: asyncio.Future[socket.socket]
    may_stall: bool


class JoiningPort:
    """A port that takes the holders of tickets, and nobody else.

    Attributes:
        refused: how many connections were cut because they proved nothing.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.refused = 0
        self._endpoint = endpoint
        self._loop = asyncio.get_running_loop()
        self._expected: dict[bytes, _Expected] = {}
        self._unproved: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._host = ""
        self._quiet_until = 0.0

    @property
    def listening(self) -> bool:
        """Whether `listen` has been called."""
        return self._listener is not None

    @property
    def address(self) -> tuple[str, int]:
        """Where others connect."""
        assert self._listener is not None
        return self._host, self._listener.getsockname()[1]

    def listen(self, host: str) -> None:
        """Open the port.

        Args:
            host: this machine's address for other machines; the socket listens there unless the endpoint names one.

        Raises:
            OSError: the address is not this machine's, or the port is taken.
        """
        bound = self._endpoint.host or host
        self._host = host if bound in ("0.0.0.0", "::") else bound
        family = socket.AF_INET6 if ":" in bound else socket.AF_INET
        listener = socket.create_server((bound, self._endpoint.port), family=family, backlog=MAX_UNPROVED)
        listener.setblocking(False)
        self._listener = listener
        self._accepting = self._loop.create_task(self._accept(listener))

    def expect(self, *, may_stall: bool = False) -> tuple[Ticket, asyncio.Future[socket.socket]]:
        """A new ticket, and the connection of whoever holds it. It is good until it is used, or the future cancelled.

        The connected socket belongs to the caller.

        Args:
            may_stall: whether its holder may read nothing for long, and counts as there: see `let_stall`.
        """
        host, port = self.address
        ticket = Ticket(
            host,
            port,
            secrets.token_bytes(_ID_BYTES),
            secrets.token_bytes(_TOKEN_BYTES),
            self._endpoint.certificate if self._endpoint.context is not None else "",
        )
        joined: asyncio.Future[socket.socket] = self._loop.create_future()
        self._expected[ticket.id] = _Expected(ticket, joined, may_stall)
        joined.add_done_callback(lambda _: self._expected.pop(ticket.id, None))
        return ticket, joined

    def close(self) -> None:
        """Close the port, and the connections that have proved nothing yet."""
        if self._accepting is not None:
            self._accepting.cancel()
        for expected in list(self._expected.values()):
            expected.joined.cancel()
        for task in self._unproved:
            task.cancel()
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, address = await self._loop.sock_accept(listener)
            except OSError as exc:  # no descriptor is left, or the peer has gone again
                log.warning("a connection to the port for workers was lost: %s", exc.strerror)
                await asyncio.sleep(1.0)
                continue
            while len(self._unproved) >= MAX_UNPROVED:
                oldest = next(iter(self._unproved))
                del self._unproved[oldest]
                oldest.cancel()
            task = self._loop.create_task(self._admit(sock, address[0]))
            self._unproved[task] = None
            task.add_done_callback(self._forget)
            await asyncio.sleep(0)  # while connections wait, `sock_accept` lets no task run: neither these nor the cut

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._unproved.pop(task, None)

    async def _admit(self, sock: socket.socket, peer: str) -> None:
        """Take a connection, or cut it."""
        admitted, raw, cut = False, sock, sock.close
        try:
            sock.setblocking(False)
            notice_loss(sock)
            async with asyncio.timeout(PROOF_TIMEOUT_S):
                if self._endpoint.context is not None:
                    sock, cut = await secured(sock, self._endpoint.context, server_side=True, within_s=PROOF_TIMEOUT_S)
                    sock.setblocking(False)
                admitted = await self._is_holder(sock, raw)
        except (OSError, EOFError, TimeoutError) as exc:
            log.debug("%s did not join: %s", peer, exc)
        finally:
            if not admitted:
                cut()
                sock.close()
                self._note_refusal(peer)

    def _note_refusal(self, peer: str) -> None:
        self.refused += 1
        if self._loop.time() >= self._quiet_until:  # a scan of the port does not fill the log
            self._quiet_until = self._loop.time() + _QUIET_S
            log.warning("a connection from %s to the port for workers had no ticket: closed", peer)

    async def _is_holder(self, sock: socket.socket, raw: socket.socket) -> bool:
        """Whether the peer has proved that it holds a ticket; then whoever expects it has the socket.

        Args:
            raw: what carries the bytes, with TLS encrypted; else the same.
        """
        greeting = await _exactly(self._loop, sock, len(_MAGIC) + _ID_BYTES + _RANDOM_BYTES)
        identity, theirs = greeting[len(_MAGIC) : -_RANDOM_BYTES], greeting[-_RANDOM_BYTES:]
        expected = self._expected.get(identity) if greeting.startswith(_MAGIC) else None
        if expected is None:
            return False
        ticket, joined = expected.ticket, expected.joined
        ours = os.urandom(_RANDOM_BYTES)
        await self._loop.sock_sendall(sock, ours + _proof(ticket, b"front end", theirs, ours))
        proof = await _exactly(self._loop, sock, _PROOF_BYTES)
        if joined.done() or not hmac.compare_digest(proof, _proof(ticket, b"agent", theirs, ours)):
            return False
        if expected.may_stall:
            let_stall(raw)
        joined.set_result(sock)
        return True


async def join(ticket: Ticket, *, may_stall: bool = False) -> socket.socket:
    """Connect with a ticket; returns the connected socket, which speaks frames.

    Args:
        may_stall: as the front end expects it, see `JoiningPort.expect`.

    Raises:
        OSError: no process listens there, or not the one that made the ticket: it does not know the token, or has
            another certificate.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(PROOF_TIMEOUT_S):
        family, kind, protocol, _, address = (
            await loop.getaddrinfo(ticket.host, ticket.port, type=socket.SOCK_STREAM)
        )[0]
        sock = raw = socket.socket(family, kind, protocol)
        cut = sock.close
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, address)
            notice_loss(sock)
            if ticket.certificate:
                sock, cut = await secured(sock, _trusting(ticket), server_side=False, within_s=PROOF_TIMEOUT_S)
                sock.setblocking(False)
            ours = os.urandom(_RANDOM_BYTES)
            await loop.sock_sendall(sock, _MAGIC + ticket.id + ours)
            answer = await _exactly(loop, sock, _RANDOM_BYTES + _PROOF_BYTES)
            theirs, proof = answer[:_RANDOM_BYTES], answer[_RANDOM_BYTES:]
            if not hmac.compare_digest(proof, _proof(ticket, b"front end", ours, theirs)):
                raise ConnectionRefusedError(f"{ticket.host}:{ticket.port} does not know the ticket's token")
            await loop.sock_sendall(sock, _proof(ticket, b"agent", ours, theirs))
            if may_stall:
                let_stall(raw)
        except EOFError as exc:
            cut()
            sock.close()
            raise ConnectionRefusedError(f"{ticket.host}:{ticket.port} does not know this ticket") from exc
        except BaseException:
            cut()
            sock.close()
            raise
    return sock


def notice_loss(sock: socket.socket) -> None:
    """Have the system probe a TCP connection on which nothing comes, and close it if nobody answers."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _PROBE_EVERY_S),
        ("TCP_KEEPINTVL", _PROBE_EVERY_S),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", 1000 * _PROBE_EVERY_S * (_PROBES + 1)),  # of what was sent, and is not acknowledged
    ):
        if (option := getattr(socket, name, None)) is not None:  # not every system has each
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def let_stall(sock: socket.socket) -> None:
    """Have the system keep a TCP connection whose peer lives and takes nothing, though its limit of time is over.

    For connections beside another one to the same machine, whose peer always reads: that one's end tells of both.
    """
    if (option := getattr(socket, "TCP_USER_TIMEOUT", None)) is not None:
        sock.setsockopt(socket.IPPROTO_TCP, option, 0)


def _trusting(ticket: Ticket) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate itself is trusted, whoever signed it
    context.load_verify_locations(cadata=ticket.certificate)
    return context


def _proof(ticket: Ticket, role: bytes, agents: bytes, front_ends: bytes) -> bytes:
    return hmac.digest(ticket.token, role + ticket.id + agents + front_ends, "sha256")


async def _exactly(loop: asyncio.AbstractEventLoop, sock: socket.socket, length: int) -> bytes:
    received = b""
    while len(received) < length:
        piece = await loop.sock_recv(sock, length - len(received))
        if not piece:
            raise EOFError("the connection was closed")
        received += piece
    return received
