"""Prompts of one request that fail each on their own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from djl_python.core.errors import ContextLengthError, GenerationError
from tests.handlers.harness import Served


def outcomes(body: bytes) -> list[Any]:
    return [item.get("error") or item["generated_text"] for item in json.loads(body)]


@pytest.mark.parametrize("options", [{}, {"rolling_batch": "disable"}])
async def test_a_prompt_that_does_not_fit_costs_the_others_nothing(model_dir: Any, options: dict[str, Any]) -> None:
    served = await Served(model_dir).load(**options)
    reply = await served.answer(["a", "x" * 100, "b"], max_new_tokens=9)
    first, refused, last = outcomes(reply.body)
    assert (reply.status, first, last) == (200, " A", " B")
    assert "100 tokens" in refused or "100 input tokens" in refused, refused


async def test_a_sequence_that_fails_costs_the_others_nothing(served: Served) -> None:
    task, reply = served.ask(["a", "b"], max_new_tokens=9)
    await served.submitted(2)
    _, _, on_event, _ = served.engine.sequences.pop(1)
    served.engine.fail_one(on_event, 1, "NaN")
    await served.ended(task, reply)
    assert (reply.status, outcomes(reply.body)) == (200, ["NaN", " B"])


async def test_siblings_of_a_failed_sequence_leave_the_engine(served: Served) -> None:
    task, reply = served.ask(["a", "b"], max_new_tokens=9, n=2, do_sample=True)
    await served.submitted(2)
    served.engine.step()
    _, _, on_event, _ = served.engine.sequences.pop(1)
    served.engine.fail_one(on_event, 1, "NaN")
    assert {served.engine.prompts[i] == served.engine.prompts[1] for i in served.engine.sequences} == {False}
    await served.ended(task, reply)
    assert outcomes(reply.body) == ["NaN", " B"]


async def test_where_every_prompt_fails_the_request_fails(served: Served) -> None:
    with pytest.raises(ContextLengthError):
        await served.answer(["x" * 100, "y" * 100])
    task, _ = served.ask(["a", "b"])
    await served.submitted(2)
    served.engine.fail("the engine ended")
    with pytest.raises(GenerationError, match="the engine ended"):
        await task
