"""Beam search gives what transformers' generate gives."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM

from djl_python.engine.client import EngineClient
from djl_python.errors import ParameterError
from djl_python.handlers.beam_search import Beams
from djl_python.handlers.text_generation import TextGenerationHandler
from djl_python.types import Branching, Delta, Finish, GenerateRequest, Grammar, SamplingParams, TextOptions

from ..checkpoints import build_checkpoint
from .harness import BYTES, EOS, Served

#: One engine for the module: a process that imports torch takes seconds to start.
pytestmark = pytest.mark.asyncio(loop_scope="module")

EOS_ID = 1
PROMPTS = [list(range(20, 60)), [5, 9, 200, 33], [7] * 17]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = build_checkpoint(tmp_path_factory.mktemp("llama"), "llama")
    BYTES.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": EOS}))
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(checkpoint: Path) -> AsyncIterator[Served]:
    found = Served(checkpoint)
    found.handler = TextGenerationHandler(EngineClient.open)
    await found.load(threads=1, max_rolling_batch_size=8, block_size=4, dtype="fp32")
    yield found
    await found.handler.close()


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> Iterator[Any]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield AutoModelForCausalLM.from_pretrained(checkpoint).eval()
    torch.set_num_threads(threads)


async def search(served: Served, request: GenerateRequest) -> tuple[list[list[int]], list[Finish]]:
    """(ids, finish) of every choice, best first."""
    task, reply = served.call("plain", "generate", {"requests": [request]})
    await task
    ids: dict[int, list[int]] = {}
    finishes: dict[int, Finish] = {}
    for line in reply.body.splitlines():
        delta = msgspec.json.decode(line, type=Delta)
        ids.setdefault(delta.choice, []).extend(token.id for token in delta.tokens)
        if delta.finish is not None:
            finishes[delta.choice] = delta.finish
    return [ids[i] for i in sorted(ids)], [finishes[i] for i in sorted(finishes)]


def reference(model: Any, prompt: list[int], end_ids: list[int], **arguments: Any) -> list[list[int]]:
    """What generate answers with, without its padding."""
    found = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        eos_token_id=end_ids,
        pad_token_id=0,
        **arguments,
    )
    answers = []
    for row in found[:, len(prompt) :].tolist():
        end = next((at for at, token in enumerate(row, 1) if token in end_ids), len(row))
        answers.append(row[:end])
    return answers


#: Ends that a random model comes across: without them no beam would finish before its time.
ENDS: list[list[int]] = [[], list(range(40, 60)), list(range(100, 200))]


@pytest.mark.parametrize("ends", ENDS, ids=["no-ends", "some-ends", "many-ends"])
@pytest.mark.parametrize(
    ("num_beams", "branching"),
    [
        (2, {}),
        (4, {"n": 4}),
        (3, {"length_penalty": 2.0, "n": 2}),
        (3, {"length_penalty": 0.0}),
        (5, {"length_penalty": -1.0, "early_stopping": True, "n": 5}),
    ],
)
async def test_equals_generate(
    served: Served, model: Any, num_beams: int, branching: dict[str, Any], ends: list[int]
) -> None:
    arguments = {"length_penalty": 1.0, "early_stopping": False, **branching}
    n = arguments.pop("n", 1)
    for prompt in PROMPTS:
        request = GenerateRequest(
            prompt=tuple(prompt),
            sampling=SamplingParams(max_new_tokens=12, stop_token_ids=tuple(ends)),
            branching=Branching(n=n, num_beams=num_beams, **arguments),
        )
        expected = reference(
            model,
            prompt,
            [EOS_ID, *ends],
            max_new_tokens=12,
            num_beams=num_beams,
            num_return_sequences=n,
            **arguments,
        )
        assert (await search(served, request))[0] == expected


async def test_a_minimum_length(served: Served, model: Any) -> None:
    ends = list(range(100, 200))
    request = GenerateRequest(
        prompt=tuple(PROMPTS[0]),
        sampling=SamplingParams(max_new_tokens=10, min_new_tokens=6, stop_token_ids=tuple(ends)),
        branching=Branching(num_beams=3),
    )
    expected = reference(model, PROMPTS[0], [EOS_ID, *ends], max_new_tokens=10, min_new_tokens=6, num_beams=3)
    assert (await search(served, request))[0] == expected


async def test_what_is_told_of_the_answer(served: Served) -> None:
    request = GenerateRequest(
        prompt="hello",
        sampling=SamplingParams(max_new_tokens=6, top_logprobs=2, prompt_logprobs=0),
        branching=Branching(n=2, num_beams=3),
    )
    task, reply = served.call("plain", "generate", {"requests": [request], "stream": True})
    await task
    deltas = [msgspec.json.decode(line, type=Delta) for line in reply.body.splitlines()]
    assert {delta.choice for delta in deltas} == {0, 1}
    for choice in (0, 1):
        tokens = [token for delta in deltas if delta.choice == choice for token in delta.tokens]
        (finish,) = [delta.finish for delta in deltas if delta.choice == choice and delta.finish is not None]
        assert all(len(token.top) == 2 for token in tokens)
        assert finish.generated_tokens == len(tokens) == 6
        assert finish.reason == "length"
        assert finish.cumulative_logprob == pytest.approx(sum(token.logprob or 0.0 for token in tokens))
        assert "".join(token.text for token in finish.prefill) == "hello"
        assert finish.timings.inference_s > 0
        assert finish.seed is None


async def test_a_stop_sequence_finishes_a_beam(served: Served) -> None:
    free = GenerateRequest(prompt="hello", sampling=SamplingParams(max_new_tokens=12), branching=Branching(num_beams=2))
    (finish,) = (await search(served, free))[1]
    stop = next(char for char in finish.text[2:] if char != "\ufffd")
    stopping = msgspec.structs.replace(free, text=TextOptions(stop_sequences=(stop,)))
    (stopped,) = (await search(served, stopping))[1]
    assert stop not in stopped.text
    assert stopped.reason in ("stop_sequence", "length")
    assert stopped.generated_tokens <= 12


@pytest.mark.parametrize(
    ("sampling", "branching", "message"),
    [
        ({"grammar": Grammar("json_object")}, {}, "does not go with grammar"),
        ({"do_sample": True}, {}, "does not go with do_sample"),
        ({"repetition_penalty": 1.1}, {}, "does not go with repetition_penalty"),
        ({"bad_words_ids": ((1,),)}, {}, "does not go with bad_sequences"),
        ({}, {"n": 3}, "expected at least n"),
    ],
)
async def test_what_does_not_go_with_it(
    served: Served, sampling: dict[str, Any], branching: dict[str, Any], message: str
) -> None:
    request = GenerateRequest(
        prompt="x",
        sampling=SamplingParams(max_new_tokens=2, **sampling),
        branching=Branching(num_beams=2, **branching),
    )
    with pytest.raises(ParameterError, match=message) as caught:
        await search(served, request)
    assert caught.value.field == "parameters.num_beams"


async def test_the_search_ends_when_nothing_better_can_come() -> None:
    beams = Beams(Branching(num_beams=1), {0}, max_new_tokens=10)
    beams.advance([[(0, -0.1), (1, -3.0)]])
    assert beams.done
    assert [beam.ids for beam in beams.finished] == [[0]]
