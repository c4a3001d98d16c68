"""Text of tokens: whole characters, and nothing of a stop sequence."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import transformers

from djl_python.pipelines.text_generation import GenerationArguments
from djl_python.pipelines.token_steps import TextOfTokens, token_steps
from djl_python.testing import write_byte_tokenizer

DEMO = str(Path(__file__).resolve().parents[2] / "serving_templates" / "demo")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Its tokens are bytes."""
    return transformers.AutoTokenizer.from_pretrained(write_byte_tokenizer(tmp_path_factory.mktemp("bytes")))


def pieces(tokenizer: Any, text: str, stops: tuple[str, ...] = ()) -> list[str]:
    made = TextOfTokens(tokenizer, stops)
    texts = []
    for token_id in text.encode():
        texts.append(made.add(token_id))
        if made.stopped:
            return texts
    return [*texts, made.end()]


def test_a_character_comes_with_its_last_byte(tokenizer: Any) -> None:
    assert pieces(tokenizer, "aé€😀b") == ["a", "", "é", "", "", "€", "", "", "", "😀", "b", ""]
    long = "größer als 😀 je " * 20
    assert "".join(pieces(tokenizer, long)) == long


def test_an_unfinished_character_at_the_end(tokenizer: Any) -> None:
    made = TextOfTokens(tokenizer)
    assert [made.add(token_id) for token_id in "a€".encode()[:3]] == ["a", "", ""]
    assert made.end() == "\ufffd"


def test_a_stop_sequence_is_held_back_and_cut(tokenizer: Any) -> None:
    assert pieces(tokenizer, "a st op stop now", ("stop",)) == [*"a ", "", "", "st ", "o", "p", " ", "", "", "", ""]
    assert "".join(pieces(tokenizer, "a sto", ("stop",))) == "a sto"


def test_a_reader_that_leaves_ends_the_generation() -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(DEMO)
    tokenizer = transformers.AutoTokenizer.from_pretrained(DEMO)
    wanted = GenerationArguments.of({"max_new_tokens": 4000, "min_new_tokens": 4000})
    steps = token_steps(model, tokenizer, ["Hello"], wanted.arguments)
    (first,) = next(steps)
    assert tokenizer.decode([first.token_id]).strip() == "Hello"
    assert first.log_prob < 0
    steps.close()
    assert not any(thread.name.startswith("generate") for thread in threading.enumerate())


def test_an_error_of_generate_reaches_the_reader() -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(DEMO)
    tokenizer = transformers.AutoTokenizer.from_pretrained(DEMO)
    with pytest.raises(ValueError, match="mood"):
        list(token_steps(model, tokenizer, ["Hello"], {"mood": "good"}))


def test_parameters_of_lmi_become_those_of_generate() -> None:
    wanted = GenerationArguments.of(
        {"max_tokens": 5, "stop": "x", "details": True, "seed": "7", "top_p": None, "top_k": 3}
    )
    assert wanted.arguments == {"max_new_tokens": 5, "top_k": 3, "do_sample": False}
    assert (wanted.stops, wanted.seed, wanted.full_text) == (("x",), 7, False)
    assert GenerationArguments.of({"max_length": 9}, ["a"]) == GenerationArguments(
        {"max_length": 9, "do_sample": False}, ("a",)
    )
    assert GenerationArguments.of({}).arguments["max_new_tokens"] == 30
