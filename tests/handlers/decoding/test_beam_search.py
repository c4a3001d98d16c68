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
from tokenizers import Tokenizer as Fast
from tokenizers import decoders, models
from transformers import AutoModelForCausalLM

from djl_python.core.call_usage import CallUsage
from djl_python.core.errors import ParameterError
from djl_python.core.types import Branching, Delta, Finish, GenerateRequest, Grammar, SamplingParams, TextOptions
from djl_python.engine.client import EngineClient
from djl_python.handlers.decoding.beam_search import Beams
from djl_python.handlers.text_generation import TextGenerationHandler
from djl_python.inputs import Input
from djl_python.ipc.protocol import Call
from tests.checkpoints import build_checkpoint
from tests.handlers.harness import BYTES, EOS, FakeReply, Served, ids

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
    serving = Served(checkpoint)
    serving.handler = TextGenerationHandler(EngineClient.open)
    await serving.load(threads=1, max_rolling_batch_size=8, block_size=4, dtype="fp32")
    yield serving
    await serving.handler.close()


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
    generated = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        eos_token_id=end_ids,
        pad_token_id=0,
        **arguments,
    )
    answers = []
    for row in generated[:, len(prompt) :].tolist():
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


@pytest.mark.parametrize("penalty", [1.05, 1.5, 4.0])
@pytest.mark.parametrize("ends", ENDS, ids=["no-ends", "some-ends", "many-ends"])
async def test_a_repetition_penalty(served: Served, model: Any, penalty: float, ends: list[int]) -> None:
    """The tokens of the prompt are repeated too."""
    for prompt in PROMPTS:
        sampling = SamplingParams(max_new_tokens=12, repetition_penalty=penalty, stop_token_ids=tuple(ends))
        request = GenerateRequest(
            prompt=tuple(prompt), sampling=sampling, branching=Branching(n=3, num_beams=3, length_penalty=1.5)
        )
        expected = reference(
            model,
            prompt,
            [EOS_ID, *ends],
            max_new_tokens=12,
            repetition_penalty=penalty,
            num_beams=3,
            num_return_sequences=3,
            length_penalty=1.5,
        )
        assert (await search(served, request))[0] == expected


async def test_beams_have_tokens_and_a_finish_each(served: Served) -> None:
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


async def test_every_token_that_the_engine_generates_counts(served: Served) -> None:
    sent: list[tuple[int, int]] = []
    request = GenerateRequest(
        prompt="hello", sampling=SamplingParams(max_new_tokens=5), branching=Branching(n=3, num_beams=4)
    )
    call = Call(1, "plain", "generate", "POST", "/", (), {}, msgspec.json.encode({"requests": [request]}))
    inputs = Input.from_call(call)
    inputs.usage = CallUsage(lambda prompt, generated: sent.append((prompt, generated)))
    await served.handler.serve(inputs, FakeReply())
    inputs.usage.send()
    assert sum(generated for _, generated in sent) == 1 + 4 * 4  # the prompt's only beam, and then four


async def test_a_stop_sequence_finishes_a_beam(served: Served) -> None:
    free = GenerateRequest(prompt="hello", sampling=SamplingParams(max_new_tokens=12), branching=Branching(num_beams=2))
    (free_ids,), (finish,) = await search(served, free)
    stop = next(char for char in finish.text[2:] if char != "\ufffd")
    counted = served.metrics.counts["generated_tokens"]
    stopping = msgspec.structs.replace(free, text=TextOptions(stop_sequences=(stop,)))
    (stopped_ids,), (stopped,) = await search(served, stopping)
    tokens = free_ids.index(ids(stop)[0]) + 1
    assert (stopped.reason, stopped.generated_tokens) == ("stop_sequence", tokens)
    assert stopped_ids == free_ids[:tokens]
    assert stopped.text == finish.text[: finish.text.index(stop)]
    assert served.metrics.counts["generated_tokens"] - counted < 12  # steps: it did not go on to the longest answer


#: What a scripted engine's second choice is.
WRONG = ids("z")[0]


@pytest_asyncio.fixture(loop_scope="module")
async def scripted(model_dir: Path) -> Served:
    """Says "abcdef" after the prompt "p", whatever was chosen before; second best is always a "z"."""
    serving = await Served(model_dir).load()
    serving.engine.script_of = lambda prompt: ids("abcdef"[len(prompt) - 1 :])
    serving.engine.top_of = lambda token_id: ((token_id, -0.1), (WRONG, -3.0))
    return serving


def stopping(*stops: str, n: int = 1, num_beams: int = 2, min_new_tokens: int = 0, **options: Any) -> GenerateRequest:
    return GenerateRequest(
        prompt="p",
        sampling=SamplingParams(max_new_tokens=6, min_new_tokens=min_new_tokens),
        text=TextOptions(stop_sequences=stops, **options),
        branching=Branching(n=n, num_beams=num_beams),
    )


def told(deltas: list[Delta]) -> list[tuple[str, str, int]]:
    """(text, reason, number of tokens) of every choice, best first. Each has one finish."""
    ends = [(delta.choice, delta.finish) for delta in deltas if delta.finish is not None]
    ends.sort(key=lambda end: end[0])
    assert [choice for choice, _ in ends] == list(range(len(ends)))
    for choice, finish in ends:
        assert finish.text == "".join(delta.text for delta in deltas if delta.choice == choice)
    return [(finish.text, finish.reason, finish.generated_tokens) for _, finish in ends]


@pytest.mark.parametrize(
    ("stops", "options", "expected"),
    [
        (("d",), {}, ("abc", "stop_sequence", 4)),
        (("d",), {"include_stop_str_in_output": True}, ("abcd", "stop_sequence", 4)),
        (("cd", "f"), {"min_new_tokens": 4}, ("ab", "stop_sequence", 4)),
        (("b",), {"min_new_tokens": 4}, ("abcdef", "length", 6)),
        (("b", "e"), {"min_new_tokens": 4}, ("abcd", "stop_sequence", 5)),
        (("a",), {}, ("", "stop_sequence", 1)),
        (("f",), {}, ("abcde", "stop_sequence", 6)),
        (("pa",), {}, ("abcdef", "length", 6)),
    ],
)
async def test_stop_sequences_end_beams_where_they_end_drawn_sequences(
    scripted: Served, stops: tuple[str, ...], options: dict[str, Any], expected: tuple[str, str, int]
) -> None:
    for num_beams in (1, 2):
        assert told(await scripted.plain(stopping(*stops, num_beams=num_beams, **options))) == [expected]


async def test_a_search_is_over_when_all_beams_have_stopped(scripted: Served) -> None:
    assert told(await scripted.plain(stopping("b", "z"))) == [("a", "stop_sequence", 2)]
    assert len(scripted.engine.prompts) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_each_beam_of_an_answer_ends_once(
    scripted: Served, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    deltas = await scripted.plain(stopping("a", n=2), stream=stream)
    assert told(deltas) == [("", "stop_sequence", 1), ("zbcdef", "length", 6)]
    deltas = await scripted.plain(stopping("b", n=2, min_new_tokens=4), stream=stream)
    assert [reason for _, reason, _ in told(deltas)] == ["length", "length"]
    assert not caplog.records


async def test_a_stop_sequence_may_begin_with_the_space_before_a_word(
    model_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A tokenizer of SentencePiece's kind decodes a text of its own without its first space, an answer with it."""
    vocabulary = {token: token_id for token_id, token in enumerate(["<unk>", "x", "▁He", "llo", "▁no"])}
    tokenizer = Fast(models.BPE(vocabulary, [], unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(content=" ", left=1)]
    )
    tokenizer.save(str(model_dir / "tokenizer.json"))
    (model_dir / "tokenizer_config.json").write_text("{}")
    served = await Served(model_dir).load()
    served.engine.script_of = lambda prompt: [2, *[3] * 5][len(prompt) - 1 :]
    served.engine.top_of = lambda token_id: ((token_id, -0.1), (4, -3.0))
    request = msgspec.structs.replace(stopping(" He", n=2), prompt=(1,))
    assert told(await served.plain(request)) == [("", "stop_sequence", 1), (" no" + 5 * "llo", "length", 6)]
    assert not caplog.records


@pytest.mark.parametrize(
    ("sampling", "branching", "message"),
    [
        ({"grammar": Grammar("json_object")}, {}, "does not go with grammar"),
        ({"do_sample": True}, {}, "does not go with do_sample"),
        ({"repetition_penalty": 0.9}, {}, "does not go with a repetition_penalty below 1"),
        ({"presence_penalty": 0.5}, {}, "does not go with presence_penalty"),
        ({"bad_words_ids": ((1,),)}, {}, "does not go with bad_sequences"),
        ({}, {"n": 3}, "expected at least n"),
    ],
)
async def test_parameters_that_exclude_beam_search_are_refused(
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
    beams = Beams(Branching(num_beams=1), {0}, SamplingParams(max_new_tokens=10))
    beams.step([[(0, -0.1), (1, -3.0)]])
    assert beams.done
    assert [beam.ids for beam in beams.finished] == [[0]]
