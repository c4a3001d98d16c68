"""The built-in handler over a real engine process and a real (random) checkpoint."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import pytest_asyncio

from djl_python.core.errors import WorkerDiedError
from djl_python.core.types import Branching, Chat, Delta, GenerateRequest, SamplingParams, ToolUse
from djl_python.engine.client import EngineClient
from djl_python.handlers.text_generation import TextGenerationHandler
from tests.checkpoints import build_checkpoint
from tests.handlers.harness import BYTES, EOS, EOS_ID, Served

#: One engine for all but the test that kills it: a process that imports torch takes seconds to start.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = build_checkpoint(tmp_path_factory.mktemp("llama"), "llama")
    BYTES.save(str(path / "tokenizer.json"))
    config = {"eos_token": EOS, "chat_template": "{{ messages[0].content }}{{ tools | length if tools }}"}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    # The checkpoint's own id for it is a quotation mark here.
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS_ID}))
    return path


async def start(checkpoint: Path) -> Served:
    serving = Served(checkpoint)
    serving.handler = TextGenerationHandler(EngineClient.open)
    return await serving.load(threads=1, max_rolling_batch_size=8)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(checkpoint: Path) -> AsyncIterator[Served]:
    serving = await start(checkpoint)
    yield serving
    await serving.handler.close()


async def answer(served: Served, prompt: str, stream: bool = False, **parameters: Any) -> Any:
    task, reply = served.ask(prompt, stream, **parameters)
    await task
    return reply.lines() if stream else json.loads(reply.body)


async def test_text_is_the_same_alone_together_and_streamed(served: Served) -> None:
    prompts = [f"prompt number {n}, " * (1 + n % 3) for n in range(12)]
    given: list[dict[str, Any]] = [
        {"max_new_tokens": 5 + n} | ({"do_sample": True, "seed": n} if n % 2 else {}) for n in range(12)
    ]
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


async def test_a_forced_call_has_arguments_that_parse(served: Served) -> None:
    unit = {"type": "object", "properties": {"unit": {"enum": ["c", "f"]}}, "required": ["unit"]}
    tools = (
        {"type": "function", "function": {"name": "heat", "parameters": {**unit, "additionalProperties": False}}},
        {"type": "function", "function": {"name": "now"}},
    )
    for use in (ToolUse(tools=tools, choice="named", name="heat"), ToolUse(tools=tools, choice="required")):
        request = GenerateRequest(
            prompt=Chat(messages=({"role": "user", "content": "hi"},), tool_use=use),
            sampling=SamplingParams(max_new_tokens=200, do_sample=True, seed=5),
        )
        task, reply = served.call("plain", "generate", {"requests": [request], "stream": True})
        await task
        deltas = [msgspec.json.decode(line, type=Delta) for line in reply.body.splitlines()]
        calls = [call for delta in deltas for call in delta.tool_calls if call.index == 0]
        assert calls[0].name in ("heat", "now")
        arguments = json.loads("".join(call.arguments for call in calls))
        assert arguments == {} if calls[0].name == "now" else arguments["unit"] in ("c", "f")
        assert "".join(delta.text for delta in deltas) == ""


async def test_several_sequences_share_the_prompts_blocks(served: Served) -> None:
    request = GenerateRequest(
        prompt="a prompt that fills several blocks of the cache, " * 3,
        sampling=SamplingParams(max_new_tokens=20, do_sample=True, seed=3, ignore_eos=True),
        branching=Branching(n=4, best_of=4),
    )
    used: list[float] = []
    own = served.metrics.gauge

    def gauge(name: str, value: float) -> None:
        if name == "kv_cache_blocks_used":
            used.append(value)
        own(name, value)

    served.metrics.gauge = gauge  # type: ignore[method-assign]
    task, reply = served.call("plain", "generate", {"requests": [request], "stream": False})
    await task
    finishes = [msgspec.json.decode(line, type=Delta).finish for line in reply.body.splitlines()]
    assert [finish.generated_tokens for finish in finishes if finish is not None] == [20] * 4
    alone = -(-(len(BYTES.encode(request.prompt).ids) + 20) // 16)
    # Blocks of 16 tokens: four sequences without sharing would need four times as many.
    assert max(used) < 2 * alone


async def test_an_engine_that_is_killed_ends_every_request(checkpoint: Path) -> None:
    others = set(psutil.Process().children())
    served = await start(checkpoint)
    streaming, reply = served.ask("hello", stream=True, max_new_tokens=200, ignore_eos=True)
    whole, whole_reply = served.ask("hello", max_new_tokens=200, ignore_eos=True)
    while not reply.started:
        await asyncio.sleep(0)
    (engine,) = set(psutil.Process().children()) - others
    engine.kill()
    await streaming
    assert "ended unexpectedly" in reply.lines()[-1]["error"]
    with pytest.raises(WorkerDiedError):
        await whole
    assert not whole_reply.started
    assert served.failures == ["the engine process ended unexpectedly"]
    await served.handler.close()
