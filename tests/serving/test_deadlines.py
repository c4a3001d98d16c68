"""Answers that take longer than predict_timeout, and answers that a deadline ends: what each dialect makes of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import openai
import pytest

from djl_python.testing import RunningServer, running_server
from tests.serving.client import ask
from tests.serving.test_dialect_failures import CHAT, GENERATE, LONG, STREAM, model

PREDICT_TIMEOUT_S = 0.5
#: Tokens that take twice as long, at 20 ms each.
TOKENS = 50
COMPLETION = {"prompt": "abc", "max_tokens": LONG}
TRITON = {"text_input": "abc", "parameters": {"max_tokens": LONG}}
BEFORE_DEADLINE = {"x-request-timeout": "0.4"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("models")
    with running_server("-m", model(folder / "m", **{"option.predict_timeout": PREDICT_TIMEOUT_S})) as running:
        yield running


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as client_session:
        yield client_session


def reason(path: str, text: str) -> str | None:
    """Why an answer, or a stream's last event with a reason, says that it ended."""
    lines = [line.removeprefix("data:").strip() for line in text.splitlines()]
    for line in reversed([line for line in lines if line and line != "[DONE]"]):
        event = json.loads(line)
        event = event[0] if isinstance(event, list) else event
        if event.get("choices"):
            event = event["choices"][0]
        if why := event.get("finish_reason") or (event.get("details") or {}).get("finish_reason"):
            return str(why)
    return None


DETAILS = {"inputs": "abc", "parameters": {"max_new_tokens": LONG, "details": True}}
CASES = [
    ("/invocations", DETAILS),
    ("/invocations", CHAT),
    ("/v1/chat/completions", CHAT),
    ("/v1/completions", COMPLETION),
    ("/generate", DETAILS),
]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("path", "body"), CASES)
async def test_at_a_deadline_the_text_so_far_is_the_answer(
    server: RunningServer, session: aiohttp.ClientSession, path: str, body: Any, streamed: bool
) -> None:
    if streamed:
        path, body = path.replace("/generate", "/generate_stream"), body | STREAM
    async with session.post(f"{server.url}{path}", json=body, headers=BEFORE_DEADLINE) as answer:
        text = await answer.text()
    assert (answer.status, reason(path, text)) == (200, "length"), text


async def test_a_deadline_ends_tritons_answer_too(server: RunningServer, session: aiohttp.ClientSession) -> None:
    url = f"{server.url}/v2/models/m/generate"
    async with session.post(url, json=TRITON, headers=BEFORE_DEADLINE) as answer:
        assert answer.status == 200
        assert len((await answer.json())["text_output"]) in range(1, LONG)


async def test_openais_client_gets_what_was_generated(server: RunningServer) -> None:
    """Without `max_tokens`, which has the model generate to the end of its context."""
    client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    async with client:
        answer = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "abc"}], extra_headers=BEFORE_DEADLINE
        )
    (choice,) = answer.choices
    assert choice.finish_reason == "length" and choice.message.content
    assert answer.usage is not None and answer.usage.completion_tokens == len(choice.message.content)


async def test_whole_answers_outlast_predict_timeout_while_tokens_come(
    server: RunningServer, session: aiohttp.ClientSession
) -> None:
    def limited(body: Any) -> Any:
        short = json.loads(json.dumps(body).replace(str(LONG), str(TOKENS)))
        return {**short, "ignore_eos": True} if "prompt" in body else short

    urls = [f"{server.url}{path}" for path, _ in CASES]
    answers = await asyncio.gather(
        *(ask(session, url, limited(body)) for url, (_, body) in zip(urls, CASES, strict=True))
    )
    assert [(answer.status, reason(url, answer.text)) for url, answer in zip(urls, answers, strict=True)] == [
        (200, "length")
    ] * len(CASES)


async def test_a_deadline_that_is_no_number_is_refused(server: RunningServer, session: aiohttp.ClientSession) -> None:
    for path, status in (("/v1/chat/completions", 400), ("/invocations", 424), ("/generate", 400)):
        body = CHAT if path.startswith("/v1") else GENERATE
        async with session.post(f"{server.url}{path}", json=body, headers={"x-request-timeout": "soon"}) as answer:
            assert answer.status == status
            assert "x-request-timeout: expected a number of seconds above 0, got 'soon'" in await answer.text()
