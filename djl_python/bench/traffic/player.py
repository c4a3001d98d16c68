"""Plays a recording against servers: each request at its time, whether or not the earlier ones have been answered.

Runs on an event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import httpx2

from .recording import RecordedRequest


@dataclass(frozen=True)
class Played:
    """One server's answer to a request.

    Attributes:
        status: 0: there was no answer, and `failure` says why.
        headers: by their names in lower case.
        first_s, duration_s: seconds from sending the request to the first byte of the answer's body, and to its last.
    """

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    first_s: float = 0.0
    duration_s: float = 0.0
    failure: str = ""


async def play(
    entries: Iterable[RecordedRequest],
    urls: Sequence[str],
    *,
    speed: float,
    headers: Mapping[str, str],
    timeout_s: float,
    most: int,
) -> AsyncIterator[tuple[RecordedRequest, Sequence[Played]]]:
    """Play requests, each to all servers at once; gives each with its answers, in the recording's order.

    Args:
        speed: 2: in half of the time that the recording took.
        headers: headers added to every request, such as one with the API key, which recordings leave out.
        most: requests that are under way at a time; where more would be, later ones wait.
    """
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=64)
    async with httpx2.AsyncClient(timeout=timeout_s, limits=limits, follow_redirects=False) as client:
        without_defaults(client)
        room, began_s = asyncio.Semaphore(most), time.monotonic()
        waiting: asyncio.Queue[tuple[RecordedRequest, asyncio.Task[Sequence[Played]]] | None] = asyncio.Queue()

        async def ask(entry: RecordedRequest) -> Sequence[Played]:
            try:
                return await asyncio.gather(*(_ask(client, url, entry, headers) for url in urls))
            finally:
                room.release()

        async def begin() -> None:
            try:
                for entry in entries:
                    await asyncio.sleep(began_s + entry.at_s / speed - time.monotonic())
                    await room.acquire()
                    await waiting.put((entry, asyncio.create_task(ask(entry))))
            finally:
                waiting.put_nowait(None)

        beginning = asyncio.create_task(begin())
        try:
            while (queued := await waiting.get()) is not None:
                yield queued[0], await queued[1]
            await beginning
        finally:
            beginning.cancel()


def without_defaults(client: httpx2.AsyncClient) -> None:
    """Have a client send no headers of its own: one that asks for compression would change the answer."""
    for name in list(client.headers):
        del client.headers[name]


async def _ask(client: httpx2.AsyncClient, url: str, entry: RecordedRequest, more: Mapping[str, str]) -> Played:
    began_s, first_s, pieces = time.monotonic(), 0.0, list[bytes]()
    try:
        async with client.stream(
            entry.method, url.rstrip("/") + entry.path, headers={**entry.headers, **more}, content=entry.content
        ) as answer:
            async for piece in answer.aiter_bytes():
                first_s = first_s or time.monotonic() - began_s
                pieces.append(piece)
    except httpx2.HTTPError as exc:
        return Played(failure=f"{type(exc).__name__}: {exc}", duration_s=time.monotonic() - began_s)
    return Played(answer.status_code, dict(answer.headers), b"".join(pieces), first_s, time.monotonic() - began_s)
