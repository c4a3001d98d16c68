"""Many clients at once, each with its own parameters, some of whom leave: nobody notices the others."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import aiohttp
import pytest

from djl_python.testing import RunningServer
from tests.serving.client import Answer, ask, metrics, until_quiet

CLIENTS = 64
PROMPTS = [
    "What is deep learning?",
    "What is a token?",
    "Count to twenty.",
    "Say hello in Japanese.",
    "What is continuous batching?",
    "Tell me a short story.",
    "Who are you?",
    "What is a paged KV cache? " * 9,
]


def random_body(rng: random.Random) -> dict[str, Any]:
    """A request that gives the same answer every time."""
    parameters: dict[str, Any] = {"max_new_tokens": rng.randrange(1, 60), "details": True}
    if rng.random() < 0.5:
        parameters |= {"do_sample": True, "seed": rng.randrange(2**32), "temperature": rng.choice([0.5, 1.0, 1.4])}
        parameters |= rng.choice([{}, {"top_k": 20}, {"top_p": 0.8}, {"min_p": 0.05}, {"typical_p": 0.9}])
    parameters |= rng.choice([{}, {}, {"repetition_penalty": 1.2}, {"presence_penalty": 0.5, "frequency_penalty": 0.3}])
    parameters |= rng.choice([{}, {}, {"stop_sequences": ["e l", "."]}, {"ignore_eos_token": True}, {"logprobs": 2}])
    parameters |= rng.choice([{}, {}, {"decoder_input_details": True}, {"min_new_tokens": 8}, {"truncate": 5}])
    return {
        "inputs": rng.choice(PROMPTS),
        "parameters": parameters | {"output_formatter": rng.choice(["jsonlines", "sse"])},
        "stream": True,
    }


def content(answer: Answer) -> tuple[str, list[int], str]:
    """What must not depend on who else is there: text, ids, finish reason."""
    assert answer.status == 200, answer.text
    *_, last = lines = answer.lines
    text = "".join(line["token"]["text"] for line in lines)
    assert last["generated_text"] == text
    details = last["details"]
    assert details["generated_tokens"] == len(lines)
    return text, [line["token"]["id"] for line in lines], details["finish_reason"]


@pytest.mark.asyncio
async def test_64_streams_with_mixed_parameters_and_disconnects_answer_as_if_alone(demo: RunningServer) -> None:
    rng = random.Random(2)
    bodies = [random_body(rng) for _ in range(CLIENTS)]
    leaving = {i: rng.choice([0, 1, 2, 5]) for i in range(CLIENTS) if rng.random() < 0.25}
    url = f"{demo.url}/invocations"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def late(index: int) -> Answer:
            await asyncio.sleep(rng.random() * 0.5)
            return await ask(session, url, bodies[index], leave_after_pieces=leaving.get(index))

        together = await asyncio.gather(*(late(i) for i in range(CLIENTS)))
        await until_quiet(session, demo.url)
        stayed = [i for i in range(CLIENTS) if i not in leaving]
        assert len(stayed) > CLIENTS / 2
        for i in stayed:
            alone = await ask(session, url, bodies[i])
            assert content(together[i]) == content(alone), bodies[i]
        await until_quiet(session, demo.url)


@pytest.mark.asyncio
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_blocks(demo: RunningServer, stream: bool) -> None:
    body = {
        "inputs": "Count to twenty.",
        "parameters": {"max_new_tokens": 1900, "ignore_eos_token": True},
        "stream": stream,
    }
    async with aiohttp.ClientSession() as session:
        before = await metrics(session, demo.url)
        task = asyncio.create_task(ask(session, f"{demo.url}/invocations", body))
        async with asyncio.timeout(10):
            while (await metrics(session, demo.url))["djl_running_requests"] == 0:
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until_quiet(session, demo.url, timeout_s=2.0)
        after = await metrics(session, demo.url)
    assert after["djl_aborted_requests_total"] == before["djl_aborted_requests_total"] + 1
    generated = after["djl_generated_tokens_total"] - before["djl_generated_tokens_total"]
    assert generated < 1500, "it did not go on to the end"


@pytest.mark.asyncio
async def test_stream_and_whole_answer_have_the_same_text_and_tokens(demo: RunningServer) -> None:
    rng = random.Random(9)
    async with aiohttp.ClientSession() as session:
        for _ in range(12):
            body = random_body(rng)
            streamed = await ask(session, f"{demo.url}/predictions/demo", body)
            del body["parameters"]["output_formatter"]
            whole = await ask(session, f"{demo.url}/predictions/demo", body | {"stream": False})
            text, ids, reason = content(streamed)
            (answer,) = whole.lines
            assert answer["generated_text"] == text
            assert [token["id"] for token in answer["details"]["tokens"]] == ids
            assert answer["details"]["finish_reason"] == reason
            assert "\ufffd" not in text


@pytest.mark.asyncio
async def test_bad_requests_cost_their_neighbours_nothing(demo: RunningServer) -> None:
    good = {"inputs": "What is deep learning?", "parameters": {"max_new_tokens": 24}}
    bad: list[Any] = [
        {"inputs": ""},
        {"inputs": "x", "parameters": {"temperature": -1}},
        {"inputs": 7},
        ["not an object"],
        {"inputs": "What is a token? " * 2000},
    ]
    async with aiohttp.ClientSession() as session:
        url = f"{demo.url}/invocations"
        expected = await ask(session, url, good)
        answers = await asyncio.gather(*(ask(session, url, body) for body in [good, *bad] * 4))
        for i, answer in enumerate(answers):
            if i % 6 == 0:
                assert answer.text == expected.text
            else:
                assert answer.status == 424
                assert answer.lines[0]["code"] == 424 and answer.lines[0]["error"]
        await until_quiet(session, demo.url)
