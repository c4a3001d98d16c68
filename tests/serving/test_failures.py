"""Processes die; clients get clear errors, the server comes back, and nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from djl_python.testing import FAKE_ENGINE, RunningServer, running_server, write_byte_tokenizer
from tests.conftest import DEMO
from tests.serving.client import ask, metrics, until_quiet

LONG = {"inputs": "Count to twenty.", "parameters": {"max_new_tokens": 1900, "ignore_eos_token": True}}
SHORT = {"inputs": "What is deep learning?", "parameters": {"max_new_tokens": 8}}


def process(server: RunningServer, module: str) -> psutil.Process:
    """The server's only descendant that runs this module."""
    processes = [
        child
        for child in psutil.Process(server.process.pid).children(recursive=True)
        if module in " ".join(child.cmdline())
    ]
    assert len(processes) == 1, processes
    return processes[0]


async def until_running(session: aiohttp.ClientSession, url: str, count: int) -> None:
    async with asyncio.timeout(20):
        while (await metrics(session, url))["djl_running_requests"] < count:
            await asyncio.sleep(0.01)


async def until_answered(session: aiohttp.ClientSession, url: str) -> None:
    """Until the next request succeeds."""
    async with asyncio.timeout(60):
        while (await ask(session, f"{url}/invocations", SHORT)).status != 200:
            await asyncio.sleep(0.1)


@pytest.fixture(scope="module")
def mortal() -> Iterator[RunningServer]:
    """The demo model, in processes of its own."""
    environment = {"OPTION_THREADS": "1", "SERVING_HEARTBEAT_TIMEOUT": "1"}
    with running_server("-m", f"demo={DEMO}", environment=environment) as server:
        yield server


@pytest.mark.asyncio
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("module", ["djl_python.engine", pytest.param("djl_python.worker", marks=pytest.mark.slow)])
async def test_a_process_is_killed_or_stopped_in_mid_generation(
    mortal: RunningServer, module: str, number: signal.Signals
) -> None:
    async with aiohttp.ClientSession() as session:
        url = f"{mortal.url}/invocations"
        before = await metrics(session, mortal.url)
        streams = [asyncio.create_task(ask(session, url, LONG | {"stream": True})) for _ in range(2)]
        wholes = [asyncio.create_task(ask(session, url, LONG)) for _ in range(2)]
        await until_running(session, mortal.url, 4)
        process(mortal, module).send_signal(number)
        async with asyncio.timeout(15):
            for answer in await asyncio.gather(*wholes):
                assert answer.status == 424
                assert re.search("has ended|ended unexpectedly|was stopped by a signal", answer.lines[0]["error"])
            for answer in await asyncio.gather(*streams):
                assert answer.status == 200
                assert answer.lines[-1]["details"]["finish_reason"] == "error"
                assert answer.lines[-1]["token"]["id"] == -1
        await until_answered(session, mortal.url)
        await until_quiet(session, mortal.url)
        after = await metrics(session, mortal.url)
        assert after["djl_aborted_requests_total"] == before["djl_aborted_requests_total"] + 4
        assert len(psutil.Process(mortal.process.pid).children(recursive=True)) == 2


def fake_model(path: Path, **properties: Any) -> Path:
    """A model directory whose engine needs no checkpoint."""
    write_byte_tokenizer(path)
    (path / "config.json").write_text("{}")
    settings = {"option.rolling_batch": FAKE_ENGINE, "option.entryPoint": "djl_python.huggingface", **properties}
    (path / "serving.properties").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


@pytest.mark.asyncio
async def test_a_full_queue_answers_at_once(tmp_path: Path) -> None:
    model = fake_model(
        tmp_path / "busy", **{"option.fake_step_ms": 20, "option.max_rolling_batch_size": 1, "job_queue_size": 1}
    )
    with running_server("-m", str(model)) as server:
        async with aiohttp.ClientSession() as session:
            url = f"{server.url}/invocations"
            tasks = [asyncio.create_task(ask(session, url, LONG)) for _ in range(3)]  # two in the worker, one queued
            await until_running(session, server.url, 1)
            async with asyncio.timeout(1):
                refused = await ask(session, url, SHORT)
            assert refused.status == 503
            assert int(refused.headers["retry-after"]) >= 1
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await until_quiet(session, server.url)
            assert (await ask(session, url, SHORT)).status == 200


def streams(tokens: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """By dialect, a path and a body that streams so many tokens; MindIE's model is the one named so."""
    parameters = {"max_new_tokens": tokens}
    return {
        "lmi": ("/invocations?model_name=slow", {"inputs": "abc", "parameters": parameters, "stream": True}),
        "openai": ("/v1/completions", {"model": "slow", "prompt": "abc", "max_tokens": tokens, "stream": True}),
        "tgi": ("/generate_stream?model_name=slow", {"inputs": "abc", "parameters": parameters}),
        "mindie": ("/generate_stream?model_name=mindie", {"inputs": "abc", "parameters": parameters}),
        "triton": ("/v2/models/slow/generate_stream", {"text_input": "abc", "max_tokens": tokens}),
    }


#: The built-in handler, with streams that are soon kept alive.
QUICKLY_KEPT_ALIVE = """
from functools import partial
from djl_python.handlers import text_generation
text_generation.TextAnswer = partial(text_generation.TextAnswer, keep_alive_s=0.1)
Handler = text_generation.TextGenerationHandler
"""


@pytest.mark.asyncio
async def test_predict_timeout_is_the_time_without_a_token(tmp_path: Path) -> None:
    options = {"option.fake_step_ms": 50, "option.predict_timeout": 0.7}
    slow = fake_model(tmp_path / "slow", **options)
    mindie = fake_model(tmp_path / "mindie", **options, **{"option.tgi_dialect": "mindie"})
    with running_server("-m", f"slow={slow},mindie={mindie}") as server:
        async with aiohttp.ClientSession() as session:
            path, body = streams(30)["lmi"]  # 1.5 s
            whole, *answers = await asyncio.gather(
                ask(session, f"{server.url}{path}", body | {"stream": False}),
                *(ask(session, f"{server.url}{path}", body) for path, body in streams(30).values()),
            )
            assert whole.status == 200 and "generated_text" in whole.lines[0]
            for name, answer in zip(streams(30), answers, strict=True):
                assert answer.status == 200 and answer.pieces >= 30, name
                assert "error" not in answer.text, name
            await until_quiet(session, server.url)


@pytest.mark.asyncio
async def test_a_stream_that_is_only_kept_alive_times_out(tmp_path: Path) -> None:
    options = {
        "option.fake_step_ms": 1500, "option.predict_timeout": 0.7, "option.entryPoint": "model.py:Handler",
    }  # fmt: skip
    slow = fake_model(tmp_path / "slow", **options)
    mindie = fake_model(tmp_path / "mindie", **options, **{"option.tgi_dialect": "mindie"})
    for model in (slow, mindie):
        (model / "model.py").write_text(QUICKLY_KEPT_ALIVE)
    with running_server("-m", f"slow={slow},mindie={mindie}") as server:
        async with aiohttp.ClientSession() as session:
            answers = await asyncio.gather(
                *(ask(session, f"{server.url}{path}", body) for path, body in streams(1).values())
            )
    for name, answer in zip(streams(1), answers, strict=True):
        assert "option.predict_timeout" in answer.text, name
        assert answer.text.startswith(":") == (name != "lmi"), name  # whose stream is of lines, which have no comments


#: A handler whose first answer has a clean-up that never returns.
NEVER_CLEAN = """
import pathlib, threading
from djl_python import Output

def handle(inputs):
    if inputs.is_empty():
        return None
    output, first = Output().add("answer"), pathlib.Path(__file__).with_name("first")
    if not first.exists():
        first.touch()
        output.finalize(threading.Event().wait)
    return output
"""


@pytest.mark.asyncio
async def test_a_clean_up_that_never_returns_costs_a_timeout_and_not_the_model(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(NEVER_CLEAN)
    (tmp_path / "serving.properties").write_text("option.predict_timeout=0.5\n")
    with running_server("-m", f"m={tmp_path}") as server:
        async with aiohttp.ClientSession() as session:
            url = f"{server.url}/predictions/m"
            assert (await ask(session, url, "first")).text == "answer"
            behind = await ask(session, url, "behind")
            assert behind.status == 424 and "predict_timeout" in behind.text
            await until_answered(session, server.url)
            assert "a clean-up (Output.finalize" in server.output()


@pytest.mark.asyncio
async def test_a_failing_step_costs_its_culprit_only(tmp_path: Path) -> None:
    model = fake_model(tmp_path / "cursed", **{"option.fake_failing_token": ord("!"), "option.fake_step_ms": 5})
    with running_server("-m", str(model)) as server:
        async with aiohttp.ClientSession() as session:
            url = f"{server.url}/invocations"
            good = {"inputs": "abc", "parameters": {"max_new_tokens": 50}}
            answers = await asyncio.gather(
                *(ask(session, url, good) for _ in range(5)), ask(session, url, good | {"inputs": "abc!"})
            )
            assert [a.status for a in answers] == [200] * 5 + [424]
            assert "makes a step fail" in answers[-1].lines[0]["error"]


@pytest.fixture
def hangups_count() -> Iterator[None]:
    """Children die of SIGHUP unless they handle it, also where these tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.asyncio
@pytest.mark.usefixtures("hangups_count")
@pytest.mark.parametrize(
    "signal_number",
    [
        signal.SIGTERM,
        signal.SIGKILL,
        *(pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGINT, signal.SIGHUP)),
    ],
)
async def test_nothing_outlives_the_front_end(tmp_path: Path, signal_number: signal.Signals) -> None:
    model = fake_model(tmp_path / "m", **{"option.fake_step_ms": 10})
    with running_server("-m", str(model)) as server:
        family = psutil.Process(server.process.pid).children(recursive=True)
        assert len(family) == 2
        async with aiohttp.ClientSession() as session:
            running = asyncio.create_task(
                ask(session, f"{server.url}/invocations", {"inputs": "abc", "parameters": {"max_new_tokens": 40}})
            )
            await until_running(session, server.url, 1)
            from_terminal = signal_number in (signal.SIGINT, signal.SIGHUP)  # which sends them to all at once
            for pid in [server.process.pid, *(each.pid for each in family if from_terminal)]:
                os.kill(pid, signal_number)
            (answer,) = await asyncio.gather(running, return_exceptions=True)
        status = await asyncio.to_thread(server.process.wait, 20)
        if signal_number == signal.SIGKILL:
            assert isinstance(answer, aiohttp.ClientError)
        else:  # drained: what was running has ended well
            assert not isinstance(answer, BaseException) and answer.status == 200
            assert status == 0
        _, alive = await asyncio.to_thread(psutil.wait_procs, family, 10)
        assert alive == []


def test_a_model_that_cannot_start_says_why_and_is_not_restarted_for_ever(tmp_path: Path) -> None:
    model = tmp_path / "broken"
    model.mkdir()
    (model / "model.py").write_text("import json\n\ndef handle(inputs):\n    return json.loads('{')\n")
    with pytest.raises(RuntimeError) as caught, running_server("-m", str(model)):
        pass
    output = str(caught.value)
    assert "status 1" in output
    assert "JSONDecodeError" in output
    assert "model.py" in output and "line 4" in output
    assert "worker/service.py" not in output
