"""A budget of tokens for a model's reasoning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from djl_python.core.types import (
    Branching,
    Chat,
    FinishReason,
    GenerateRequest,
    Grammar,
    SamplingParams,
    ThinkingBudget,
    ToolUse,
)
from tests.handlers.decoding.test_sequences import finishes, texts
from tests.handlers.harness import Served, ids

THOUGHT = "<think>one two three"
MARK = "</think>"


@pytest.fixture
async def served(model_dir: Path) -> Served:
    (model_dir / "chat_template.jinja").write_text("{{ messages[0].content }}")
    served = await Served(model_dir).load(reasoning_parser="qwen3", max_model_len=256)
    served.engine.script_of = lambda prompt: ids("Yes." if prompt.endswith(MARK) else f"{THOUGHT} and so on")
    return served


def chat(budget: int | None, **sampling: Any) -> GenerateRequest:
    return GenerateRequest(
        prompt=Chat(messages=({"role": "user", "content": "hi"},)),
        sampling=SamplingParams(**{"max_new_tokens": 50, **sampling}),
        splits_reasoning=True,
        thinking_budget=None if budget is None else ThinkingBudget(budget, "thinking_budget"),
    )


@pytest.mark.parametrize("stream", [True, False])
async def test_the_models_own_mark_ends_a_thought_that_is_too_long(served: Served, stream: bool) -> None:
    deltas = await served.plain(chat(len(THOUGHT)), stream=stream)
    assert "".join(delta.reasoning for delta in deltas) == "one two three"
    assert texts(deltas) == {0: "Yes."}
    end = finishes(deltas)[0]
    assert (end.text, end.reason) == (f"{THOUGHT}{MARK}Yes.", FinishReason.EOS)
    assert end.reasoning_tokens == len(THOUGHT + MARK)
    assert end.generated_tokens == len(f"{THOUGHT}{MARK}Yes.") + 1  # with the end of the text
    assert served.engine.prompts[2] == ids(f"hi{THOUGHT}{MARK}")
    assert served.engine.sampling[2].max_new_tokens == 50 - len(THOUGHT + MARK)


async def test_a_thought_within_its_budget_is_left_alone(served: Served) -> None:
    served.engine.script_of = lambda prompt: ids("<think>one</think>Yes.")
    deltas = await served.plain(chat(len("<think>one") + len(MARK)))
    assert ("".join(delta.reasoning for delta in deltas), texts(deltas)) == ("one", {0: "Yes."})
    assert len(served.engine.prompts) == 1


async def test_an_answer_without_a_thought_has_no_budget(served: Served) -> None:
    served.engine.script_of = lambda prompt: ids("Yes.")
    assert texts(await served.plain(chat(0))) == {0: "Yes."}
    assert len(served.engine.prompts) == 1


async def test_a_thought_that_leaves_no_room_ends_the_answer(served: Served) -> None:
    deltas = await served.plain(chat(len(THOUGHT), max_new_tokens=len(THOUGHT) + 3))
    end = finishes(deltas)[0]
    assert (end.reason, end.generated_tokens) == (FinishReason.LENGTH, len(THOUGHT) + 3)
    assert texts(deltas) == {0: ""} and len(served.engine.prompts) == 1


async def test_a_grammar_applies_behind_the_mark(served: Served) -> None:
    grammar = Grammar("regex", "[A-Z].*")
    await served.plain(chat(len(THOUGHT), grammar=grammar))
    first, rest = (served.engine.sampling[number].grammar for number in (1, 2))
    assert first is not None and first.before is not None and rest == grammar


async def test_an_answer_that_begins_again_in_its_form_thinks_again_from_the_prompt(model_dir: Path) -> None:
    (model_dir / "chat_template.jinja").write_text("{{ messages[0].content }}{% if tools %}<tool_call>{% endif %}")
    served = await Served(model_dir).load(reasoning_parser="qwen3", tool_call_parser="hermes", max_model_len=256)
    served.engine.script_of = lambda prompt: ids("Yes." if prompt.endswith(MARK) else f"{THOUGHT} and so on")
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    asked = chat(len(THOUGHT), grammar=Grammar("regex", "[A-Z].*"))
    assert isinstance(asked.prompt, Chat)
    prompt = msgspec.structs.replace(asked.prompt, tool_use=ToolUse(tools=(tool,)))
    await served.plain(msgspec.structs.replace(asked, prompt=prompt))
    assert served.engine.prompts[2] == served.engine.prompts[4] == ids(f"hi<tool_call>{THOUGHT}{MARK}")
    assert served.engine.sampling[2].max_new_tokens == served.engine.sampling[4].max_new_tokens


async def test_the_rest_is_drawn_anew_and_reproducibly(served: Served) -> None:
    for _ in range(2):
        await served.plain(chat(len(THOUGHT), do_sample=True, seed=7))
    seeds = [served.engine.sampling[number].seed for number in (1, 2, 3, 4)]
    assert seeds[0] == seeds[2] == 7 != seeds[1] == seeds[3]


async def test_siblings_have_each_their_budget(served: Served) -> None:
    request = chat(len(THOUGHT), do_sample=True, seed=7)
    deltas = await served.plain(msgspec.structs.replace(request, branching=Branching(n=2, best_of=2)))
    assert texts(deltas) == {0: "Yes.", 1: "Yes."}


async def test_a_model_that_does_not_reason_says_that_the_budget_has_no_effect(model_dir: Path) -> None:
    (model_dir / "chat_template.jinja").write_text("{{ messages[0].content }}")
    served = await Served(model_dir).load()
    task, reply = served.call(
        "openai", "chat", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3, "thinking_token_budget": 5}
    )
    await served.ended(task, reply)
    assert reply.headers["x-ignored-parameters"] == "thinking_token_budget"
    assert json.loads(reply.body)["choices"][0]["message"]["content"]
