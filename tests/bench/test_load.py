"""The closed loop against a small real HTTP server whose timing and failures the test decides."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from djl_python.bench.http import HttpReply
from djl_python.bench.load import Load, RequestRecord, drive, percentile, summarize, words_for
from djl_python.bench.workload import Item, prompts


def line(text: str, **last: object) -> bytes:
    return json.dumps({"token": {"id": 1, "text": text, "log_prob": -0.5}, **last}).encode() + b"\n"


END = {"generated_text": "ab", "details": {"finish_reason": "length", "generated_tokens": 2, "input_length": 9}}


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """Answers two tokens; /cut leaves the last line away, /refuse refuses, /stall never ends."""

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        assert body["stream"] and body["parameters"]["ignore_eos_token"]
        if request.path == "/refuse":
            return web.Response(status=503, text="full")
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(line("a"))
        if request.path == "/stall":
            await asyncio.Event().wait()
        if request.path != "/cut":
            await asyncio.sleep(0.02)
            await response.write(line("b", **END))
        await response.write_eof()
        return response

    app = web.Application()
    app.router.add_post("/{any:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.mark.parametrize("keep_alive", [False, True])
async def test_measures_complete_streams(url: str, keep_alive: bool) -> None:
    load = Load(url, concurrency=3, requests=7, output_tokens=2, dialect="lmi", keep_alive=keep_alive)
    result = summarize(load, await drive(load), wall_s=2.0, client_cpu_s=0.1)
    assert (result.requests, result.failed, result.short, result.first_failure) == (7, 0, 0, "")
    assert (result.tokens, result.tokens_s, result.requests_s, result.prompt_tokens) == (14, 7.0, 3.5, 9.0)
    assert result.itl_p50_ms is not None and 15 < result.itl_p50_ms < 500
    assert result.ttft_p99_ms is not None and result.ttft_p99_ms > 0


@pytest.mark.parametrize(
    ("path", "output_tokens", "message"),
    [
        ("/refuse", 2, "HTTP 503: full"),
        ("/cut", 2, "no last line"),
        ("/stall", 2, "no complete answer within 0.2 s"),
        ("/more", 1, "2 tokens in 2 pieces; expected at most 1"),
    ],
)
async def test_an_incomplete_answer_counts_as_a_failure(url: str, path: str, output_tokens: int, message: str) -> None:
    load = Load(url, 1, 2, output_tokens=output_tokens, dialect="lmi", path=path, timeout_s=0.2)
    result = summarize(load, await drive(load), wall_s=1.0, client_cpu_s=0.0)
    assert (result.failed, result.tokens, result.ttft_p50_ms) == (2, 0, None)
    assert message in result.first_failure


async def test_fewer_tokens_than_asked_for_are_counted_as_short(url: str) -> None:
    load = Load(url, 1, 2, output_tokens=3, dialect="lmi")
    result = summarize(load, await drive(load), wall_s=1.0, client_cpu_s=0.0)
    assert (result.failed, result.short, result.tokens) == (0, 2, 4)


async def test_a_server_that_is_not_there_is_a_failure() -> None:
    load = Load("http://127.0.0.1:1", concurrency=1, requests=1)
    (record,) = await drive(load)
    assert "ConnectionRefusedError" in record.failure


async def test_an_open_loop_waits_for_no_answer(url: str) -> None:
    """All requests are sent though none is ever answered: a closed loop would send as many as it has clients."""
    load = Load(url, 1, 5, output_tokens=2, dialect="lmi", path="/stall", timeout_s=0.3, request_rate=1000.0)
    records = await drive(load)
    assert [record.failure for record in records] == ["no complete answer within 0.3 s"] * 5
    assert all(record.reply.status == 0 and record.sent_s for record in records)
    due_s = [record.sent_s for record in records]
    assert due_s == sorted(due_s) and len(set(due_s)) == 5
    result = summarize(load, records, wall_s=1.0, client_cpu_s=0.0)
    assert (result.concurrency, result.request_rate, result.failed) == (None, 1000.0, 5)


async def test_each_request_of_a_file_has_its_own_length(url: str) -> None:
    items = (Item("a", output_tokens=2), Item("b", output_tokens=3), Item(prompt_tokens=4))
    load = Load(url, 2, 3, output_tokens=5, dialect="lmi", items=items)
    result = summarize(load, await drive(load), wall_s=1.0, client_cpu_s=0.0)
    assert (result.failed, result.tokens, result.short) == (0, 6, 2)
    assert result.latency_p90_ms is not None and result.latency_p90_ms > 0


async def test_bodies_can_be_amended(url: str) -> None:
    """The server fails a body without parameters: null has removed them."""
    load = Load(url, 1, 1, dialect="lmi", extra={"parameters": None})
    result = summarize(load, await drive(load), wall_s=1.0, client_cpu_s=0.0)
    assert "HTTP 500" in result.first_failure


async def test_how_long_prompts_are_can_only_be_asked_of_a_server_that_answers(url: str) -> None:
    with pytest.raises(ValueError, match="HTTP 503"):
        await asyncio.to_thread(words_for, Load(url, 1, 1, dialect="lmi", path="/refuse"), 9)


def test_tokens_of_one_read_are_one_stamp() -> None:
    load = Load("", concurrency=1, requests=1, dialect="lmi")
    record = RequestRecord(
        sent_s=1.0, ended_s=2.0, output_tokens=64, reply=HttpReply(200, "close", [(1.5, line("a") + line("b", **END))])
    )
    result = summarize(load, [record], wall_s=1.0, client_cpu_s=0.0)
    assert (result.ttft_p50_ms, result.itl_p50_ms, result.tokens, result.pieces) == (500.0, None, 2, 1)
    assert (result.latency_p50_ms, result.latency_p99_ms) == (1000.0, 1000.0)


def test_tokens_without_any_text_are_tokens() -> None:
    """Random weights may generate nothing else; nobody sees when such a token comes."""
    ends = b'data: {"choices": [{"text": "", "finish_reason": "length"}], "usage": {"completion_tokens": %d}}\n\n'
    load = Load("", concurrency=1, requests=1, dialect="openai", output_tokens=9)
    replies = [HttpReply(200, "close", [(1.5, ends % tokens)]) for tokens in (9, 0)]
    result = summarize(
        load,
        [RequestRecord(sent_s=1.0, output_tokens=9, reply=reply) for reply in replies],
        wall_s=1.0,
        client_cpu_s=0.0,
    )
    assert (result.tokens, result.pieces, result.ttft_p50_ms) == (9, 0, None)
    assert (result.failed, result.first_failure) == (1, "0 tokens in 0 pieces; expected at most 9")


def test_percentile() -> None:
    assert percentile([], 50) is None
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([0.0, 10.0], 99) == pytest.approx(9.9)


def test_prompts_repeat_for_a_seed_only() -> None:
    assert prompts(3, 5, seed="1") == prompts(3, 5, seed="1") != prompts(3, 5, seed="2")
    assert len(set(prompts(20, 5, seed="1"))) == 20
