"""A request's own deadline, and answers that progress before they are written."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from djl_python.core.errors import PayloadError, PredictTimeoutError
from djl_python.core.turns.deadline import DEADLINE_HEADER
from djl_python.core.types import Branching, Delta, FinishReason, GenerateRequest, SamplingParams, TextOptions
from tests.handlers.decoding.test_sequences import finishes, texts
from tests.handlers.harness import FakeReply, Served

SOON_S = "0.2"


def request(prompt: str, n: int = 1, num_beams: int = 1, **text: Any) -> GenerateRequest:
    return GenerateRequest(
        prompt=prompt,
        sampling=SamplingParams(max_new_tokens=40),
        branching=Branching(n=n, best_of=n, num_beams=num_beams),
        text=TextOptions(**text),
    )


def ask(
    served: Served, *requests: GenerateRequest, timeout_s: str = SOON_S, stream: bool = False, waited_s: float = 0.0
) -> tuple[asyncio.Task[None], FakeReply]:
    headers: dict[str, Any] = {DEADLINE_HEADER: timeout_s}
    return served.call("plain", "generate", {"stream": stream, "requests": requests}, waited_s=waited_s, **headers)


async def cut(served: Served, *requests: GenerateRequest, steps: int) -> list[Delta]:
    """The whole answer to requests whose deadline passes after so many steps of the engine."""
    task, reply = ask(served, *requests)
    await served.submitted(len(requests))
    for _ in range(steps):
        served.engine.step()
    await task
    assert served.engine.sequences == {}
    return deltas(reply)


def deltas(reply: FakeReply) -> list[Delta]:
    return [msgspec.json.decode(line, type=Delta) for line in reply.body.splitlines()]


async def test_at_its_deadline_an_answer_is_the_text_so_far(served: Served) -> None:
    got = await cut(served, request("longer"), request("long"), steps=3)
    assert texts(got) == {0: " LO", 1: " LO"}
    assert {(end.reason, end.text, end.generated_tokens) for end in finishes(got).values()} == {
        (FinishReason.LENGTH, " LO", 3)
    }


async def test_a_stream_ends_with_its_next_token(served: Served) -> None:
    task, reply = ask(served, request("longer", n=2), stream=True)
    await served.submitted()
    served.engine.step()  # its sibling begins
    await asyncio.sleep(float(SOON_S))
    served.engine.step()
    await task
    assert texts(deltas(reply)) == {0: " L", 1: " "}
    assert {end.reason for end in finishes(deltas(reply)).values()} == {FinishReason.LENGTH}
    assert served.engine.sequences == {}


async def test_an_answer_that_ended_before_the_deadline_stays_as_it_is(served: Served) -> None:
    got = await cut(served, request("longer"), request("a"), steps=3)
    assert texts(got) == {0: " LO", 1: " A"}
    assert [finishes(got)[i].reason for i in (0, 1)] == [FinishReason.LENGTH, FinishReason.EOS]


async def test_text_that_might_begin_a_stop_sequence_is_released_at_the_deadline(served: Served) -> None:
    got = await cut(served, request("longer", stop_sequences=("LOT",)), steps=3)
    assert texts(got) == {0: " LO"}


async def test_siblings_are_cut_each_where_it_is(served: Served) -> None:
    got = await cut(served, request("longer", n=2), steps=3)
    assert sorted(texts(got).values()) == [" L", " LO"]


async def test_siblings_that_have_not_begun_are_empty(served: Served) -> None:
    got = await cut(served, request("longer", n=2), request("x"), steps=1)
    assert sorted(texts(got).values()) == ["", " ", " "]
    assert {end.reason for end in finishes(got).values()} == {FinishReason.LENGTH}


async def test_prompts_of_a_stream_that_have_not_begun_are_empty(served: Served) -> None:
    task, reply = ask(served, *[request("longer") for _ in range(6)], stream=True)
    await served.submitted(4)  # as many as there is room for
    served.engine.step()
    await asyncio.sleep(float(SOON_S))
    served.engine.step()
    await task
    assert len(served.engine.prompts) == 4
    assert [finishes(deltas(reply))[i].text for i in range(6)] == [" L"] * 4 + [""] * 2
    assert {end.reason for end in finishes(deltas(reply)).values()} == {FinishReason.LENGTH}


async def test_a_prompt_that_has_failed_is_not_cut_too(model_dir: Path) -> None:
    served = await Served(model_dir).load(rolling_batch="disable")
    body = {"inputs": ["longer", "long"], "parameters": {"max_new_tokens": 40}}
    headers: dict[str, Any] = {DEADLINE_HEADER: SOON_S}
    task, reply = served.call("lmi", "predict", body, **headers)
    await served.submitted(2)
    served.engine.step()
    _, _, on_event, _ = served.engine.sequences.pop(1)
    served.engine.fail_one(on_event, 1, "NaN")
    served.engine.step()
    await task
    failed, cut_off = json.loads(reply.body)
    assert (failed["error"], cut_off["generated_text"]) == ("NaN", " L")


@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 1.0])
async def test_a_search_that_has_not_begun_is_empty(served: Served, length_penalty: float) -> None:
    served.engine.top_of = lambda token_id: tuple((97 + i, -1.0 - i) for i in range(4))
    branching = Branching(num_beams=2, length_penalty=length_penalty)
    late = msgspec.structs.replace(request("longer"), branching=branching)
    task, reply = ask(served, *[request("longer") for _ in range(4)], late)
    await served.submitted(4)
    served.engine.step()
    await task
    assert (finishes(deltas(reply))[4].text, finishes(deltas(reply))[4].reason) == ("", FinishReason.LENGTH)


async def test_beams_are_cut_at_the_best_so_far(served: Served) -> None:
    served.engine.top_of = lambda token_id: tuple((97 + i, -1.0 - i) for i in range(4))
    got = await cut(served, request("longer", n=2, num_beams=2), steps=2)
    assert [end.generated_tokens for end in finishes(got).values()] == [2, 2]
    assert {end.reason for end in finishes(got).values()} == {FinishReason.LENGTH}


async def test_without_a_token_there_is_nothing_to_answer_with(served: Served) -> None:
    task, _ = ask(served, request("x"))
    with pytest.raises(PredictTimeoutError, match=r"no token within 0.2 s \(x-request-timeout\)"):
        await task
    assert served.engine.sequences == {}


async def test_the_time_in_the_queue_counts(served: Served) -> None:
    task, _ = ask(served, request("x"), timeout_s="4", waited_s=5.0)
    with pytest.raises(PredictTimeoutError):
        await task


@pytest.mark.parametrize("wrong", ["soon", "0", "-1", "nan", "inf"])
async def test_a_deadline_is_a_number_of_seconds(served: Served, wrong: str) -> None:
    task, _ = ask(served, request("x"), timeout_s=wrong)
    with pytest.raises(PayloadError, match="x-request-timeout: expected a number of seconds above 0"):
        await task


async def test_a_whole_answer_tells_that_it_progresses(model_dir: Path) -> None:
    served = await Served(model_dir).load(predict_timeout=1e-9)
    reply = await served.ended(*served.call("plain", "generate", {"stream": False, "requests": [request("abc")]}))
    assert reply.progress == len(" ABC") + 1  # with the end of the text
