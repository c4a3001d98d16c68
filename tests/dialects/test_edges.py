"""The last value that is taken and the first that is not, as the APIs' documents and the wire decisions have them."""

from __future__ import annotations

from typing import Any, Final

import pytest

from djl_python.core.errors import ParameterError
from djl_python.dialects import dialect
from tests.dialects.exchange import inputs, model

TINY: Final = 1e-9
BIT_31: Final = 2**31
SEEDS: Final = ([-(2**63), 0, 2**64 - 1], [-(2**63) - 1, 2**64])
ABOVE_ZERO: Final = ([TINY, 1e9], [0, -TINY])
SHARE: Final = ([TINY, 1], [0, 1 + TINY])
FROM_0_TO_1: Final = ([0, 1], [-TINY, 1 + TINY])
PENALTY: Final = ([-2, 2], [-2 - TINY, 2 + TINY])
FROM_1: Final = ([1, 2], [0, -1, 1.5])
FROM_0: Final = ([0, 1], [-1, 0.5])
FROM_1_TO_128: Final = ([1, 128], [0, 129])
FROM_0_TO_20: Final = ([0, 20], [-1, 21])
TOP_K: Final = ([-1, 0, 2**40], [-2, 1.5])
UP_TO_31_BITS: Final = ([1, BIT_31 - 1], [0, BIT_31])

Edges = dict[str, tuple[list[Any], list[Any]]]

FURTHER: Edges = {
    "min_p": FROM_0_TO_1,
    "typical_p": SHARE,
    "repetition_penalty": ABOVE_ZERO,
    "presence_penalty": PENALTY,
    "frequency_penalty": PENALTY,
    "top_k": TOP_K,
    "seed": SEEDS,
    "stop_token_ids": ([[], [0] * 1024], [[-1], [0] * 1025]),
}
OPENAI: Edges = FURTHER | {
    "temperature": ([0, 2], [-TINY, 2 + TINY]),
    "top_p": FROM_0_TO_1,
    "max_tokens": FROM_1,
    "min_tokens": FROM_0,
    "n": FROM_1_TO_128,
    "stop": (["a", [], ["a"] * 1024], ["", [""], ["a"] * 1025]),
    "bad_words": ([[], ["a"] * 1024], [[""], "a", ["a"] * 1025, ["a" * 32_769]]),
    "logit_bias": (
        [{"0": -100}, {"1": 100}, {str(i): 1 for i in range(1024)}],
        [{"0": -101}, {"0": 101}, {"-1": 0}, {"a": 0}, {str(i): 1 for i in range(1025)}],
    ),
    "truncate_prompt_tokens": FROM_1,
    "prompt_logprobs": FROM_0_TO_20,
}
LMI: Edges = FURTHER | {
    "temperature": ([0, 1e9], [-TINY]),
    "top_p": FROM_0_TO_1,
    "max_new_tokens": FROM_1,
    "min_new_tokens": FROM_0,
    "truncate": FROM_1,
    "n": FROM_1_TO_128,
    "best_of": FROM_1_TO_128,
    "num_beams": FROM_1_TO_128,
    "length_penalty": ([-40, 40], [-41, 41]),
    "logprobs": FROM_0_TO_20,
    "prompt_logprobs": FROM_0_TO_20,
    "top_n_tokens": FROM_0_TO_20,
    "stop_sequences": (["a", [], ["a"] * 1024], ["", [""], ["a"] * 1025, "a" * 32_769]),
    "bad_sequences": ([[], ["a"] * 1024], [[""], "a", ["a"] * 1025, ["a" * 32_769]]),
}
TGI: Edges = {
    "temperature": ABOVE_ZERO,
    "repetition_penalty": ABOVE_ZERO,
    "frequency_penalty": PENALTY,
    "top_p": SHARE,
    "typical_p": SHARE,
    "top_k": FROM_1,
    "max_new_tokens": FROM_1,
    "best_of": ([1], [0, -1]),
    "top_n_tokens": ([0, 5], [-1, 6]),
    "stop": ([[], ["a"] * 4], [["a"] * 5, [""], "a"]),
    "truncate": ([1, 99], [0, -1, 100]),
    "seed": ([0, 2**64 - 1], [-1, 2**64]),
}
MINDIE: Edges = {
    "temperature": ABOVE_ZERO,
    "repetition_penalty": ABOVE_ZERO,
    "top_p": ([TINY, 1 - TINY], [0, 1]),
    "typical_p": SHARE,
    "top_k": UP_TO_31_BITS,
    "max_new_tokens": UP_TO_31_BITS,
    "truncate": UP_TO_31_BITS,
    "seed": ([1, 2**64 - 1], [0, -1, 2**64]),
    "stop": (
        ["a" * 1024, [], ["a"] * 1024, ["a" * 32] * 1024],
        ["", "a" * 1025, ["a"] * 1025, ["a" * 1025], [""], ["a" * 33] * 1024],
    ),
    "adapter_id": (["None"], ["none", "", "None\n"]),
    "decoder_input_details": ([False], [True]),
}
TRITON: Edges = {
    "temperature": ([0, 1e9], [-TINY]),
    "top_p": SHARE,
    "min_p": FROM_0_TO_1,
    "top_k": TOP_K,
    "max_tokens": FROM_1,
    "max_new_tokens": FROM_1,
    "min_tokens": FROM_0,
    "min_length": FROM_0,
    "truncate": FROM_1,
    "seed": SEEDS,
    "random_seed": SEEDS,
    "repetition_penalty": ABOVE_ZERO,
    "presence_penalty": PENALTY,
    "frequency_penalty": PENALTY,
}
ANTHROPIC: Edges = {
    "temperature": FROM_0_TO_1,
    "top_p": FROM_0_TO_1,
    "top_k": ([0, 2**40], [-1, 1.5]),
    "max_tokens": FROM_1,
    "stop_sequences": ([[], ["a"] * 1024], ["a", [""], ["a"] * 1025, ["a" * 32_769]]),
}
OLLAMA: Edges = {
    "temperature": ([0, 1e9], [-TINY]),
    "top_p": FROM_0_TO_1,
    "min_p": FROM_0_TO_1,
    "typical_p": SHARE,
    "top_k": TOP_K,
    "num_predict": ([-2, -1, 1, 2**40], [-3, 0, 1.5]),
    "seed": SEEDS,
    "repeat_penalty": ABOVE_ZERO,
    "presence_penalty": PENALTY,
    "frequency_penalty": PENALTY,
    "stop": (["a", [], ["a"] * 1024], ["", [""], ["a"] * 1025, ["a" * 32_769]]),
}

CHAT: Final = {"messages": [{"role": "user", "content": "a"}]}
#: name -> dialect, operation, body, options, and what its fields are in ("": the body itself).
CASES: dict[str, tuple[str, str, Any, dict[str, Any], str, Edges]] = {
    "chat": (
        "openai",
        "chat",
        CHAT | {"logprobs": True},
        {},
        "",
        OPENAI | {"top_logprobs": FROM_0_TO_20, "max_completion_tokens": FROM_1},
    ),
    "LMI chat": ("lmi", "predict", CHAT, {}, "", OPENAI),
    "responses": (
        "responses",
        "create_response",
        {"input": "a"},
        {},
        "",
        {name: OPENAI[name] for name in ("temperature", "top_p", "min_p", "top_k", "seed", "repetition_penalty")}
        | {"presence_penalty": PENALTY, "frequency_penalty": PENALTY}
        | {"top_logprobs": FROM_0_TO_20, "max_output_tokens": FROM_1},
    ),
    "completion": (
        "openai",
        "completion",
        {"prompt": "a"},
        {},
        "",
        OPENAI | {"logprobs": FROM_0_TO_20, "best_of": FROM_1_TO_128},
    ),
    "Anthropic": ("anthropic", "messages", {"model": "m", "max_tokens": 1} | CHAT, {}, "", ANTHROPIC),
    "Ollama": ("ollama", "ollama_chat", {"model": "m"} | CHAT, {}, "options", OLLAMA),
    "LMI": ("lmi", "predict", {"inputs": "a"}, {}, "parameters", LMI),
    "TGI": ("tgi", "generate", {"inputs": "a"}, {"max_model_len": 100}, "parameters", TGI),
    "MindIE": ("mindie", "generate_stream", {"inputs": "a"}, {}, "parameters", MINDIE),
    "Triton": ("triton", "generate", {"text_input": "a"}, {}, "parameters", TRITON),
}


@pytest.mark.parametrize(("name", "field"), [(name, field) for name, case in CASES.items() for field in case[-1]])
def test_edges(name: str, field: str) -> None:
    kind, operation, body, options, within, edges = CASES[name]
    taken, refused = edges[field]

    def parse(value: Any) -> None:
        asked = body | ({within: {field: value}} if within else {field: value})
        dialect(kind).parse(inputs(operation, asked, kind), model(**options))

    for value in taken:
        parse(value)
    for value in refused:
        with pytest.raises(ParameterError) as caught:
            parse(value)
        named = (caught.value.field or "").removeprefix(f"{within}.")
        same = {"max_new_tokens": "max_tokens", "min_length": "min_tokens", "random_seed": "seed"}
        assert named.partition("[")[0] in (field, same.get(field)), value


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("chat", "min_tokens", "max_tokens"),
        ("chat", "min_tokens", "max_completion_tokens"),
        ("completion", "min_tokens", "max_tokens"),
        ("LMI", "min_new_tokens", "max_new_tokens"),
        ("Triton", "min_tokens", "max_tokens"),
        ("completion", "n", "best_of"),
        ("LMI", "n", "best_of"),
        ("LMI", "n", "num_beams"),
    ],
)
def test_the_least_may_be_the_most_and_no_more(name: str, least: str, most: str) -> None:
    kind, operation, body, options, within, _ = CASES[name]

    def parse(low: int) -> None:
        asked = {least: low, most: 7}
        made = body | ({within: asked} if within else asked)
        dialect(kind).parse(inputs(operation, made, kind), model(**options))

    parse(7)
    with pytest.raises(ParameterError):
        parse(8)


def test_beams_are_the_sequences() -> None:
    for best_of, taken in ((1, True), (3, True), (2, False), (4, False)):
        body = {"inputs": "a", "parameters": {"num_beams": 3, "best_of": best_of}}
        try:
            (request,) = dialect("lmi").parse(inputs("predict", body, "lmi"), model()).requests
        except ParameterError as error:
            assert not taken and error.field == "parameters.best_of"
        else:
            assert taken and (request.branching.num_beams, request.branching.best_of) == (3, 3)
