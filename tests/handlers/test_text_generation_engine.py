"""The built-in handler over a real engine process and a real (random) checkpoint."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from djl_python.engine.client import EngineClient
from djl_python.errors import GenerationError
from djl_python.handlers.text_generation import TextGenerationHandler

from ..checkpoints import build_checkpoint
from .test_text_generation import BYTES, EOS, Served

#: One engine for all but the test that kills it: a process that imports torch takes seconds to start.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = build_checkpoint(tmp_path_factory.mktemp("llama"), "llama")
    BYTES.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": EOS}))
    return path


async def start(checkpoint: Path) -> Served:
    found = Served(checkpoint)
    found.handler = TextGenerationHandler(EngineClient.open)
    return await found.load(threads=1, max_rolling_batch_size=8)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(checkpoint: Path) -> AsyncIterator[Served]:
    found = await start(checkpoint)
    yield found
    await found.handler.close()


async def answer(served: Served, prompt: str, stream: bool = False, **parameters: Any) -> Any:
    task, reply = served.ask(prompt, stream, **parameters)
    await task
    return reply.lines() if stream else json.loads(reply.body)


async def test_text_is_the_same_alone_together_and_streamed(served: Served) -> None:
    prompts = [f"prompt number {n}, " * (1 + n % 3) for n in range(12)]
    given = [{"max_new_tokens": 5 + n} | ({"do_sample": True, "seed": n} if n % 2 else {}) for n in range(12)]
    alone = [
        (await answer(served, prompt, details=True, **parameters))
        for prompt, parameters in zip(prompts, given, strict=True)
    ]
    together = await asyncio.gather(
        *(answer(served, p, details=True, **parameters) for p, parameters in zip(prompts, given, strict=True))
    )
    streamed = await asyncio.gather(
        *(answer(served, p, stream=True, **parameters) for p, parameters in zip(prompts, given, strict=True))
    )
    for one, same, lines in zip(alone, together, streamed, strict=True):
        assert same["generated_text"] == one["generated_text"] == lines[-1]["generated_text"]
        ids = [token["id"] for token in one["details"]["tokens"]]
        assert ids == [token["id"] for token in same["details"]["tokens"]] == [line["token"]["id"] for line in lines]
        assert "".join(line["token"]["text"] for line in lines) == one["generated_text"]


async def test_prompt_tokens_and_alternatives(served: Served) -> None:
    details = (await answer(served, "hello", max_new_tokens=2, prompt_logprobs=1, top_n_tokens=2, details=True))[
        "details"
    ]
    assert "".join(token["text"] for token in details["prefill"]) == "hello"
    assert details["prefill"][0]["log_prob"] is None
    assert all(token["log_prob"] <= 0 for token in details["prefill"][1:])
    assert [len(top) for top in details["top_tokens"]] == [2, 2]
    assert details["top_tokens"][0][0]["id"] == details["tokens"][0]["id"]


async def test_a_stop_sequence_frees_the_sequence(served: Served) -> None:
    tokens = (await answer(served, "hello", max_new_tokens=20, details=True))["details"]["tokens"]
    text = next(token["text"] for token in tokens[3:] if token["text"].strip("\ufffd"))
    stopped = await answer(served, "hello", max_new_tokens=200, stop_sequences=[text], details=True)
    assert stopped["details"]["finish_reason"] == "stop_sequence"
    assert text not in stopped["generated_text"]
    await answer(served, "again", max_new_tokens=2)
    assert served.metrics.gauges["running_requests"] == 0


async def test_an_engine_that_is_killed_ends_every_request(checkpoint: Path) -> None:
    served = await start(checkpoint)
    streaming, reply = served.ask("hello", stream=True, max_new_tokens=200, ignore_eos=True)
    whole, whole_reply = served.ask("hello", max_new_tokens=200, ignore_eos=True)
    while not reply.started:
        await asyncio.sleep(0)
    os.kill(served.handler._engine.pid, signal.SIGKILL)
    await streaming
    assert "ended unexpectedly" in reply.lines()[-1]["error"]
    with pytest.raises(GenerationError):
        await whole
    assert not whole_reply.started
    assert served.failures == ["the engine process ended unexpectedly"]
    await served.handler.close()
