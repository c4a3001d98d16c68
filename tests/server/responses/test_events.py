"""The events of a response in the background, as those who follow it get them."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from djl_python.config import ServerConfig
from djl_python.core.access.api_key import ANYONE
from djl_python.core.errors import KeptNotFoundError
from djl_python.server.responses import events, store
from djl_python.server.responses.events import EventLog
from djl_python.server.responses.store import Store
from tests.server.harness import until


def log_of(*pieces: bytes) -> EventLog:
    made = EventLog()
    for piece in pieces:
        made.add(piece)
    return made


async def followed(log: EventLog, after: int = -1) -> list[bytes]:
    async with aclosing(log.answer(after).pieces) as pieces:
        return [piece async for piece in pieces]


async def test_events_are_whole_and_signs_of_life_are_none() -> None:
    log = log_of(b"data: 0\n", b"\ndata: 1\n\n:\n\nda", b"ta: 2\n\n")
    log.end()
    assert (len(log), log.last, log.size) == (3, b"data: 2\n\n", 27)
    assert await followed(log) == [b"data: 0\n\ndata: 1\n\ndata: 2\n\n"]
    assert await followed(log, 1) == [b"data: 2\n\n"]
    assert await followed(log, 7) == []


async def test_followers_get_many_events_in_pieces() -> None:
    event = b"data: " + b"x" * 1_000 + b"\n\n"
    log = log_of(event * 1_000)
    log.end()
    pieces = await followed(log)
    assert b"".join(pieces) == event * 1_000 and set(map(len, pieces[:-1])) == {66 * len(event)}
    large = log_of(b"x" * events.PIECE_BYTES * 2 + b"\n\n", event)
    large.end()
    assert list(map(len, await followed(large))) == [events.PIECE_BYTES * 2 + 2, len(event)]  # events stay whole


async def test_an_event_without_its_end_is_not_the_beginning_of_the_next_one() -> None:
    log = log_of(b"data: 0\n\ndata: {")
    log.drop_incomplete()
    log.add(b"data: 1\n\n")
    log.end()
    assert await followed(log) == [b"data: 0\n\ndata: 1\n\n"]


async def test_followers_get_what_comes_and_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEEP_ALIVE_S", 0.01)
    log = log_of(b"data: 0\n\n")
    got: list[bytes] = []

    async def follow() -> None:
        async with aclosing(log.answer().pieces) as pieces:
            async for piece in pieces:
                got.append(piece)

    following = asyncio.create_task(follow())
    await until(lambda: got[1:2] == [b":\n\n"])
    log.add(b"data: 1\n\n")
    log.end()
    await following
    assert [piece for piece in got if piece != b":\n\n"] == [b"data: 0\n\n", b"data: 1\n\n"]


async def test_events_count_as_bytes_of_their_response_and_go_after_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "EVENTS_KEPT_S", 0.0)
    kept_in = Store(ServerConfig(responses_max_bytes=1000))
    for name in ("a", "c"):
        kept_in.update(kept_in.begin(name, ANYONE, b"[]", response=b"{}", status="queued"), b"{}", "completed")
    second = kept_in.begin("b", ANYONE, b"[]", response=b"{}", status="queued")
    second.events = log_of(b"x" * 992 + b"\n\n")
    kept_in.grow(second, second.events.size)
    assert second.size == 998 and [kept_in.find("b", ANYONE)] == [second]
    with pytest.raises(KeptNotFoundError):
        kept_in.find("a", ANYONE)  # there is no room for all of them
    kept_in.forget_events_later(second)
    await until(lambda: second.events is None)
    assert second.size == 4
