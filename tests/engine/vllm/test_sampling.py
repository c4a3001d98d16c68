from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from djl_python.core.errors import GenerationError
from djl_python.core.types import FinishReason, FreeText, Grammar, SamplingParams, TokenEvent
from djl_python.engine.vllm.sampling import PARAMETERS, grammar_arguments, sampling_arguments, token_events


@dataclass
class Logprob:
    logprob: float
    rank: int | None = None


@dataclass
class Part:
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass
class Output:
    outputs: list[Part]
    prompt_token_ids: list[int] = field(default_factory=list)
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    num_cached_tokens: int | None = None


def events(part: Part, sampling: SamplingParams, **output: Any) -> list[TokenEvent]:
    return token_events(1, Output([part], **output), sampling, running_s=0.5)


def test_a_greedy_sequence_has_no_rule_for_drawing() -> None:
    arguments = sampling_arguments(SamplingParams(max_new_tokens=3, temperature=0.7, top_p=0.5, seed=7, logprobs=False))
    assert (arguments["temperature"], arguments["max_tokens"], arguments["logprobs"]) == (0.0, 3, None)
    assert not {"top_p", "top_k", "min_p", "seed"} & arguments.keys()


def test_a_drawn_sequence_has_its_seed_and_rules() -> None:
    sampling = SamplingParams(max_new_tokens=3, do_sample=True, temperature=0.7, top_k=5, top_p=0.5, min_p=0.1, seed=7)
    arguments = sampling_arguments(sampling)
    assert {name: arguments[name] for name in ("temperature", "top_k", "top_p", "min_p", "seed")} == {
        "temperature": 0.7,
        "top_k": 5,
        "top_p": 0.5,
        "min_p": 0.1,
        "seed": 7,
    }


def test_typical_p_alone_is_not_honoured() -> None:
    assert set(SamplingParams.__struct_fields__) - PARAMETERS == {"typical_p"}


@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
        (Grammar("regex", "a+"), {"regex": "a+"}),
        (Grammar("gbnf", "root ::= a"), {"grammar": "root ::= a"}),
        (Grammar("json_object"), {"json": {"type": "object"}}),
        (Grammar("json_schema", '{"type": "integer"}'), {"json": {"type": "integer"}}),
    ],
)
def test_grammars(grammar: Grammar, expected: dict[str, Any]) -> None:
    assert grammar_arguments(grammar) == expected


@pytest.mark.parametrize("begun", [False, True])
def test_a_grammar_behind_a_text_that_is_free(begun: bool) -> None:
    before = FreeText(("<think>",), ("</think>", "</thought>"), begun=begun)
    (structure,) = grammar_arguments(Grammar("json_object", before=before)).values()
    tag = json.loads(structure)
    space, answer = {"type": "regex", "pattern": r"\s*"}, {"type": "json_schema", "json_schema": {"type": "object"}}
    ends = {"content": {"type": "any_text"}, "end": ["</think>", "</thought>"]}
    free = [{"type": "tag", "begin": begin, **ends} for begin in (["<think>", ""] if begun else ["<think>"])]
    whole = {"type": "sequence", "elements": [space, {"type": "or", "elements": free}, space, answer]}
    assert tag == {
        "type": "structural_tag",
        "format": whole if begun else {"type": "or", "elements": [answer, whole]},
    }
    (regex,) = grammar_arguments(Grammar("regex", "a+", before=before)).values()
    assert '{"type": "regex", "pattern": "a+"}' in regex


@pytest.mark.parametrize(
    ("reason", "stop", "expected"),
    [
        ("length", None, FinishReason.LENGTH),
        ("stop", None, FinishReason.EOS),
        ("stop", 9, FinishReason.STOP),
        ("stop", 2, FinishReason.EOS),  # another of the checkpoint's ends
        ("repetition", "repetition_detected", FinishReason.EOS),
    ],
)
def test_why_a_sequence_ends(reason: str, stop: int | None, expected: FinishReason) -> None:
    sampling = SamplingParams(max_new_tokens=3, stop_token_ids=(9,))
    part = Part([5, 6], finish_reason=reason, stop_reason=stop)
    first, last = events(part, sampling, num_cached_tokens=32)
    assert (first.finish, last.finish) == (None, expected)
    assert (first.running_s, last.running_s) == (0.5, None)
    assert (first.cached_tokens, last.cached_tokens) == (32, None)


@pytest.mark.parametrize("token_ids", [[], [5]])
@pytest.mark.parametrize("reason", ["error", "abort", "a later version's"])
def test_a_sequence_that_vllm_gives_up_is_an_error(reason: str, token_ids: list[int]) -> None:
    with pytest.raises(GenerationError, match=f"vLLM ended the sequence before its end: {reason}"):
        events(Part(token_ids, finish_reason=reason), SamplingParams(max_new_tokens=3))


def test_log_probabilities_and_as_many_alternatives_as_asked_for() -> None:
    part = Part([5], [{5: Logprob(-2.0), 6: Logprob(-0.5), 7: Logprob(-1.0)}])
    (event,) = events(part, SamplingParams(max_new_tokens=3, top_logprobs=2))
    assert (event.token_id, event.logprob, event.top) == (5, -2.0, ((6, -0.5), (7, -1.0)))
    (event,) = events(part, SamplingParams(max_new_tokens=3))
    assert (event.logprob, event.top) == (-2.0, ())


def test_the_prompts_come_with_the_first_token() -> None:
    sampling = SamplingParams(max_new_tokens=3, prompt_logprobs=1, logprobs=False)
    tokens = events(
        Part([5, 6]),
        sampling,
        prompt_token_ids=[3, 4],
        prompt_logprobs=[None, {4: Logprob(-3.0, 17), 8: Logprob(-0.1, 1)}],
    )
    assert [event.prompt for event in tokens] == [((None, ()), (-3.0, ((8, -0.1),))), ()]
    assert [event.prompt_ranks for event in tokens] == [(None, 17), ()]
