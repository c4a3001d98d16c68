import asyncio
import contextlib
import json
import logging
import re
import socket
from collections.abc import AsyncIterator, Mapping

import httpx
import pytest

from tests.server.harness import Site, model_config, running, until

POST = b"POST /invocations HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n%s\r\n%s"


def request(order: Mapping[str, object], headers: bytes = b"") -> bytes:
    body = json.dumps(order).encode()
    return POST % (len(body), headers, body)


async def head_of(reader: asyncio.StreamReader) -> str:
    return (await reader.readuntil(b"\r\n\r\n")).decode()


async def test_a_short_answer_has_a_length_and_the_request_reaches_the_worker_whole() -> None:
    async with running() as site:
        answer = await site.client.post(
            "/predictions/m?a=1&a=2&b=", json={"do": "echo"}, headers={"X-Custom": "yes", "x-request-id": "mine"}
        )
        assert answer.status_code == 200 and int(answer.headers["content-length"]) == len(answer.content)
        assert answer.headers.get_list("x-request-id") == ["mine"]
        assert "server" not in answer.headers
        got = answer.json()
        assert got["path"] == "/predictions/m"
        assert got["query"] == [["a", "1"], ["a", "2"], ["b", ""]]
        assert got["headers"]["x-custom"] == "yes" and got["headers"]["x-request-id"] == "mine"


@pytest.mark.parametrize("given", [b"", b"a\tb", b"\x9b31mred", "é".encode()])
async def test_an_id_that_a_log_should_not_have_is_replaced(given: bytes) -> None:
    async with running() as site:
        answer = await site.client.post("/invocations", json={"do": "echo"}, headers=[(b"X-Request-Id", given)])
        assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])
        assert answer.json()["headers"]["x-request-id"] == answer.headers["x-request-id"]


async def test_a_request_without_an_id_gets_one() -> None:
    async with running() as site:
        answer = await site.post(do="echo")
        assert answer.headers["x-request-id"] == answer.json()["headers"]["x-request-id"] != ""


@pytest.mark.parametrize("kind", ["jsonlines", "sse"])
async def test_every_chunk_arrives_when_it_is_made(kind: str) -> None:
    """Also behind nginx, which a header asks not to gather them."""
    async with (
        running() as site,
        site.client.stream("POST", "/invocations", json={"do": "stream", "n": 3, "gap_s": 0.1, "kind": kind}) as answer,
    ):
        assert answer.headers["transfer-encoding"] == "chunked"
        assert answer.headers["x-accel-buffering"] == "no" and answer.headers["cache-control"] == "no-cache"
        loop = asyncio.get_running_loop()
        times = [loop.time() async for chunk in answer.aiter_raw() if chunk]
        assert len(times) == 3 and times[2] - times[0] > 0.15


async def test_a_connection_is_kept_for_the_next_request() -> None:
    async with running() as site, site.connect() as (reader, writer):
        for order in ({"do": "echo"}, {"do": "stream"}, {"do": "echo"}):
            writer.write(request(order))
            head = await head_of(reader)
            assert head.startswith("HTTP/1.1 200 OK") and "Connection: close" not in head
            if "Content-Length" in head:
                await reader.readexactly(int(head.partition("Content-Length: ")[2].split("\r\n")[0]))
            else:
                await reader.readuntil(b"0\r\n\r\n")


async def test_an_http_1_0_client_gets_a_stream_that_ends_with_the_connection() -> None:
    async with running() as site, site.connect() as (reader, writer):
        body = b'{"do": "stream", "n": 2, "gap_s": 0.05}'
        writer.write(b"POST /invocations HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: %d\r\n\r\n" % len(body))
        writer.write(body)
        head = await head_of(reader)
        assert "chunked" not in head and "Connection: close" in head
        assert (await reader.read()).decode().splitlines() == ['{"n": 0, "pad": ""}', '{"n": 1, "pad": ""}']


async def test_a_client_that_waits_for_100_continue_gets_it() -> None:
    async with running() as site, site.connect() as (reader, writer):
        body = b'{"do": "echo"}'
        writer.write(POST % (len(body), b"Expect: 100-continue\r\n", b""))
        assert (await head_of(reader)).startswith("HTTP/1.1 100 ")
        writer.write(body)
        assert (await head_of(reader)).startswith("HTTP/1.1 200 ")


@pytest.mark.parametrize("order", [{"do": "hang"}, {"do": "stream", "n": 10_000, "gap_s": 0.05}])
async def test_a_client_that_leaves_takes_its_call_out_of_the_worker(order: dict[str, object]) -> None:
    async with running() as site, site.connect() as (_, writer):
        writer.write(request(order))
        await until(lambda: site.model.pool.busy == 1)
        assert await site.metric("djl_in_flight_requests") == 1
        writer.close()
        await until(lambda: site.model.pool.busy == 0)
        assert (await site.post(do="cancels")).json() == ["disconnect"]
        await wait_idle(site)
        assert await site.metric('djl_aborted_requests_total{model="m",reason="disconnect"') == 1


async def wait_idle(site: Site) -> None:
    """Running, waiting, queued and used blocks are all back to zero."""
    async with asyncio.timeout(5):
        names = ("running_requests", "kv_cache_blocks_used", "in_flight_requests", "queued_requests")
        while any([await site.metric(f"djl_{name}{{") for name in names]):
            await asyncio.sleep(0.02)


async def test_a_client_that_does_not_read_is_cut_off() -> None:
    async with running() as site:
        with socket.create_connection(("127.0.0.1", site.port)) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.sendall(request({"do": "stream", "n": 100_000, "size": 100_000}))
            await until(lambda: site.model.pool.busy == 1)
            await until(lambda: site.model.pool.busy == 0)
        assert (await site.post(do="cancels")).json() == ["disconnect"]
        assert await site.metric('djl_aborted_requests_total{model="m",reason="slow_reader"') == 1


async def test_a_stream_that_waits_for_its_client_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("djl_python.server.http.response_writer.MAX_UNSENT_BYTES", 2 << 20)
    async with (
        running() as site,
        site.client.stream(
            "POST", "/invocations", json={"do": "flow", "n": 300, "size": 100_000, "ahead": 1 << 20}
        ) as answer,
    ):
        await site.client.get("/ping")  # meanwhile it piles up
        assert sum([len(piece) async for piece in answer.aiter_raw()]) == 30_000_000


async def test_a_broken_answer_looks_like_one() -> None:
    async with running() as site:
        got = b""
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
            async with site.client.stream("POST", "/invocations", json={"do": "break"}) as answer:
                async for piece in answer.aiter_raw():
                    got += piece
        assert got == b"a,b"


async def test_a_piece_larger_than_the_send_buffer_is_sent() -> None:
    async with running() as site:
        answer = await site.post(do="stream", n=1, size=12 << 20)
        assert answer.status_code == 200 and len(answer.content) > 12 << 20


async def test_a_full_queue_answers_at_once_with_retry_after() -> None:
    config = model_config(properties={"capacity": "1"}, job_queue_size=1, option={"throttle_error_http_code": 429})
    async with running(config) as site:
        tasks = [asyncio.create_task(site.post(do="hang")) for _ in range(2)]
        await until(lambda: site.model.pool.busy == 2)
        refused = await site.post(do="echo")
        assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
        assert await site.metric("djl_queued_requests") == 1
        assert (await site.client.get("/info")).status_code == 200  # a query waits for no text
        for task in tasks:
            task.cancel()
        await until(lambda: site.model.pool.busy == 0)
        assert (await site.post(do="echo")).status_code == 200


@pytest.mark.parametrize(
    "head", [b"GET /ping?%s HTTP/1.1\r\n\r\n", b"GET /ping HTTP/1.1\r\nCookie: %s\r\n\r\n"], ids=["path", "header"]
)
async def test_a_head_that_is_too_long_is_answered(head: bytes) -> None:
    async with running() as site, site.connect() as (reader, writer):
        writer.write(b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await head_of(reader)).startswith("HTTP/1.1 200 ")
        writer.write(head % (b"a" * 70_000))
        rest = await reader.read()
        head, _, body = rest.partition(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")[2].partition(b"\r\n\r\n")
        assert b"Connection: close" in head
        assert json.loads(body) == {
            "code": 431,
            "type": "RequestHeaderFieldsTooLargeException",
            "message": "the request's path and headers are too long",
        }


async def test_a_body_that_is_too_large_is_413_in_json() -> None:
    async with running(max_request_size=1000) as site:
        for sent in (
            await site.client.post("/invocations", content=b"x" * 2_000_000),
            await site.client.post("/invocations", content=pieces(100)),
        ):
            assert sent.status_code == 413
            assert sent.json()["code"] == 413 and "max_request_size, which is 1000 bytes" in sent.json()["message"]
        assert (await site.post(do="echo")).status_code == 200


async def pieces(number: int) -> AsyncIterator[bytes]:
    for _ in range(number):
        yield b"x" * 1000


async def test_a_client_that_asks_first_is_refused_before_it_sends() -> None:
    async with running(max_request_size=1000) as site, site.connect() as (reader, writer):
        writer.write(
            b"POST /invocations HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\nExpect: 100-continue\r\n\r\n"
        )
        head = await head_of(reader)
        assert head.startswith("HTTP/1.1 413 ") and "Connection: close" in head
        assert "max_request_size" in json.loads(await reader.read())["message"]  # and nothing is behind it


async def test_a_page_takes_a_short_body_only() -> None:
    """It is read in the loop that everybody shares."""
    long = b'{"ready": true, "x": [' + b"0," * (1 << 19) + b"0]}"
    async with running() as site:
        for content in (long, pieces(1100)):
            answer = await site.client.post("/v2/repository/index", content=content)
            assert answer.status_code == 413
            assert answer.json() == {"error": "the body is larger than 1048576 bytes, which is the most at this path"}
        assert (await site.client.post("/v2/repository/index", content=b'{"ready": true}')).status_code == 200
        assert (await site.client.post("/invocations", content=b'{"do": "echo"}' + b" " * 2_000_000)).status_code == 200


async def test_a_request_that_no_frame_takes_is_refused_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(model_config(properties={"capacity": "1"})) as site:
        monkeypatch.setattr("djl_python.ipc.framing.MAX_FRAME_BYTES", 10_000)
        others = [asyncio.create_task(site.post(do="echo", sleep_s=0.1)) for _ in range(2)]
        await until(lambda: site.model.pool.busy == 2)
        for _ in range(2):  # one that waits, and one that goes to the worker at once
            answer = await site.post(do="echo", pad="x" * 20_000)
            assert answer.status_code == 413 and "are more than can be passed on" in answer.text
        assert [(await other).status_code for other in others] == [200, 200]
        assert site.model.pool.busy == 0


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/invocations", {"code", "type", "message"}),
        ("/v1/chat/completions", {"error"}),
        ("/generate", {"error", "error_type"}),
        ("/v2/models/m/generate", {"error"}),
    ],
)
@pytest.mark.parametrize("hosts", [b"", b"Host: a\r\nHost: b\r\n"])
async def test_a_request_without_one_host_is_refused_in_its_dialects_shape(
    path: str, shape: set[str], hosts: bytes
) -> None:
    async with running() as site, site.connect() as (reader, writer):
        writer.write(b"POST %b HTTP/1.1\r\n%bContent-Length: 2\r\n\r\n{}" % (path.encode(), hosts))
        head = await head_of(reader)
        (length,) = re.findall(r"Content-Length: (\d+)", head)
        assert json.loads(await reader.readexactly(int(length))).keys() == shape
        assert head.startswith("HTTP/1.1 400 ")


@pytest.mark.parametrize("target", [b"http://[a/invocations", b"//[://b"])
async def test_a_target_that_is_no_url_costs_nothing(target: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with running() as site, site.connect() as (reader, writer):
        writer.write(b"PUT %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % target)
        assert (await head_of(reader)).startswith("HTTP/1.1 40")
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_client_that_closes_among_other_options_is_told_so() -> None:
    async with running() as site, site.connect() as (reader, writer):
        writer.write(b"GET /ping HTTP/1.1\r\nHost: localhost\r\nConnection: TE, Close\r\n\r\n")
        assert "Connection: close" in await head_of(reader)
        await asyncio.wait_for(reader.read(), 5)


@pytest.mark.parametrize(("version", "asked"), [(b"1.1", True), (b"1.0", False)])
async def test_a_body_that_is_held_back_is_asked_for_in_any_spelling(version: bytes, asked: bool) -> None:
    async with running() as site, site.connect() as (reader, writer):
        body = b'{"do": "echo"}'
        writer.write(POST.replace(b"1.1", version) % (len(body), b"Expect: 100-Continue\r\n", b""))
        if asked:
            assert (await head_of(reader)).startswith("HTTP/1.1 100 ")
        writer.write(body)
        assert (await head_of(reader)).startswith("HTTP/1.1 200 ")


@pytest.mark.parametrize("order", [{"do": "stream", "n": 1}, {"do": "break"}])
async def test_a_client_that_does_not_read_is_disconnected(order: dict[str, object]) -> None:
    size = 7_000_000
    async with running(idle_timeout_s=0.3) as site, site.connect() as (reader, writer):
        transport = writer.transport
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        writer.write(request({**order, "size": size}))
        await until(lambda: site.model.tally.succeeded == 1)
        await asyncio.sleep(1)
        transport.resume_reading()
        with contextlib.suppress(ConnectionError):
            assert len(await asyncio.wait_for(reader.read(), 5)) < size


async def test_a_request_behind_a_connections_last_answer_is_not_served() -> None:
    """What comes behind is in Tornado's buffer, also after the connection has been closed."""
    async with running() as site, site.connect() as (reader, writer):
        first = request({"do": "stream"}).replace(b"HTTP/1.1", b"HTTP/1.0")
        writer.write(first + request({"do": "echo"}) + request({"do": "echo"}))
        assert (await asyncio.wait_for(reader.read(), 5)).count(b"HTTP/1.1 200") == 1
        assert (await site.post(do="echo")).status_code == 200
        assert site.model.tally.succeeded == 2


async def test_a_path_may_come_with_its_host() -> None:
    async with running() as site, site.connect() as (reader, writer):
        body = b'{"do": "echo"}'
        head = b"POST http://x/invocations?a=1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        assert (await head_of(reader)).startswith("HTTP/1.1 200 ")


async def test_a_length_of_thousands_of_digits_is_too_large() -> None:
    async with running() as site, site.connect() as (reader, writer):
        writer.write(b"POST /invocations HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n")
        assert (await head_of(reader)).startswith("HTTP/1.1 413 ")


async def test_an_unknown_path_is_404_and_a_wrong_method_405_with_allow() -> None:
    async with running() as site:
        missing = await site.client.post("/nothing", content=b"x" * 100_000)
        assert missing.status_code == 404
        assert missing.json() == {
            "code": 404, "type": "ResourceNotFoundException", "message": "there is nothing at /nothing"
        }  # fmt: skip
        wrong = await site.client.get("/invocations")
        assert wrong.status_code == 405 and wrong.headers["allow"] == "OPTIONS, POST"
        assert wrong.json()["type"] == "MethodNotAllowedException"
        options = await site.client.options("/invocations")
        assert options.status_code == 200 and options.headers["allow"] == "OPTIONS, POST"


async def test_the_model_is_named_by_path_query_or_header() -> None:
    async with running(model_config("a"), model_config("b"), model_config("b", "2")) as site:
        for path, headers in (
            ("/predictions/b", {}),
            ("/predictions/b/2", {}),
            ("/invocations?model_name=b&model_version=2", {}),
            ("/invocations", {"model_name": "a"}),
        ):
            answer = await site.client.post(path, json={"do": "echo"}, headers=headers)
            assert answer.status_code == 200, path
        unnamed = await site.post(do="echo")
        assert unnamed.status_code == 400 and "loaded: a, b" in unnamed.json()["message"]
        unknown = await site.post("/predictions/c", do="echo")
        assert unknown.status_code == 404 and "there is no model 'c'" in unknown.json()["message"]


async def test_a_models_name_may_be_a_hubs() -> None:
    async with running(model_config("org/model"), model_config("b")) as site:
        for path in ("/v1/models/org/model", "/v1/models/org%2Fmodel"):
            answer = await site.client.get(path)
            assert (answer.status_code, answer.json()["id"]) == (200, "org/model")
        for path, body in (
            ("/predictions/org%2Fmodel", {}),
            ("/v1/chat/completions", {"model": "org/model"}),
            ("/v2/models/org%2Fmodel/generate", {}),
        ):
            answer = await site.client.post(path, json={"do": "echo", **body})
            assert answer.status_code == 200, (path, answer.text)
        assert (await site.client.get("/v1/models/org/other")).status_code == 404


async def test_predict_timeout_is_answered_in_the_dialect_before_and_after_the_first_byte() -> None:
    async with running(model_config(option={"predict_timeout": 0.3})) as site:
        streaming = asyncio.create_task(site.post(do="stream", n=30, gap_s=0.05))
        answer = await site.post(do="hang")
        assert answer.status_code == 424 and answer.json()["code"] == 424
        assert "no answer within 0.3 s" in answer.json()["error"]
        assert len((await streaming).text.splitlines()) == 30  # its gaps are shorter
        stuck = await site.post(do="stream", n=2, gap_s=5)
        assert stuck.status_code == 200 and "no answer within 0.3 s" in stuck.text.splitlines()[-1]


@pytest.mark.parametrize("engine", [False, True])
@pytest.mark.parametrize("order", [{"do": "hang"}, {"do": "die"}], ids=str)
async def test_a_lost_answer_has_the_shape_of_generation_only_where_an_engine_generates(
    order: dict[str, str], engine: bool
) -> None:
    properties = {"runner": "native"} if engine else {}
    async with running(model_config(option={"predict_timeout": 0.3}, properties=properties)) as site:
        answer = await site.client.post("/predictions/m", json=order)
        body = answer.json()
        assert answer.status_code == body["code"] == 424 and isinstance(body["error"], str)
        assert body.keys() == (
            {"error", "code", "generated_text", "details"} if engine else {"error", "code", "message"}
        )
        openais = await site.client.post("/v1/chat/completions", json=order)
        assert openais.json()["error"]["code"] == ("timeout" if order["do"] == "hang" else "worker_died")


async def test_a_handlers_headers_can_not_break_the_answer() -> None:
    async with running() as site:
        answer = await site.client.post(
            "/invocations",
            json={"do": "headers", "status": 299, "good": "ä", "bad": "a\r\nb: c", "Content-Length": "1", "far": "→"},
        )
        assert answer.status_code == 299 and answer.text == "body"
        assert answer.headers["good"] == "ä"
        assert "bad" not in answer.headers and "b" not in answer.headers and "far" not in answer.headers
        empty = await site.post(do="headers", status=204)
        assert empty.status_code == 204 and "content-length" not in empty.headers
        assert (await site.post(do="echo")).status_code == 200


async def test_a_draining_server_refuses_calls_and_closes_connections() -> None:
    async with running() as site:
        slow = asyncio.create_task(site.post(do="echo", sleep_s=0.3))
        await until(lambda: site.model.pool.busy == 1)
        site.front_end.draining.begun = True
        refused = await site.post(do="echo")
        assert refused.status_code == 503 and refused.headers["connection"] == "close"
        assert refused.headers["retry-after"] == "5"
        done = await slow
        assert done.status_code == 200 and done.headers["connection"] == "close"
