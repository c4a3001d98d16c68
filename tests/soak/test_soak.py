"""The soak's own machinery: what it holds against a server, and a short soak of a real one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import psutil
import pytest
from aiohttp import test_utils, web

from djl_python.testing import RunningServer
from tests.soak.events import EVENTS, Server, await_answers
from tests.soak.hostile import ATTACKS
from tests.soak.ledger import Broken, Ledger, Outcome, Refused
from tests.soak.processes import Sample, growth
from tests.soak.report import report
from tests.soak.soak import Plan, soak
from tests.soak.traffic import DEMO, HANDLER, SCENARIOS


async def _says(answer: str) -> str:
    return answer


async def _fails(status: int) -> str:
    raise Refused(status, "no")


async def test_the_ledger() -> None:
    """A wrong answer is never explained; a failure is while its model, or all of them, were disturbed."""
    ledger = Ledger()
    assert await ledger.account("a", DEMO, lambda: _says("x")) is Outcome.RIGHT
    assert await ledger.account("a", DEMO, lambda: _fails(503)) is Outcome.UNEXPLAINED
    assert await ledger.account("a", DEMO, lambda: _fails(429)) is Outcome.REFUSED
    with ledger.disturb("kill", DEMO):
        assert await ledger.account("a", DEMO, lambda: _fails(503)) is Outcome.CUT
        assert await ledger.account("a", "other", lambda: _fails(503)) is Outcome.UNEXPLAINED
        assert await ledger.account("a", DEMO, lambda: _says("y")) is Outcome.WRONG
    with ledger.disturb("descriptors", ""):
        assert await ledger.account("a", "other", lambda: _fails(503)) is Outcome.CUT
    assert ledger.faults == ["1 requests: wrong answer", "2 requests: unexplained"]
    ledger.sent += 1
    assert ledger.faults[-1] == "8 requests were sent, 7 accounted for"


@pytest.mark.parametrize(("last_mib", "flat"), [(110.0, True), (200.0, False)])
def test_growth(last_mib: float, flat: bool) -> None:
    samples = [Sample(at, {"workers": 100.0 if at < 6 else last_mib}, 50, 1, 1) for at in range(8)]
    (memory, *others) = growth(samples)
    assert (memory.name, memory.is_flat) == ("workers, MiB", flat)
    assert all(one.is_flat and one.slope_per_hour == 0 for one in others)


async def test_an_event_lasts_until_the_model_answers(tmp_path: Path) -> None:
    """A model that is being restarted refuses, breaks off, and then answers: only then the next phase begins."""
    asked = 0

    async def restarting(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        if asked == 1:
            return web.Response(status=503)
        if asked == 2:
            return web.Response(text="half an ans")
        return web.json_response({"guess": "mat"})

    app = web.Application()
    app.router.add_post(f"/predictions/{HANDLER}", restarting)
    async with (
        test_utils.TestServer(app, host="127.0.0.1") as up,
        aiohttp.ClientSession(str(up.make_url("/"))) as session,
    ):
        server = Server(str(up.make_url("/")), psutil.Process(), tmp_path / "log", session)
        assert await await_answers(server, HANDLER) == ""
    assert asked == 3


async def test_a_stream_that_ends_with_an_error_is_broken_off() -> None:
    """A kill explains it; it is no wrong answer."""

    async def killed(request: web.Request) -> web.Response:
        return web.Response(text='{"generated_text": "", "details": {"finish_reason": "error"}}\n')

    app = web.Application()
    app.router.add_post(f"/predictions/{DEMO}", killed)
    (scenario,) = (one for one in SCENARIOS if one.name == "LMI, streamed")
    async with (
        test_utils.TestServer(app, host="127.0.0.1") as up,
        aiohttp.ClientSession(str(up.make_url("/"))) as session,
    ):
        with pytest.raises(Broken, match="finish_reason"):
            await scenario.ask(session)


async def test_a_short_soak(demo: RunningServer, tmp_path: Path) -> None:
    """Traffic to one model, a refused request and an event: accounted for, and in the report."""
    calm = ("body: 10^6 levels", "clients leave mid-stream")
    actions = tuple(one for one in (*ATTACKS, *EVENTS) if one.name in calm)
    scenarios = tuple(one for one in SCENARIOS if one.name in ("TGI", "OpenAI chat, streamed", "Triton infer"))
    async with asyncio.timeout(60):
        results = await soak(Plan(0.05, scenarios, actions), demo, tmp_path, "the command")
    assert not results.ledger.faults, results.ledger.failures
    assert {action.name for action in results.actions} <= set(calm)
    assert results.actions
    text = report(results)
    assert "the command" in text
    assert all(f"| {one.name} " in text for one in scenarios)
