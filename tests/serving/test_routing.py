"""A model with two workers: which of them gets a request, as its cache and its metrics show."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from djl_python.testing import RunningServer, running_server

DEMO = Path("serving_templates/demo").resolve()
SESSION = "X-Amzn-SageMaker-Session-Id"
TEXT = "Deep learning uses neural networks with many layers to find structure in data. " * 3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Each worker generates one sequence at a time: it is busy as soon as it has a request. Both are ready."""
    folder = tmp_path_factory.mktemp("demo")
    (folder / "serving.properties").write_text(
        f"minWorkers=2\noption.model_id={DEMO}\noption.max_rolling_batch_size=1\noption.dtype=fp32\noption.threads=1\n"
        f"retry_threshold=5\noption.sessions_path={folder / 'sessions'}\n"
    )
    with running_server("-m", f"demo={folder}") as running:
        wait_until_all_ready(running.url)
        yield running


class Chat:
    """A conversation of its own: `name` is at its beginning."""

    def __init__(self, url: str, name: str) -> None:
        self.url = f"{url}/v1/chat/completions"
        self.messages = [{"role": "system", "content": f"{name}: {TEXT}"}]

    def body(self, question: str, **fields: Any) -> dict[str, Any]:
        self.messages.append({"role": "user", "content": question})
        return {"messages": self.messages, "max_tokens": 4, "temperature": 0, **fields}

    def ask(self, question: str) -> tuple[int, int]:
        """Tokens of the prompt, and how many of these the worker had."""
        answer = httpx.post(self.url, json=self.body(question), timeout=60)
        assert answer.status_code == 200, answer.text
        reply = answer.json()
        self.messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})
        usage = reply["usage"]
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def metrics(url: str) -> dict[str, dict[str, float]]:
    """Metric -> the outcome, or "", -> its value."""
    by_metric: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(httpx.get(f"{url}/metrics").text):
        for sample in family.samples:
            by_metric.setdefault(sample.name, {})[sample.labels.get("outcome", "")] = sample.value
    return by_metric


def outcomes(url: str) -> Counter[str]:
    return Counter({name: int(count) for name, count in metrics(url).get("djl_routed_requests_total", {}).items()})


def workers(url: str) -> list[dict[str, Any]]:
    (workflow,) = httpx.get(f"{url}/models/demo").json()
    ((group,),) = (model["workerGroups"] for model in workflow["models"])
    entries: list[dict[str, Any]] = group["workers"]
    return entries


def wait_until_all_ready(url: str, seconds: float = 120) -> None:
    """A model is ready with its first worker."""
    until = time.monotonic() + seconds
    while not all(worker["status"] == "READY" for worker in workers(url)):
        assert time.monotonic() < until, workers(url)
        time.sleep(0.05)


def test_a_chat_stays_with_the_worker_that_has_computed_it(server: RunningServer) -> None:
    before = outcomes(server.url)
    chats = [Chat(server.url, name) for name in ("first", "second", "third")]
    for chat in chats:
        assert chat.ask("What is it?")[1] < 16
    for chat in reversed(chats):
        asked, cached = chat.ask("And what else?")
        assert cached > asked / 2
    assert outcomes(server.url) - before == {"miss": 3, "hit": 3}
    counted = metrics(server.url)
    assert 0 < counted["djl_cached_prompt_tokens_total"][""] < counted["djl_prompt_tokens_total"][""]


async def test_a_chat_goes_elsewhere_while_its_worker_is_busy_and_is_known_there_then(server: RunningServer) -> None:
    before, chat = outcomes(server.url), Chat(server.url, "busy")
    chat.ask("What is it?")
    async with httpx.AsyncClient(timeout=60) as client:
        body = chat.body("Go on.", max_tokens=400, ignore_eos=True, stream=True)
        async with client.stream("POST", chat.url, json=body) as long:
            lines = long.aiter_lines()
            await anext(lines)  # its worker has it
            elsewhere = await asyncio.to_thread(chat.ask, "And what else?")
            again = await asyncio.to_thread(chat.ask, "Why?")
            assert [line async for line in lines][-2:] == ["data: [DONE]", ""]
    assert elsewhere[1] < 16 and again[1] > again[0] / 2
    assert outcomes(server.url) - before == {"miss": 1, "hit": 2, "busy": 1}


def test_a_session_stays_with_its_worker_whatever_it_asks(server: RunningServer) -> None:
    url = f"{server.url}/invocations"
    opened = httpx.post(url, json={"requestType": "NEW_SESSION"}, timeout=60)
    headers = {SESSION: opened.headers[SESSION].partition(";")[0]}
    before = outcomes(server.url)
    for number in range(4):
        inputs = {"inputs": f"{number} {TEXT}", "parameters": {"max_new_tokens": 1}}
        assert httpx.post(url, json=inputs, headers=headers, timeout=60).status_code == 200
    assert outcomes(server.url) - before == {"miss": 1, "hit": 3}


async def test_the_chats_of_a_killed_worker_are_forgotten(server: RunningServer) -> None:
    chats = [Chat(server.url, name) for name in ("here", "there")]
    for chat in chats:  # in turn, to both workers
        chat.ask("What is it?")
    assert all(chat.ask("And what else?")[1] > 16 for chat in chats)
    os.kill(workers(server.url)[0]["pid"], signal.SIGKILL)
    async with asyncio.timeout(10):
        while all(worker["status"] == "READY" for worker in workers(server.url)):
            await asyncio.sleep(0.05)
    before = outcomes(server.url)
    remembered = [cached > 16 for _, cached in (chat.ask("Why?") for chat in chats)]
    assert sorted(remembered) == [False, True]
    assert outcomes(server.url) - before == {"miss": 1, "hit": 1}
