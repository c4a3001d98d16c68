from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import pytest

from djl_python import Output
from djl_python.core.errors import HandlerError
from djl_python.worker.answers import send


class Recorded:
    """A Reply that keeps what it is told."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.pieces: list[bytes] = []
        self.started = self.finished = False
        self.drained = 0

    def start(self, status: int, headers: Mapping[str, str]) -> None:
        assert not self.started
        self.started, self.status, self.headers = True, status, dict(headers)

    def write(self, data: bytes) -> None:
        assert self.started and not self.finished
        self.pieces += [data] if data else []

    def progressed(self) -> None: ...

    def keep_alive(self, data: bytes) -> None:
        raise AssertionError("this is the handler's")

    async def drain(self) -> None:
        self.drained += 1

    def finish(self, data: bytes = b"") -> None:
        self.write(data)
        self.finished = True


async def iterate(items: Iterable[Any]) -> AsyncIterator[Any]:
    for item in items:
        yield item


async def sent(result: Any) -> Recorded:
    reply = Recorded()
    await send(result, reply, iterate)
    assert reply.finished
    return reply


async def test_contents_are_joined_and_properties_are_headers() -> None:
    out = Output(code=201).add("a").add(b"b").add_property("X-One", "1")
    out.add_property("Content-Length", "99").add_property("Transfer-Encoding", "chunked")
    reply = await sent(out)
    assert (reply.status, reply.pieces) == (201, [b"ab"])
    assert reply.headers == {"x-one": "1", "content-type": "text/plain; charset=utf-8"}


async def test_content_type_property_wins() -> None:
    reply = await sent(Output().add("a").add_property("Content-Type", "text/html"))
    assert reply.headers == {"content-type": "text/html"}


async def test_no_body_where_there_must_be_none() -> None:
    assert ((await sent(None)).status, (await sent(None)).pieces) == (204, [])
    reply = await sent(Output(code=204).add("lost"))
    assert (reply.pieces, reply.headers) == ([], {})


async def test_an_error_without_content_is_not_silent() -> None:
    reply = await sent(Output(code=507, message="out of memory"))
    assert (reply.status, reply.pieces) == (507, [b'{"code":507,"message":"out of memory"}'])


@pytest.mark.parametrize("make", [iter, iterate], ids=["sync", "async"])
async def test_streams(make: Any) -> None:
    default = await sent(Output().add_stream_content(make(["a", ["b"]])))
    assert default.pieces == [b'{"outputs":"a"}\n', b'{"outputs":["b"]}\n']
    assert default.headers == {"content-type": "application/jsonlines"}
    shaped = await sent(Output().add("head;").add_stream_content(make([1, 2]), lambda item: f"{item};"))
    assert shaped.pieces == [b"head;", b"1;", b"2;"]
    assert shaped.headers["content-type"].startswith("text/plain")
    raw = await sent(Output().add_stream_content(make([{"a": 1}, "x"]), None))
    assert (raw.pieces, raw.headers) == ([b'{"a":1}\n', b"x"], {"content-type": "application/jsonlines"})
    empty = await sent(Output().add_stream_content(make([])))
    assert (empty.status, empty.pieces) == (200, [])


async def test_a_stream_that_waits_for_nothing_lets_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("djl_python.worker.answers.TURN_S", -1)
    reply = Recorded()
    sending = asyncio.create_task(send(Output().add_stream_content(iterate(range(10))), reply, iterate))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert 0 < len(reply.pieces) < 10
    await sending
    assert (len(reply.pieces), reply.drained) == (10, 10)


async def test_a_generators_first_output_sets_status_and_headers() -> None:
    reply = await sent(iterate([Output(202).add_property("a", "b").add("x"), b"y", Output().add("z")]))
    assert (reply.status, reply.headers["a"], reply.pieces) == (202, "b", [b"x", b"y", b"z"])


async def test_an_async_iterator_without_aclose() -> None:
    class Two:
        def __init__(self) -> None:
            self.left = 2

        def __aiter__(self) -> Two:
            return self

        async def __anext__(self) -> bytes:
            if not self.left:
                raise StopAsyncIteration
            self.left -= 1
            return b"x"

    assert (await sent(Two())).pieces == [b"x", b"x"]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("text", r"Invalid output type: str, expected an Output or None: return Output\(\)\.add\(\.\.\.\)"),
        ({"a": 1}, r"dict, expected an Output or None: return Output\(\)\.add_as_json\(\.\.\.\)"),
        (Output(code=100), "from 200 to 599"),
        (Output(code=True), "from 200 to 599"),
        (Output().add_property("a\r\nb", "x"), "not the name of an HTTP header"),
        (Output().add_property("a", "日本"), "cannot be sent as an HTTP header"),
        (Output().add_stream_content(iter([1]), lambda item: item), "formatter of a stream returned int"),
    ],
)
async def test_a_result_that_can_not_be_sent_is_a_handler_error(result: Any, message: str) -> None:
    with pytest.raises(HandlerError, match=message):
        await send(result, Recorded(), iterate)
