"""A full queue, and processes that die in the middle of an answer: what each dialect makes of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from djl_python.testing import FAKE_ENGINE, RunningServer, running_server, write_byte_tokenizer
from tests.serving.client import Answer, ask, metrics, until_quiet

MESSAGES = [{"role": "user", "content": "abc"}]
LONG = 4000
GENERATE = {"inputs": "abc", "parameters": {"max_new_tokens": LONG}}
CHAT = {"messages": MESSAGES, "max_tokens": LONG}
STREAM = {"stream": True}


def model(path: Path, **properties: object) -> str:
    """Repeats its prompt, a token every 20 ms."""
    write_byte_tokenizer(path)
    (path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    settings = {"option.model_id": path, "option.rolling_batch": FAKE_ENGINE, "option.fake_step_ms": 20, **properties}
    (path / "serving.properties").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return f"{path.name}={path}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("models")
    busy = {"option.max_rolling_batch_size": 1, "job_queue_size": 1}
    specs = (
        model(folder / "plain"),
        model(folder / "compat", **{"option.tgi_compat": "true", "option.tgi_dialect": "mindie"}),
        model(folder / "busy", **busy),
        model(folder / "busy_mindie", **busy, **{"option.tgi_dialect": "mindie"}),
    )
    with running_server(*(argument for spec in specs for argument in ("-m", spec))) as running:
        yield running


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as client_session:
        yield client_session


# ------------------------------------------------------------------------------------------------ a full queue

OPENAI_FULL = {"type": "requests", "param": None, "code": "rate_limit_exceeded"}
TGI_FULL = {"error": "Model is overloaded", "error_type": "overloaded"}


@pytest.mark.parametrize(
    ("name", "path", "body", "status", "expected"),
    [
        ("busy", "/invocations", GENERATE, 503, {"code": 503, "type": "WlmCapacityException"}),
        ("busy", "/invocations", CHAT, 503, {"code": 503, "type": "WlmCapacityException"}),
        ("busy", "/v1/chat/completions", CHAT, 429, OPENAI_FULL),
        ("busy", "/v1/completions", {"prompt": "abc"} | STREAM, 429, OPENAI_FULL),
        ("busy", "/generate", GENERATE, 429, TGI_FULL),
        ("busy", "/", GENERATE | STREAM, 429, TGI_FULL),
        ("busy", "/generate_stream", GENERATE, 429, TGI_FULL),
        ("busy", "/v2/models/busy/generate", {"text_input": "abc"}, 503, {}),
        ("busy_mindie", "/generate_stream", GENERATE, 429, TGI_FULL),
    ],
)
async def test_a_full_queue(
    server: RunningServer,
    session: aiohttp.ClientSession,
    name: str,
    path: str,
    body: Any,
    status: int,
    expected: dict[str, Any],
) -> None:
    """Two are with the worker and one waits; the fourth is refused at once, and told when to come back."""
    query = f"?model_name={name}"
    waiting = [asyncio.create_task(ask(session, f"{server.url}/invocations{query}", GENERATE)) for _ in range(3)]
    async with asyncio.timeout(10):
        while (await metrics(session, server.url))["djl_queued_requests"] < 1:
            await asyncio.sleep(0.01)
    async with asyncio.timeout(2):
        answer = await ask(session, f"{server.url}{path}{query}", body)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await until_quiet(session, server.url)
    assert answer.status == status
    assert int(answer.headers["retry-after"]) >= 1
    (error,) = answer.lines
    shape = error["error"] if isinstance(error.get("error"), dict) else error
    assert expected.items() <= shape.items()
    # An event where every answer is a stream of them, and JSON elsewhere.
    events = path == "/generate_stream" and name == "busy"
    assert answer.headers["content-type"] == ("text/event-stream" if events else "application/json")


# ------------------------------------------------------------------------------------------------ death

ENDED = "ended"


def lmi(last: Any, compat: bool) -> bool:
    token = {"id": -1, "text": "", **({"logprob": -1, "special": True} if compat else {"log_prob": -1})}
    details = {"finish_reason": "error", "generated_tokens": None, "inputs": None}
    same = token.items() <= last["token"].items() and (last["details"], last["code"]) == (details, 424)
    return same and ENDED in last["error"] and ("error_type" in last) == compat


def lmi_chat(last: Any, compat: bool) -> bool:
    (choice,) = last["choices"]
    same = (last["object"], choice["finish_reason"], last["code"]) == ("chat.completion.chunk", "error", 424)
    return same and ENDED in last["error"] and ("error_type" in last) == compat


def openai(last: Any, compat: bool) -> bool:
    keys = {"message", "http_status_code"} if compat else {"message", "type", "param", "code"}
    return last.keys() == {"error"} and last["error"].keys() == keys and ENDED in last["error"]["message"]


def tgi(last: Any, compat: bool) -> bool:
    return last.keys() == {"error", "error_type"} and last["error_type"] == "generation" and ENDED in last["error"]


def triton(last: Any, compat: bool) -> bool:
    return last.keys() == {"error"} and ENDED in last["error"]


Check = Callable[[Any, bool], bool]
#: Path, body, and whether the last object of the stream is that of a failure.
STREAMS: list[tuple[str, Any, Check]] = [
    ("/invocations", GENERATE | STREAM, lmi),
    ("/invocations", CHAT | STREAM, lmi_chat),
    ("/v1/chat/completions", CHAT | STREAM, openai),
    ("/v1/completions", {"prompt": "abc", "max_tokens": LONG} | STREAM, openai),
    ("/", GENERATE | STREAM, tgi),
    ("/generate_stream", GENERATE, tgi),
    ("/v2/models/{}/generate_stream", {"text_input": "abc", "parameters": {"max_tokens": LONG}}, triton),
]
#: Path, body, the status of an answer that is not streamed, and under option.tgi_compat.
WHOLE: list[tuple[str, Any, int, int]] = [
    ("/invocations", GENERATE, 424, 424),
    ("/invocations", CHAT, 424, 424),
    ("/v1/chat/completions", CHAT, 500, 424),
    ("/v1/completions", {"prompt": "abc", "max_tokens": LONG}, 500, 424),
    ("/generate", GENERATE, 424, 424),
    ("/v2/models/{}/generate", {"text_input": "abc", "parameters": {"max_tokens": LONG}}, 500, 500),
]


async def stream(session: aiohttp.ClientSession, url: str, body: Any, begun: asyncio.Queue[str]) -> tuple[str, str]:
    """(content type, text) of a stream that is read to its proper end; its first piece is announced."""
    async with session.post(url, json=body) as response:
        assert response.status == 200
        data = await response.content.readany()
        begun.put_nowait(url)
        data += await response.content.read()
        return response.headers["content-type"], data.decode()


def process(server: RunningServer, name: str, module: str) -> psutil.Process:
    """A model's worker, which is in the model's directory, or that worker's engine."""
    for child in psutil.Process(server.process.pid).children():
        if child.cwd().endswith(f"/{name}"):
            return child if module == "djl_python.worker" else child.children()[0]
    raise AssertionError(f"no worker of {name}")


@pytest.mark.parametrize("module", ["djl_python.engine", "djl_python.worker"])
@pytest.mark.parametrize("name", ["plain", "compat"])
async def test_a_process_dies_in_the_middle(
    server: RunningServer, session: aiohttp.ClientSession, name: str, module: str
) -> None:
    def url(path: str) -> str:
        return f"{server.url}{path.format(name)}?model_name={name}"

    begun: asyncio.Queue[str] = asyncio.Queue()
    streams = [asyncio.create_task(stream(session, url(path), body, begun)) for path, body, _ in STREAMS]
    wholes = [asyncio.create_task(ask(session, url(path), body)) for path, body, *_ in WHOLE]
    async with asyncio.timeout(20):
        for _ in streams:
            await begun.get()
        while (await metrics(session, server.url))["djl_running_requests"] < len(streams) + len(wholes):
            await asyncio.sleep(0.01)
        process(server, name, module).kill()
        ended = await asyncio.gather(*streams)
        answers: list[Answer] = await asyncio.gather(*wholes)
    for (path, body, check), (content_type, text) in zip(STREAMS, ended, strict=True):
        lines = [line.removeprefix("data:").strip() for line in text.splitlines() if line]
        if path.startswith("/v1"):
            assert lines.pop() == "[DONE]"
        assert check(json.loads(lines[-1]), name == "compat"), (path, body, lines[-1])
        assert text.endswith("\n\n" if content_type.startswith("text/event-stream") else "}\n")
    for (path, _, status, compat_status), answer in zip(WHOLE, answers, strict=True):
        assert answer.status == (compat_status if name == "compat" else status), (path, answer.text)
        assert ENDED in answer.text
    async with asyncio.timeout(60):
        while (await ask(session, url("/invocations"), GENERATE | {"parameters": {"max_new_tokens": 1}})).status != 200:
            await asyncio.sleep(0.1)
    await until_quiet(session, server.url)
