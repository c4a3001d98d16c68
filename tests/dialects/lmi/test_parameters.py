"""Every parameter of LMI's tables: what it does, and what a wrong one is told."""

from __future__ import annotations

from typing import Any

import pytest

from djl_python.config import ModelConfig, Options
from djl_python.core.errors import ParameterError
from djl_python.core.types import Branching, SamplingParams, TextOptions
from djl_python.dialects.lmi.parameters import branching, read_parameters, sampling_params, text_options

MODEL = ModelConfig(name="m")
STRICT = ModelConfig(name="m", option=Options(unknown_parameters="error"))
INFERRING = ModelConfig(name="m", option=Options(infer_do_sample=True))


def sampling(given: dict[str, Any], model: ModelConfig = MODEL) -> SamplingParams:
    return sampling_params(read_parameters(given, model)[0], model)


def text(given: dict[str, Any]) -> TextOptions:
    return text_options(read_parameters(given, MODEL)[0])


def ignored(given: dict[str, Any], model: ModelConfig = MODEL) -> list[str]:
    return read_parameters(given, model)[1]


def test_defaults() -> None:
    assert sampling({}) == SamplingParams(max_new_tokens=30)
    assert text({}) == TextOptions()
    assert ignored({}) == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"max_new_tokens": 5}, {"max_new_tokens": 5}),
        ({"max_tokens": 5}, {"max_new_tokens": 5}),
        ({"max_new_tokens": 5.0, "top_k": 50.0, "do_sample": True}, {"max_new_tokens": 5, "top_k": 50}),
        ({"max_tokens": 5, "max_new_tokens": 5}, {"max_new_tokens": 5}),
        ({"min_new_tokens": 3}, {"min_new_tokens": 3}),
        ({"min_tokens": 3}, {"min_new_tokens": 3}),
        ({"min_length": 3}, {"min_new_tokens": 3}),
        ({"ignore_eos_token": True}, {"ignore_eos": True}),
        ({"ignore_eos": True}, {"ignore_eos": True}),
        ({"stop_token_ids": [1, 2, 1]}, {"stop_token_ids": (1, 2)}),
        ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
        ({"presence_penalty": -2, "frequency_penalty": 2}, {"presence_penalty": -2.0, "frequency_penalty": 2.0}),
        ({"logprobs": 3}, {"top_logprobs": 3}),
        ({"logprobs": True}, {"top_logprobs": 0}),
        ({"top_n_tokens": 4, "logprobs": 2}, {"top_logprobs": 4}),
        ({"prompt_logprobs": 2}, {"prompt_logprobs": 2}),
        ({"prompt_logprobs": True}, {"prompt_logprobs": 0}),
        ({"prompt_logprobs": False}, {"prompt_logprobs": None}),
        ({"decoder_input_details": True}, {"prompt_logprobs": 0}),
        ({"decoder_input_details": True, "prompt_logprobs": 5}, {"prompt_logprobs": 5}),
        ({"do_sample": True, "seed": 3}, {"do_sample": True, "seed": 3}),
        ({"do_sample": True, "seed": -1}, {"seed": 2**64 - 1}),
        ({"do_sample": True, "seed": 2**64 - 1}, {"seed": 2**64 - 1}),
        ({"do_sample": True, "top_k": -1}, {"top_k": 0}),
        ({"do_sample": True, "top_k": 7}, {"top_k": 7}),
        (
            {"do_sample": True, "temperature": 2, "top_p": 0.5, "min_p": 0.1, "typical_p": 0.9},
            {"temperature": 2.0, "top_p": 0.5, "min_p": 0.1, "typical_p": 0.9},
        ),
        # Without do_sample the draw's rules are neutral.
        (
            {"temperature": 2, "top_k": 5, "top_p": 0.5, "seed": 3},
            {"do_sample": False, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 0},
        ),
        ({"n": 2, "best_of": 3}, {"max_new_tokens": 30, "do_sample": False}),
        (
            dict.fromkeys(("max_new_tokens", "seed", "stop_sequences", "temperature", "n", "made_up")),
            {"do_sample": False},
        ),
    ],
)
def test_sampling(given: dict[str, Any], expected: dict[str, Any]) -> None:
    params = sampling(given)
    assert {name: getattr(params, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"stop_sequences": ["a", "b"]}, {"stop_sequences": ("a", "b")}),
        ({"stop_sequences": "a"}, {"stop_sequences": ("a",)}),
        ({"stop": ["a"]}, {"stop_sequences": ("a",)}),
        ({"stop": True}, {"stop_sequences": ()}),
        ({"stop_sequences": []}, {"stop_sequences": ()}),
        ({"include_stop_str_in_output": True}, {"include_stop_str_in_output": True}),
        ({"skip_special_tokens": False}, {"skip_special_tokens": False}),
        ({"spaces_between_special_tokens": False}, {"spaces_between_special_tokens": False}),
    ],
)
def test_text(given: dict[str, Any], expected: dict[str, Any]) -> None:
    options = text(given)
    assert {name: getattr(options, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("given", "details", "expected"),
    [
        ({}, True, Branching()),
        ({"n": 1, "best_of": 1, "num_beams": 1}, True, Branching()),
        ({"n": 2}, True, Branching(n=2, best_of=2, ranked=True)),
        ({"n": 2, "best_of": 3}, True, Branching(n=2, best_of=3, ranked=True)),
        ({"n": 1, "best_of": 3}, True, Branching(n=1, best_of=3, ranked=True)),
        # Without n there are as many as details have a place for.
        ({"best_of": 3}, True, Branching(n=3, best_of=3, ranked=True)),
        ({"best_of": 3}, False, Branching(n=1, best_of=3, ranked=True)),
        ({"num_beams": 4}, True, Branching(n=4, best_of=4, num_beams=4, ranked=True)),
        ({"num_beams": 4}, False, Branching(n=1, best_of=4, num_beams=4, ranked=True)),
        ({"num_beams": 4, "n": 2, "best_of": 4}, True, Branching(n=2, best_of=4, num_beams=4, ranked=True)),
        (
            {"num_beams": 2, "length_penalty": 0.5, "early_stopping": True},
            False,
            Branching(n=1, best_of=2, num_beams=2, length_penalty=0.5, early_stopping=True, ranked=True),
        ),
        ({"length_penalty": 0.5, "early_stopping": True}, True, Branching()),
    ],
)
def test_branching(given: dict[str, Any], details: bool, expected: Branching) -> None:
    parameters = read_parameters(given, MODEL)[0]
    assert branching(parameters, details=details, stream=False) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (0, 1.0, 1.0)),
        ({"do_sample": True}, (5, 0.85, 1.0)),
        ({"do_sample": True, "top_k": 40, "temperature": 0.7}, (40, 0.85, 0.7)),
        ({"do_sample": True, "top_k": -1, "top_p": 1.0}, (0, 1.0, 1.0)),
    ],
)
def test_tensorrt_llm_has_defaults_of_its_own(given: dict[str, Any], expected: tuple[float, ...]) -> None:
    params = sampling(given, ModelConfig(name="m", option=Options(rolling_batch="trtllm")))
    assert (params.top_k, params.top_p, params.temperature) == expected


@pytest.mark.parametrize("name", ["n", "best_of", "num_beams"])
def test_several_sequences_are_not_streamed(name: str) -> None:
    with pytest.raises(ParameterError) as caught:
        branching(read_parameters({name: 2}, MODEL)[0], details=True, stream=True)
    assert caught.value.message == f"parameters.{name}: expected 1 where the answer is streamed, got 2"
    assert caught.value.field == f"parameters.{name}"
    assert branching(read_parameters({name: 1}, MODEL)[0], details=True, stream=True) == Branching()


def test_a_seed_is_drawn_for_each_request() -> None:
    seeds = {sampling({"do_sample": True}).seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 < seed < 2**53 for seed in seeds)


@pytest.mark.parametrize(
    ("given", "draws"),
    [
        ({}, False),
        ({"temperature": 1.0, "top_k": -1, "top_p": 1}, False),
        ({"temperature": 0.5}, True),
        ({"top_k": 3}, True),
        ({"temperature": 0.5, "do_sample": False}, False),
        ({"do_sample": True}, True),
        ({"repetition_penalty": 2.0}, False),
    ],
)
def test_do_sample_can_be_inferred(given: dict[str, Any], draws: bool) -> None:
    assert sampling(given, INFERRING).do_sample is draws
    assert sampling(given).do_sample is bool(given.get("do_sample"))


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"temperature": 0.5, "top_k": 3}, ["temperature", "top_k"]),
        ({"temperature": 1.0, "top_k": -1, "top_p": 1.0, "min_p": 0, "typical_p": 1}, []),
        ({"seed": 5}, ["seed"]),
        ({"seed": 5, "do_sample": True}, []),
        ({"temperature": 0.5, "do_sample": False}, ["temperature"]),
        ({"length_penalty": 1.0, "early_stopping": False}, ["length_penalty", "early_stopping"]),
        ({"num_beams": 1, "length_penalty": 2}, ["length_penalty"]),
        ({"num_beams": 2, "length_penalty": 2, "early_stopping": True}, []),
        ({"stop": True}, ["stop"]),
        ({"watermark": True, "made up": None}, ["watermark"]),
    ],
)
def test_parameters_without_effect_are_reported_as_ignored(given: dict[str, Any], names: list[str]) -> None:
    assert ignored(given) == names


def test_unknown_parameters_can_be_refused() -> None:
    with pytest.raises(ParameterError) as caught:
        read_parameters({"temperatur": 1.0}, STRICT)
    assert caught.value.message == "parameters.temperatur: no such parameter (option.unknown_parameters=error)"
    assert caught.value.field == "parameters.temperatur"
    assert ignored({"seed": 5}, STRICT) == ["seed"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": "hot"}, 'parameters.temperature: expected a number >= 0 (0: greedy), got "hot"'),
        ({"temperature": -1}, "parameters.temperature: expected a number >= 0 (0: greedy), got -1"),
        ({"temperature": True}, "parameters.temperature: expected a number >= 0 (0: greedy), got true"),
        ({"top_p": 1.5}, "parameters.top_p: expected a number >= 0 and <= 1 (0: greedy), got 1.5"),
        ({"top_p": -0.1}, "parameters.top_p: expected a number >= 0 and <= 1 (0: greedy), got -0.1"),
        ({"typical_p": -1}, "parameters.typical_p: expected a number > 0 and <= 1, got -1"),
        ({"min_p": 2}, "parameters.min_p: expected a number >= 0 and <= 1, got 2"),
        ({"top_k": -2}, "parameters.top_k: expected an integer >= -1 (-1 and 0: off), got -2"),
        ({"top_k": 1.5}, "parameters.top_k: expected an integer >= -1 (-1 and 0: off), got 1.5"),
        ({"repetition_penalty": 0}, "parameters.repetition_penalty: expected a number > 0, got 0"),
        ({"presence_penalty": 3}, "parameters.presence_penalty: expected a number >= -2 and <= 2, got 3"),
        ({"max_new_tokens": 0}, "parameters.max_new_tokens: expected an integer >= 1, got 0"),
        ({"max_tokens": "5"}, 'parameters.max_tokens: expected an integer >= 1, got "5"'),
        ({"min_length": -1}, "parameters.min_length: expected an integer >= 0, got -1"),
        (
            {"min_tokens": 9, "max_tokens": 5},
            "parameters.min_tokens: expected at most max_new_tokens (5), got 9",
        ),
        (
            {"max_tokens": 5, "max_new_tokens": 6},
            "parameters.max_new_tokens: the same as parameters.max_tokens, and they differ",
        ),
        ({"truncate": 0}, "parameters.truncate: expected an integer >= 1, got 0"),
        ({"do_sample": "yes"}, 'parameters.do_sample: expected true or false, got "yes"'),
        ({"details": 1}, "parameters.details: expected true or false, got 1"),
        (
            {"stop_sequences": ["a", ""]},
            'parameters.stop_sequences: expected a string or a list of strings, none of them empty, got ["a",""]',
        ),
        ({"stop": 5}, "parameters.stop: expected a string or a list of strings, none of them empty, got 5"),
        ({"bad_sequences": "x"}, 'parameters.bad_sequences: expected a list of strings, none of them empty, got "x"'),
        ({"stop_token_ids": [-1]}, "parameters.stop_token_ids: expected a list of integers >= 0, got [-1]"),
        ({"logprobs": 21}, "parameters.logprobs: expected an integer >= 0 and <= 20, or true or false, got 21"),
        ({"top_n_tokens": 21}, "parameters.top_n_tokens: expected an integer >= 0 and <= 20, got 21"),
        ({"seed": 2**64}, f"parameters.seed: expected a 64-bit integer, got {2**64}"),
        ({"seed": -(2**63) - 1}, f"parameters.seed: expected a 64-bit integer, got {-(2**63) - 1}"),
        ({"seed": 1.5}, "parameters.seed: expected a 64-bit integer, got 1.5"),
        ({"stop": ["x" * 20_000] * 2}, "parameters.stop: expected at most 32768 characters together, got 40000"),
        (
            {"bad_sequences": ["x"] * 40_000},
            "parameters.bad_sequences: expected at most 1024 texts, got 40000",
        ),
        ({"n": 0}, "parameters.n: expected an integer >= 1 and <= 128, got 0"),
        ({"best_of": 129}, "parameters.best_of: expected an integer >= 1 and <= 128, got 129"),
        ({"num_beams": 2.5}, "parameters.num_beams: expected an integer >= 1 and <= 128, got 2.5"),
        ({"n": 3, "best_of": 2}, "parameters.n: expected at most best_of (2), got 3"),
        ({"n": 3, "num_beams": 2}, "parameters.n: expected at most num_beams (2), got 3"),
        (
            {"best_of": 3, "num_beams": 4},
            "parameters.best_of: expected num_beams (4): beams are the sequences, got 3",
        ),
        ({"length_penalty": 41}, "parameters.length_penalty: expected a number >= -40 and <= 40, got 41"),
        ({"early_stopping": "never"}, 'parameters.early_stopping: expected true or false, got "never"'),
        (
            {"temperature": "x" * 200},
            'parameters.temperature: expected a number >= 0 (0: greedy), got "' + "x" * 56 + "...",
        ),
    ],
)
def test_a_wrong_parameter_is_named_in_the_error(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError) as caught:
        read_parameters(given, MODEL)
    assert caught.value.message == message
    assert caught.value.field == message.partition(":")[0]


@pytest.mark.parametrize("model", [MODEL, INFERRING])
@pytest.mark.parametrize("neutral", [{"temperature": 0}, {"temperature": 0.0, "top_p": 0.9}, {"top_p": 0}])
def test_with_a_temperature_or_a_share_of_nothing_there_is_nothing_to_draw(
    neutral: dict[str, Any], model: ModelConfig
) -> None:
    for given in (neutral, {**neutral, "do_sample": True}):
        assert sampling(given, model) == SamplingParams(max_new_tokens=30)
    assert ignored(neutral, model) == [name for name in neutral if neutral[name]]


@pytest.mark.parametrize(("word", "flag"), [("true", True), ("True", True), ("false", False), ("FALSE", False)])
def test_flags_may_be_words(word: str, flag: bool) -> None:
    assert sampling({"do_sample": word, "ignore_eos": word}).do_sample == flag
    assert sampling({"ignore_eos": word}).ignore_eos == flag
    assert text({"skip_special_tokens": word}).skip_special_tokens == flag
    assert text({"stop": word}).stop_sequences == (word,)  # which is a text, too
