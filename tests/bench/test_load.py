"""The load generator against a small real HTTP server whose timing and failures the test decides."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from tests.bench.load import Lmi, Load, Record, drive, lines_of, percentile, prompts, summarize


def line(text: str, **last: object) -> bytes:
    return json.dumps({"token": {"id": 1, "text": text, "log_prob": -0.5}, **last}).encode() + b"\n"


END = {"generated_text": "ab", "details": {"finish_reason": "length", "generated_tokens": 2, "inputs": "x"}}


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """Answers two tokens; /cut leaves the last line away, /refuse refuses, /fail ends with LMI's error line."""

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        assert body["stream"] and body["parameters"]["ignore_eos_token"]
        if request.path == "/refuse":
            return web.Response(status=503, text="full")
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(line("a"))
        if request.path == "/invocations":
            await asyncio.sleep(0.02)
            await response.write(line("b", **END))
        elif request.path == "/fail":
            await response.write(line("", generated_text="", details={"finish_reason": "error"}))
        await response.write_eof()
        return response

    app = web.Application()
    app.router.add_post("/{any:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_measures_complete_streams(url: str) -> None:
    load = Load(url, concurrency=3, requests=7, output_tokens=2)
    result = summarize(load, await drive(load), wall_s=2.0, client_cpu_s=0.1)
    assert (result.requests, result.failed, result.tokens, result.tokens_s) == (7, 0, 14, 7.0)
    assert result.itl_p50_ms is not None and 15 < result.itl_p50_ms < 500
    assert result.ttft_p99_ms is not None and result.ttft_p99_ms > 0


@pytest.mark.parametrize(
    ("path", "message"),
    [("/refuse", "HTTP 503: full"), ("/cut", "no last line"), ("/fail", "ends with an error")],
)
async def test_what_is_not_a_complete_answer_is_a_failure(url: str, path: str, message: str) -> None:
    load = Load(url, concurrency=1, requests=2, path=path)
    result = summarize(load, await drive(load), wall_s=1.0, client_cpu_s=0.0)
    assert (result.failed, result.tokens, result.ttft_p50_ms) == (2, 0, None)
    assert message in result.first_failure


async def test_a_server_that_is_not_there_is_a_failure() -> None:
    load = Load("http://127.0.0.1:1", concurrency=1, requests=1)
    (record,) = await drive(load)
    assert "ClientConnectorError" in record.failure


def test_lines_are_stamped_when_complete() -> None:
    assert lines_of([(1.0, b"a"), (2.0, b"b\nc\n\nd"), (3.0, b"e")]) == [(2.0, b"ab"), (2.0, b"c"), (3.0, b"de")]


def test_tokens_of_one_read_are_one_stamp() -> None:
    load = Load("", concurrency=1, requests=1)
    record = Record(sent_s=1.0, status=200, reads=[(1.5, line("a") + line("b", **END))])
    result = summarize(load, [record], wall_s=1.0, client_cpu_s=0.0)
    assert (result.ttft_p50_ms, result.itl_p50_ms, result.tokens) == (500.0, None, 2)


def test_lmi_reads_the_servers_own_count() -> None:
    generation = Lmi().read([(1.0, line("a")), (2.0, line("b", **END))])
    assert (generation.tokens, generation.text) == (2, "ab")


def test_percentile() -> None:
    assert percentile([], 50) is None
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([0.0, 10.0], 99) == pytest.approx(9.9)


def test_prompts_repeat_for_a_seed_only() -> None:
    assert prompts(3, 5, seed=1) == prompts(3, 5, seed=1) != prompts(3, 5, seed=2)
    assert len(set(prompts(20, 5, seed=1))) == 20
