"""An array of prompts with continuous batching: an array of answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from djl_python.core import errors
from djl_python.core.types import FinishReason
from tests.dialects.lmi.test_batch import delta
from tests.dialects.lmi.test_batch import parse as parse_with


def parse(body: Any, **options: Any) -> Any:
    return parse_with(body, **{"rolling_batch": "auto", **options})


@pytest.mark.parametrize("options", [{}, {"tgi_compat": True}])
@pytest.mark.parametrize("prompts", [["a"], ["a", "b"]])
def test_each_prompt_is_a_sequence_with_an_object_of_its_own(prompts: list[str], options: dict[str, Any]) -> None:
    parsed = parse({"inputs": prompts, "parameters": {"details": False, "max_new_tokens": 3}}, **options)
    assert [request.prompt for request in parsed.requests] == prompts
    assert {request.sampling.max_new_tokens for request in parsed.requests} == {3}
    for choice in reversed(range(len(prompts))):
        assert parsed.formatter.push(delta(choice, "x", ends=f"text {choice}")) == b""
    assert json.loads(parsed.formatter.end()) == [{"generated_text": f"text {n}"} for n in range(len(prompts))]


def test_details_are_each_objects_own() -> None:
    formatter = parse({"inputs": ["a", "b"], "parameters": {"details": True}}).formatter
    for choice in (0, 1):
        formatter.push(delta(choice, f"t{choice}", ends=f"text {choice}"))
    first, second = (item["details"] for item in json.loads(formatter.end()))
    assert [token["text"] for token in first["tokens"]] == ["t0"] and first["inputs"] == "p0"
    assert [token["text"] for token in second["tokens"]] == ["t1"] and second["inputs"] == "p1"


def test_further_sequences_stay_with_their_prompt() -> None:
    parsed = parse({"inputs": ["a", "b"], "parameters": {"n": 2, "do_sample": True}})
    for choice in range(4):
        parsed.formatter.push(delta(choice, "x", ends=f"text {choice}"))
    for item, numbers in zip(json.loads(parsed.formatter.end()), ((0, 1), (2, 3)), strict=True):
        assert item["generated_text"] == f"text {numbers[0]}"
        assert [other["generated_text"] for other in item["details"]["best_of_sequences"]] == [f"text {numbers[1]}"]


def test_prompts_without_a_seed_are_drawn_differently() -> None:
    first, second = parse({"inputs": ["a", "a"], "parameters": {"do_sample": True}}).requests
    assert first.sampling.seed != second.sampling.seed
    first, second = parse({"inputs": ["a", "a"], "parameters": {"do_sample": True, "seed": 7}}).requests
    assert first.sampling.seed == second.sampling.seed == 7


@pytest.mark.parametrize(("options", "extra"), [({}, {}), ({"tgi_compat": True}, {"error_type": "generation"})])
def test_a_prompt_that_fails_has_its_error_in_its_place(options: dict[str, Any], extra: dict[str, Any]) -> None:
    formatter = parse({"inputs": ["a", "b"], "parameters": {"details": False}}, **options).formatter
    assert formatter.isolates
    formatter.fail_item(1, errors.GenerationError("lost"))
    formatter.push(delta(0, ends="text"))
    whole, failed = json.loads(formatter.end())
    assert whole == {"generated_text": "text"}
    assert failed.pop("details")["finish_reason"] == "error"
    assert failed == {"generated_text": "", "error": "lost", "code": 424, **extra}


def test_adapters_are_as_many_as_prompts() -> None:
    with pytest.raises(errors.ParameterError, match="adapters"):
        parse({"inputs": ["a", "b"], "adapters": ["x", "y", "z"]})


def test_a_finish_reason_is_told() -> None:
    formatter = parse({"inputs": ["a"], "parameters": {"details": True}}).formatter
    formatter.push(delta(0, "x", ends="x"))
    assert json.loads(formatter.end())[0]["details"]["finish_reason"] == FinishReason.EOS
