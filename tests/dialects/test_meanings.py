"""Every parameter reaches the engine: none is lost on its way, in any dialect or under any of its names."""

from __future__ import annotations

import operator
from typing import Any

import msgspec
import pytest

from djl_python.core.errors import ParameterError
from djl_python.core.types import Grammar, SamplingParams, TextOptions
from djl_python.dialects import dialect
from tests.dialects.exchange import inputs, model

#: Parameter -> a value that is no default, and the attribute of the request that it sets, and to what.
MEANINGS: dict[str, tuple[Any, str, Any]] = {
    **dict.fromkeys(
        ("max_new_tokens", "max_tokens", "max_completion_tokens", "max_output_tokens"),
        (7, "sampling.max_new_tokens", 7),
    ),
    **dict.fromkeys(("min_new_tokens", "min_tokens", "min_length"), (2, "sampling.min_new_tokens", 2)),
    **dict.fromkeys(("seed", "random_seed"), (9, "sampling.seed", 9)),
    **dict.fromkeys(("stop", "stop_sequences", "stop_words"), (["z"], "text.stop_sequences", ("z",))),
    **dict.fromkeys(("bad_words", "bad_sequences"), (["z"], "bad_sequences", ("z",))),
    **dict.fromkeys(("truncate", "truncate_prompt_tokens"), (6, "truncate", 6)),
    **dict.fromkeys(("ignore_eos", "ignore_eos_token"), (True, "sampling.ignore_eos", True)),
    **dict.fromkeys(("logprobs", "top_logprobs", "top_n_tokens"), (3, "sampling.top_logprobs", 3)),
    "do_sample": (True, "sampling.do_sample", True),
    "temperature": (0.5, "sampling.temperature", 0.5),
    "top_k": (4, "sampling.top_k", 4),
    "top_p": (0.25, "sampling.top_p", 0.25),
    "min_p": (0.25, "sampling.min_p", 0.25),
    "typical_p": (0.25, "sampling.typical_p", 0.25),
    "repetition_penalty": (1.5, "sampling.repetition_penalty", 1.5),
    "presence_penalty": (0.5, "sampling.presence_penalty", 0.5),
    "frequency_penalty": (0.5, "sampling.frequency_penalty", 0.5),
    "stop_token_ids": ([3, 3], "sampling.stop_token_ids", (3,)),
    "logit_bias": ({"5": 2}, "sampling.logit_bias", {5: 2.0}),
    "prompt_logprobs": (3, "sampling.prompt_logprobs", 3),
    "decoder_input_details": (True, "sampling.prompt_logprobs", 0),
    "guided_regex": ("a", "sampling.grammar", Grammar("regex", "a", field="guided_regex")),
    "grammar": ({"type": "regex", "value": "a"}, "sampling.grammar", Grammar("regex", "a")),
    "include_stop_str_in_output": (True, "text.include_stop_str_in_output", True),
    "skip_special_tokens": (False, "text.skip_special_tokens", False),
    "spaces_between_special_tokens": (False, "text.spaces_between_special_tokens", False),
    "n": (2, "branching.n", 2),
    "best_of": (2, "branching.best_of", 2),
    "num_beams": (2, "branching.num_beams", 2),
    "length_penalty": (0.5, "branching.length_penalty", 0.5),
    "early_stopping": (True, "branching.early_stopping", True),
    "add_special_tokens": (False, "add_special_tokens", False),
    "zzz": (1, "ignored", ("zzz",)),
}

PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
SAMPLED = ("temperature", "top_k", "top_p", "seed")
TEXT = ("include_stop_str_in_output", "skip_special_tokens")
OPENAI = (
    *(*SAMPLED, "min_p", "typical_p", *PENALTIES, *TEXT, "spaces_between_special_tokens", "guided_regex", "zzz"),
    *("max_tokens", "min_tokens", "n", "stop", "bad_words", "stop_token_ids", "logit_bias", "ignore_eos"),
    *("truncate_prompt_tokens", "prompt_logprobs"),
)
LMI = (
    *(*SAMPLED, "min_p", "typical_p", *PENALTIES, *TEXT, "spaces_between_special_tokens", "stop_token_ids", "zzz"),
    *("max_new_tokens", "max_tokens", "min_new_tokens", "min_tokens", "min_length", "truncate", "bad_sequences"),
    *("ignore_eos", "ignore_eos_token", "stop_sequences", "stop", "best_of", "do_sample"),
)
DETAILS = ("logprobs", "top_n_tokens", "prompt_logprobs", "decoder_input_details", "n")
BEAMS = ("num_beams", "length_penalty", "early_stopping")
CHAT = {"messages": [{"role": "user", "content": "a"}]}
DRAWS = {"do_sample": True}

#: name -> dialect, operation, body, options, what is beside a parameter, and the parameters.
CASES: dict[str, tuple[str, str, Any, dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "chat": ("openai", "chat", CHAT, {}, {}, (*OPENAI, "max_completion_tokens")),
    "chat, logprobs": ("openai", "chat", CHAT, {}, {"logprobs": True}, ("top_logprobs",)),
    "LMI chat": ("lmi", "predict", CHAT, {}, {}, OPENAI),
    "responses": (
        "responses",
        "create_response",
        {"input": "a"},
        {},
        {},
        (*SAMPLED, "min_p", *PENALTIES, "max_output_tokens", "stop", "zzz"),
    ),
    "responses, logprobs": (
        "responses",
        "create_response",
        {"input": "a"},
        {},
        {"include": ["message.output_text.logprobs"]},
        ("top_logprobs",),
    ),
    "completion": (
        "openai",
        "completion",
        {"prompt": "a"},
        {},
        {},
        (*OPENAI, "logprobs", "best_of", "add_special_tokens"),
    ),
    "LMI": ("lmi", "predict", {"inputs": "a"}, {}, {"details": True}, (*LMI, *DETAILS)),
    "LMI, beams": ("lmi", "predict", {"inputs": "a"}, {}, {"num_beams": 3}, (*BEAMS, "truncate")),
    "LMI batch": ("lmi", "predict", {"inputs": ["a"]}, {"rolling_batch": "disable"}, {}, (*LMI, "num_beams")),
    "TGI": (
        "tgi",
        "generate",
        {"inputs": "a"},
        {},
        {},
        (
            *(*SAMPLED, "typical_p", "repetition_penalty", "frequency_penalty", "max_new_tokens", "stop", "truncate"),
            *("do_sample", "best_of", "grammar", "decoder_input_details", "zzz"),
        ),
    ),
    "TGI, details": ("tgi", "generate", {"inputs": "a"}, {}, {"details": True}, ("top_n_tokens",)),
    "MindIE": (
        "mindie",
        "generate_stream",
        {"inputs": "a"},
        {},
        {},
        (*SAMPLED, "repetition_penalty", "max_new_tokens", "stop", "truncate", "do_sample", "zzz"),
    ),
    **{
        f"Triton {operation}": (
            "triton",
            operation,
            {"text_input": "a"},
            {},
            {},
            (
                *(*SAMPLED, "random_seed", "min_p", *PENALTIES, *TEXT, "max_tokens", "max_new_tokens", "min_tokens"),
                *("min_length", "truncate", "ignore_eos", "do_sample", "zzz"),
            ),
        )
        for operation in ("generate", "generate_stream")
    },
    "Triton beside parameters": (
        "triton",
        "generate",
        {"text_input": "a"},
        {},
        {},
        ("stop", "stop_words", "bad_words", "max_tokens", "top_k", "zzz"),
    ),
}


@pytest.mark.parametrize(("name", "field"), [(name, field) for name, case in CASES.items() for field in case[-1]])
def test_a_parameter_means_the_same_in_every_dialect(name: str, field: str) -> None:
    kind, operation, body, options, beside, _ = CASES[name]
    value, attribute, expected = MEANINGS[field]
    draws = DRAWS if field in SAMPLED or field in ("min_p", "typical_p", "random_seed", "best_of") else {}
    nested = kind not in ("openai", "responses") and "messages" not in body and name != "Triton beside parameters"

    def meant(given: dict[str, Any]) -> Any:
        asked = beside | given | (draws if nested else {})
        made = body | ({"parameters": asked} if nested else asked)
        parsed = dialect(kind).parse(inputs(operation, made, kind), model(**options))
        (request,) = parsed.requests
        assert parsed.formatter.headers.get("x-ignored-parameters", "") == ",".join(request.ignored)
        assert msgspec.convert(msgspec.to_builtins(request.sampling), SamplingParams, str_keys=True) == request.sampling
        return operator.attrgetter(attribute)(request)

    assert meant({field: value}) == expected
    assert field == "do_sample" or meant({}) != expected


STOPS = ("stop", "stop_sequences", "stop_words")


@pytest.mark.parametrize(
    ("name", "field"), [(name, field) for name, case in CASES.items() for field in case[-1] if field in STOPS]
)
def test_stop_texts_and_how_they_show(name: str, field: str) -> None:
    kind, operation, body, options, *_ = CASES[name]
    if kind == "tgi":
        return  # whose stop texts are a list, and never show
    kept = {} if kind in ("mindie", "responses") else {"include_stop_str_in_output": True}
    for stop, expected in (("zz", ("zz",)), (["zz", "y"], ("zz", "y"))):
        asked = {field: stop, **kept}
        made = body | (
            asked if kind in ("openai", "responses", "triton") or "messages" in body else {"parameters": asked}
        )
        (request,) = dialect(kind).parse(inputs(operation, made, kind), model(**options)).requests
        assert request.text == TextOptions(stop_sequences=expected, include_stop_str_in_output=bool(kept))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "zzz" in case[-1]])
def test_unknown_parameters_are_refused_where_the_model_says_so(name: str) -> None:
    kind, operation, body, *_ = CASES[name]
    for asked in (body | {"zzz": 1}, body | {"parameters": {"zzz": 1}}):
        if "zzz" not in asked and (kind in ("openai", "responses") or "messages" in body):
            continue  # which have no `parameters`
        given = inputs(operation, asked, kind)
        with pytest.raises(ParameterError, match=r"zzz: no such (field|parameter)") as caught:
            dialect(kind).parse(given, model(**(CASES[name][3] | {"unknown_parameters": "error"})))
        assert caught.value.field in ("zzz", "parameters.zzz")


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("LMI", "max_new_tokens", "max_tokens"),
        ("LMI", "min_new_tokens", "min_length"),
        ("LMI", "stop_sequences", "stop"),
        ("chat", "max_tokens", "max_completion_tokens"),
        ("Triton generate", "max_tokens", "max_new_tokens"),
        ("Triton generate", "min_tokens", "min_length"),
        ("Triton generate", "seed", "random_seed"),
        ("Triton beside parameters", "stop", "stop_words"),
    ],
)
def test_two_names_of_a_parameter_agree(name: str, one: str, other: str) -> None:
    kind, operation, body, options, *_ = CASES[name]
    value, attribute, expected = MEANINGS[one]
    another = value + 1 if isinstance(value, int) else ["else"]

    def parse(given: dict[str, Any]) -> Any:
        beside = kind in ("openai", "responses") or name == "Triton beside parameters"
        made = body | (given if beside else {"parameters": given | {"do_sample": True}})
        (request,) = dialect(kind).parse(inputs(operation, made, kind), model(**options)).requests
        return operator.attrgetter(attribute)(request)

    assert parse({one: value, other: value}) == expected
    with pytest.raises(ParameterError, match="and they differ"):
        parse({one: value, other: another})
