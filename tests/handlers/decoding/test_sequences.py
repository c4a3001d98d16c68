"""Several prompts and several sequences: how they are drawn, ranked, numbered and ended."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from djl_python.core.errors import GenerationError, ParameterError, WorkerDiedError
from djl_python.core.types import Branching, Delta, Finish, GenerateRequest, Grammar, SamplingParams, TextOptions
from djl_python.handlers.decoding.seeds import sibling_seed
from tests.handlers.harness import LIMITS, Served, ids


def request(prompt: Any, n: int = 1, best_of: int = 0, **sampling: Any) -> GenerateRequest:
    return GenerateRequest(
        prompt=prompt,
        sampling=SamplingParams(**{"max_new_tokens": 40, **sampling}),
        branching=Branching(n=n, best_of=best_of or n),
    )


def texts(deltas: list[Delta]) -> dict[int, str]:
    by_choice: dict[int, str] = {}
    for delta in deltas:
        by_choice[delta.choice] = by_choice.get(delta.choice, "") + delta.text
    return by_choice


def finishes(deltas: list[Delta]) -> dict[int, Finish]:
    by_choice = {delta.choice: delta.finish for delta in deltas if delta.finish is not None}
    assert len(by_choice) == sum(delta.finish is not None for delta in deltas)
    return by_choice


@pytest.mark.parametrize("stream", [True, False])
async def test_prompts_are_numbered_in_order(served: Served, stream: bool) -> None:
    deltas = await served.plain(request("longer one"), request("b", n=2), request(tuple(ids("c"))), stream=stream)
    assert texts(deltas) == {0: " LONGER ONE", 1: " B", 2: " B", 3: " C"}
    assert sorted(finishes(deltas)) == [0, 1, 2, 3]
    assert finishes(deltas)[3].prompt == "c"
    assert served.engine.sequences == {}


async def test_siblings_follow_when_the_prompt_is_cached(served: Served) -> None:
    task, _ = served.call("plain", "generate", {"requests": [request("abc", n=3, do_sample=True, seed=7)]})
    await served.submitted()
    assert len(served.engine.prompts) == 1
    served.engine.step()
    assert len(served.engine.prompts) == 3
    await served.engine.run()
    await task
    seeds = [served.engine.sampling[i].seed for i in (1, 2, 3)]
    assert seeds == [7, sibling_seed(7, 1), sibling_seed(7, 2)]
    assert len(set(seeds)) == 3 and all(0 <= seed < 2**53 for seed in seeds[1:])


async def test_a_sibling_tells_its_own_seed(served: Served) -> None:
    ends = finishes(await served.plain(request("x", n=2, do_sample=True, seed=7), stream=True))
    assert [ends[i].seed for i in (0, 1)] == [7, sibling_seed(7, 1)]


async def test_the_best_of_several_come_best_first(served: Served) -> None:
    served.engine.logprob_of = lambda request_id: {1: -3.0, 2: -1.0, 3: -2.0}[request_id]
    deltas = await served.plain(request("x", n=2, best_of=3, do_sample=True))
    ends = finishes(deltas)
    assert [ends[i].cumulative_logprob / ends[i].generated_tokens for i in sorted(ends)] == [-1.0, -2.0]
    assert [ends[i].seed for i in sorted(ends)] == [served.engine.sampling[i].seed for i in (2, 3)]
    assert texts(deltas) == {0: " X", 1: " X"}


@pytest.mark.parametrize(
    ("dialect", "operation", "logprob"), [("tgi", "generate", "logprob"), ("lmi", "predict", "log_prob")]
)
async def test_the_likeliest_is_the_answer_beside_which_the_others_are_shown(
    served: Served, dialect: str, operation: str, logprob: str
) -> None:
    served.engine.logprob_of = lambda request_id: -1.0 / request_id  # the second is likelier
    body = {"inputs": "x", "parameters": {"best_of": 2, "do_sample": True, "details": True, "max_new_tokens": 9}}
    details = json.loads((await served.ended(*served.call(dialect, operation, body))).body)["details"]
    (other,) = details["best_of_sequences"]
    assert (details["tokens"][0][logprob], other["tokens"][0][logprob]) == (-0.5, -1.0)


async def test_answers_are_numbered_as_they_were_drawn_where_none_is_left_out(served: Served) -> None:
    served.engine.logprob_of = lambda request_id: -1.0 / request_id  # later ones are likelier
    deltas = await served.plain(request("ab", n=3, do_sample=True, seed=5))
    assert [finishes(deltas)[i].seed for i in range(3)] == [5, *(sibling_seed(5, i) for i in (1, 2))]


async def test_a_stream_has_them_as_they_were_drawn(served: Served) -> None:
    served.engine.logprob_of = lambda request_id: -float(request_id == 1)
    ends = finishes(await served.plain(request("x", n=2), stream=True))
    assert [ends[i].cumulative_logprob < 0 for i in (0, 1)] == [True, False]
    with pytest.raises(ParameterError, match="best_of: sequences can't be streamed") as caught:
        await served.plain(request("x", best_of=2), stream=True)
    assert caught.value.field == "best_of"


async def test_prompt_tokens_are_computed_once(served: Served) -> None:
    await served.plain(request("x", n=2, prompt_logprobs=1))
    assert [served.engine.sampling[i].prompt_logprobs for i in (1, 2)] == [1, None]


async def test_a_stop_sequence_ends_its_own_sequence_only(served: Served) -> None:
    served.engine.reply_to = lambda prompt: f"{prompt} STOP and on"
    stopping = msgspec.structs.replace(request("a"), text=TextOptions(stop_sequences=("STOP",)))
    deltas = await served.plain(stopping, request("b"))
    assert texts(deltas) == {0: "a ", 1: "b STOP and on"}
    assert served.engine.cancelled == [1]


async def test_a_failed_sequence_ends_the_call(served: Served) -> None:
    task, reply = served.call("plain", "generate", {"requests": [request("a"), request("bb")], "stream": True})
    await served.submitted(2)
    served.engine.step()
    served.engine.fail("out of blocks")
    await task
    assert json.loads(reply.body.splitlines()[-1]) == {"error": "out of blocks", "kind": "generation"}


async def test_the_kind_of_an_engines_error_arrives(served: Served) -> None:
    for kind, expected in {"worker_died": WorkerDiedError, "parameter": ParameterError}.items():
        served.engine.prompts.clear()
        task, _ = served.call("plain", "generate", {"requests": [request("a")]})
        await served.submitted()
        served.engine.fail("no", kind)
        with pytest.raises(expected, match="no"):
            await task
    assert issubclass(WorkerDiedError, GenerationError)


async def test_a_broken_grammar_is_told_of_the_field_it_came_from(served: Served) -> None:
    for field, expected in {"response_format": "response_format: no", "": "no"}.items():
        served.engine.prompts.clear()
        asked = request("a", grammar=Grammar("regex", "(", field))
        task, _ = served.call("plain", "generate", {"requests": [asked]})
        await served.submitted()
        served.engine.fail("no", "parameter")
        with pytest.raises(ParameterError, match=f"^{expected}$") as caught:
            await task
        assert caught.value.field == (field or None)


async def test_a_client_that_goes_frees_every_sequence(served: Served) -> None:
    task, _ = served.call("plain", "generate", {"requests": [request("a", n=2), request("b")]})
    await served.submitted(2)
    served.engine.step()
    assert len(served.engine.sequences) == 3
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert served.engine.sequences == {}


async def test_timings_add_up(served: Served) -> None:
    loop = asyncio.get_running_loop()
    before_s = loop.time()
    timings = finishes(await served.plain(request("x")))[0].timings
    parts = (timings.validation_s, timings.queue_s, timings.inference_s)
    assert all(part >= 0 for part in parts)
    assert 0 < sum(parts) <= loop.time() - before_s


async def test_a_prompt_that_took_long_is_not_waiting(served: Served) -> None:
    served.engine.running_s = 1000.0
    timings = finishes(await served.plain(request("x")))[0].timings
    assert timings.queue_s == 0
    assert timings.inference_s > 0


async def test_only_the_first_token_of_a_call_is_its_first(served: Served) -> None:
    await served.plain(request("ab", n=2))
    observed = served.metrics.observations
    assert len(observed["time_to_first_token_seconds"]) == 1
    assert served.metrics.counts["generated_tokens"] == 8
    assert len(observed["inter_token_latency_seconds"]) == 6


_CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
_FEW = {"max_new_tokens": 4}


@pytest.mark.parametrize(
    ("dialect", "operation", "body", "reads"),
    [
        ("lmi", "predict", {"inputs": "x"}, False),
        ("lmi", "predict", {"inputs": "x", "parameters": {"logprobs": 2}}, False),  # there is no place for them
        ("lmi", "predict", {"inputs": "x", "parameters": {"details": True}}, True),
        ("lmi", "predict", {"inputs": "x", "stream": True}, True),
        ("openai", "chat", _CHAT, False),
        ("openai", "chat", {**_CHAT, "stream": True}, False),
        ("openai", "chat", {**_CHAT, "logprobs": True}, True),
        ("openai", "chat", {**_CHAT, "n": 2}, False),
        ("openai", "completion", {"prompt": "x"}, False),
        ("openai", "completion", {"prompt": "x", "logprobs": 1}, True),
        ("openai", "completion", {"prompt": "x", "n": 1, "best_of": 2}, True),  # the best is looked for
        ("tgi", "generate", {"inputs": "x", "parameters": _FEW}, False),
        ("tgi", "generate", {"inputs": "x", "parameters": {"details": True, **_FEW}}, True),
        ("tgi", "generate_stream", {"inputs": "x", "parameters": _FEW}, True),
        ("triton", "generate", {"text_input": "x"}, False),
    ],
)
async def test_log_probabilities_are_computed_where_somebody_reads_them(
    model_dir: Path, dialect: str, operation: str, body: dict[str, Any], reads: bool
) -> None:
    (model_dir / "chat_template.jinja").write_text("{{ messages[0].content }}")
    served = await Served(model_dir).load()
    reply = await served.ended(*served.call(dialect, operation, body))
    assert reply.status == 200
    assert served.engine.sampling[1].logprobs == reads
    assert served.engine.sampling[1].top_logprobs in ((0, 1) if reads else (0,))


async def test_many_prompts_leave_places_of_the_batch_to_others(model_dir: Path) -> None:
    """The engine takes sequences in order: behind all of a request at once, others would wait for its last one."""
    served = await Served(model_dir, msgspec.structs.replace(LIMITS, max_batch_size=8)).load()
    task, reply = served.call("plain", "generate", {"requests": [request("abc")] * 20})
    await served.submitted(7)
    other, _ = served.call("plain", "generate", {"requests": [request("x")]})
    await served.submitted(8)
    assert served.engine.prompts[8] == ids("x")
    seen = len(served.engine.sequences)
    while not task.done():
        served.engine.step()
        await asyncio.sleep(0)
        seen = max(seen, len(served.engine.sequences))
    await asyncio.gather(task, other)
    assert seen == 8 and len(served.engine.prompts) == 21
    assert len(reply.lines()) == 20 * len(" ABC") + 20


async def test_a_prompt_of_more_sequences_than_the_share_is_alone(model_dir: Path) -> None:
    served = await Served(model_dir, msgspec.structs.replace(LIMITS, max_batch_size=2)).load()
    assert texts(await served.plain(request("a", n=3), request("b", n=3))) == {
        **dict.fromkeys((0, 1, 2), " A"),
        **dict.fromkeys((3, 4, 5), " B"),
    }


async def test_a_failed_prompt_makes_room_for_the_next(model_dir: Path) -> None:
    served = await Served(model_dir, msgspec.structs.replace(LIMITS, max_batch_size=1)).load()
    reply = await served.answer(["a", "x" * 100, "b"], max_new_tokens=9)
    assert [item["generated_text"] for item in json.loads(reply.body)] == [" A", "", " B"]
