"""What goes wrong raises the right exception in OpenAI's own client. Two models whose engine needs no checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import openai
import psutil
import pytest

from djl_python.testing import FAKE_ENGINE, RunningServer, running_server, write_byte_tokenizer
from tests.serving.client import until_quiet

CURSED = "!"


def fake_model(path: Path, **properties: object) -> str:
    write_byte_tokenizer(path)
    (path / "config.json").write_text("{}")
    settings = {"option.rolling_batch": FAKE_ENGINE, "option.entryPoint": "djl_python.huggingface", **properties}
    (path / "serving.properties").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return str(path)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("models")
    slow = {"option.fake_step_ms": 20, "option.max_rolling_batch_size": 1, "job_queue_size": 1}
    cursed = {"option.fake_failing_token": ord(CURSED)}
    models = [fake_model(folder / "slow", **slow), fake_model(folder / "cursed", **cursed)]
    with running_server("-m", models[0], "-m", models[1]) as server:
        yield server


@pytest.fixture
async def client(server: RunningServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_an_unknown_or_empty_model_is_refused(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["slow", "cursed"]
    answer = await client.completions.create(model="cursed", prompt="abc", max_tokens=3)
    assert (answer.model, answer.choices[0].text) == ("cursed", "abc")
    with pytest.raises(openai.NotFoundError) as caught:
        await client.completions.create(model="other", prompt="abc")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert "slow, cursed" in caught.value.message
    with pytest.raises(openai.BadRequestError) as unnamed:
        await client.completions.create(model="", prompt="abc")
    assert unnamed.value.param == "model"


async def test_a_model_without_a_chat_template(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="this model has no chat template") as caught:
        await client.chat.completions.create(model="cursed", messages=[{"role": "user", "content": "Hi."}])
    assert caught.value.param == "messages"


async def test_a_failing_generation(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.InternalServerError, match="makes a step fail") as caught:
        await client.completions.create(model="cursed", prompt=f"abc{CURSED}")
    assert (caught.value.status_code, caught.value.code) == (500, "generation")


async def test_a_body_that_is_no_json(server: RunningServer) -> None:
    headers = {"content-type": "application/json"}
    async with aiohttp.ClientSession() as session:
        url = f"{server.url}/v1/completions?model_name=cursed"
        async with session.post(url, data=b"{", headers=headers) as answer:
            assert answer.status == 400
            assert (await answer.json())["error"]["type"] == "invalid_request_error"
        async with session.get(url) as answer:
            assert answer.status == 405
            assert (await answer.json())["error"]["type"] == "invalid_request_error"


async def test_a_full_queue(server: RunningServer, client: openai.AsyncOpenAI) -> None:
    """Two are in the worker and one waits; the fourth is refused while they go on."""
    calls = [
        asyncio.create_task(client.completions.create(model="slow", prompt="abc", max_tokens=1900)) for _ in range(4)
    ]
    async with asyncio.timeout(20):
        (refused,), going_on = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    error = refused.exception()
    assert isinstance(error, openai.RateLimitError)
    assert error.code == "rate_limit_exceeded"
    assert int(error.response.headers["retry-after"]) >= 1
    for call in going_on:
        call.cancel()
    await asyncio.gather(*going_on, return_exceptions=True)
    async with aiohttp.ClientSession() as session:
        await until_quiet(session, server.url)


async def test_an_engine_that_dies_while_it_streams(server: RunningServer, client: openai.AsyncOpenAI) -> None:
    stream = await client.completions.create(model="slow", prompt="abc", max_tokens=1900, stream=True)
    children = psutil.Process(server.process.pid).children(recursive=True)
    engines = [child for child in children if "djl_python.engine" in child.cmdline()]
    with pytest.raises(openai.APIError, match="ended"):
        async for _ in stream:  # pieces that were on their way come after its end
            while engines:
                engines.pop().kill()
