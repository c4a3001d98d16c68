from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from djl_python.core.errors import GenerationError
from djl_python.core.types import FinishReason, FreeText, Grammar, SamplingParams, TokenEvent
from djl_python.engine.trtllm.sampling import PARAMETERS, grammar_arguments, sampling_arguments, token_events


@dataclass
class Logprob:
    logprob: float


@dataclass
class Output:
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | None = None


def events(output: Output, told: int = 0, **sampling: Any) -> list[TokenEvent]:
    return token_events(1, output, told, SamplingParams(max_new_tokens=9, **sampling), (2, 7))


def test_a_greedy_sequence_has_no_rule_for_drawing() -> None:
    arguments = sampling_arguments(SamplingParams(max_new_tokens=3, temperature=0.7, top_p=0.5, seed=7), (2, 7))
    assert arguments == {
        "end_id": 2,
        "max_tokens": 3,
        "ignore_eos": False,
        "stop_token_ids": [7],
        "include_stop_str_in_output": True,
        "logprobs": 1,
        "detokenize": False,
    }


def test_a_drawn_sequence_has_its_rules() -> None:
    sampling = SamplingParams(max_new_tokens=3, do_sample=True, temperature=0.7, top_k=5, logprobs=False)
    arguments = sampling_arguments(sampling, ())
    assert {name: arguments[name] for name in ("temperature", "top_k", "top_p")} == {
        "temperature": 0.7,
        "top_k": 5,
        "top_p": 1.0,
    }
    assert (arguments["end_id"], arguments["stop_token_ids"], arguments["logprobs"]) == (None, None, None)


def test_ends_that_are_ignored_stop_nothing() -> None:
    sampling = SamplingParams(max_new_tokens=3, ignore_eos=True, stop_token_ids=(9,), top_logprobs=4)
    arguments = sampling_arguments(sampling, (2, 7))
    assert (arguments["stop_token_ids"], arguments["ignore_eos"], arguments["logprobs"]) == ([9], True, 4)


def test_parameters_that_trtllm_ignores_are_not_reported_as_honoured() -> None:
    assert set(SamplingParams.__struct_fields__) - PARAMETERS == {
        *("min_new_tokens", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
        *("seed", "bad_words_ids", "prompt_logprobs"),
    }


@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
        (Grammar("regex", "a+"), {"regex": "a+"}),
        (Grammar("gbnf", "root ::= a"), {"grammar": "root ::= a"}),
        (Grammar("json_object"), {"json_object": True}),
        (Grammar("json_schema", '{"type": "integer"}'), {"json": '{"type": "integer"}'}),
    ],
)
def test_grammars(grammar: Grammar, expected: dict[str, Any]) -> None:
    assert grammar_arguments(grammar) == expected


def test_a_grammar_behind_a_text_that_is_free() -> None:
    (guide,) = grammar_arguments(
        Grammar("json_object", before=FreeText(("<think>",), ("</think>",), begun=False))
    ).values()
    assert json.loads(guide)["type"] == "structural_tag"


@pytest.mark.parametrize(
    ("reason", "stop", "expected"),
    [
        ("length", None, FinishReason.LENGTH),
        ("stop", None, FinishReason.EOS),
        ("stop", 9, FinishReason.STOP),
        ("stop", 7, FinishReason.EOS),  # another of the checkpoint's ends
    ],
)
def test_only_what_is_new_is_told_and_why_it_ends(reason: str, stop: int | None, expected: FinishReason) -> None:
    output = Output([4, 5, 6], finish_reason=reason, stop_reason=stop)
    tokens = events(output, told=1, stop_token_ids=(9,))
    assert [(event.token_id, event.finish) for event in tokens] == [(5, None), (6, expected)]


@pytest.mark.parametrize(("stop", "token"), [(None, 2), (9, 9)])
def test_an_end_without_a_token_has_the_one_that_ended_it(stop: int | None, token: int) -> None:
    (event,) = events(Output([4], finish_reason="stop", stop_reason=stop), told=1, stop_token_ids=(9,))
    assert (event.token_id, event.finish is not None) == (token, True)


@pytest.mark.parametrize("reason", ["cancelled", "timeout"])
def test_an_end_that_is_none_is_an_error(reason: str) -> None:
    with pytest.raises(GenerationError, match=f"ended a sequence: {reason}"):
        events(Output([4], finish_reason=reason))


def test_log_probabilities_and_as_many_alternatives_as_asked_for() -> None:
    output = Output([5], [{5: Logprob(-2.0), 6: Logprob(-0.5), 7: Logprob(-1.0)}])
    (event,) = events(output, top_logprobs=2)
    assert (event.logprob, event.top) == (-2.0, ((6, -0.5), (7, -1.0)))
    (event,) = events(Output([5], [{6: Logprob(-0.5)}]))
    assert (event.logprob, event.top) == (None, ())
    (event,) = events(output, logprobs=False)
    assert (event.logprob, event.top) == (None, ())
