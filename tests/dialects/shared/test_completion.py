"""Completions in OpenAI's form: request -> requests for the engine, and what it gave -> required answer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from djl_python.core import errors
from djl_python.core.types import Branching, FinishReason, Token
from djl_python.dialects.openai.dialect import OpenAIDialect
from djl_python.dialects.shared.base import Parsed
from tests.dialects.exchange import ending, events, inputs, model, said, sse, token, whole
from tests.dialects.test_refusals import SHARED

OPENAI = OpenAIDialect()
PREFILL = (Token(1, "Hi", None), token(".", -2.0, "!"))


def parse(body: dict[str, Any] | None = None, **options: Any) -> Parsed:
    return OPENAI.parse(inputs("completion", {"prompt": "Hi."} | (body or {})), model(**options))


# ------------------------------------------------------------------------------------------------ requests


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Hi.", ["Hi."]),
        ("", [""]),
        (["Hi.", "Ho."], ["Hi.", "Ho."]),
        ([1, 2], [(1, 2)]),
        ([[1, 2], [3]], [(1, 2), (3,)]),
    ],
)
def test_prompts(prompt: Any, expected: list[Any]) -> None:
    assert [request.prompt for request in parse({"prompt": prompt}).requests] == expected


@pytest.mark.parametrize("prompt", [[], [[]], [[1], []], ["a", 1], [1, [1]], ["a", [1]]])
def test_prompts_of_several_minds(prompt: Any) -> None:
    with pytest.raises(errors.PayloadError, match=r"^prompt: expected a string, an array of strings, an array of t"):
        parse({"prompt": prompt})


def test_a_request() -> None:
    (request,) = parse({"add_special_tokens": False, "truncate_prompt_tokens": 9, "bad_words": ["x"]}).requests
    assert (request.sampling.max_new_tokens, request.must_fit) == (32, False)
    assert (request.add_special_tokens, request.truncate, request.bad_sequences) == (False, 9, ("x",))
    assert request.branching == Branching()
    (request,) = parse({"max_tokens": 7, "n": 2, "best_of": 3, "logprobs": 4}).requests
    assert (request.sampling.max_new_tokens, request.must_fit) == (7, True)
    assert request.branching == Branching(n=2, best_of=3)
    assert (request.sampling.top_logprobs, request.sampling.prompt_logprobs) == (4, None)


def test_completions_and_chats_read_shared_fields_alike() -> None:
    fields = {name: value for name, value in SHARED.items() if name not in ("stream", "stream_options")}
    fields |= {"zzz": 1, "guided_regex": None, "prediction": "x"}
    (request,) = parse(fields | {"logprobs": 2}).requests
    asked = fields | {"messages": [{"role": "user", "content": "Hi."}], "logprobs": True, "top_logprobs": 2}
    (chat,) = OPENAI.parse(inputs("chat", asked), model()).requests
    assert (request.sampling, request.text) == (chat.sampling, chat.text)
    assert (request.bad_sequences, request.truncate, request.must_fit) == (("b",), 3, True)
    assert request.branching == chat.branching == Branching(n=2, best_of=2)
    assert request.ignored == chat.ignored == ("prediction", "zzz")
    sampling = request.sampling
    assert sampling.grammar is not None and sampling.grammar.field == "response_format.json_schema.schema"
    assert (sampling.max_new_tokens, sampling.min_new_tokens, sampling.ignore_eos) == (5, 1, True)
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (1.5, 3, 0.5, 0.1)
    assert (sampling.stop_token_ids, sampling.logit_bias, sampling.seed) == ((1,), {5: 1.0}, 1)
    assert request.text.stop_sequences == ("a",)


def test_scoring_a_prompt() -> None:
    """What evaluation harnesses send."""
    (request,) = parse({"max_tokens": 0, "echo": True, "logprobs": 1}).requests
    assert (request.sampling.max_new_tokens, request.sampling.prompt_logprobs) == (1, 1)
    (request,) = parse({"echo": True}).requests
    assert (request.sampling.top_logprobs, request.sampling.prompt_logprobs) == (0, None)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"prompt": None},
            "prompt: expected a string, an array of strings, an array of token ids, or an array of arrays",
        ),
        (
            {"prompt": [-1]},
            "prompt[0]: expected a string, an integer >= 0 or an array, each item an integer >= 0, got -1",
        ),
        ({"suffix": "end"}, "suffix: this model does not fill gaps"),
        ({"structural_tag": "a"}, "structural_tag: not served"),
        ({"max_tokens": 0}, "max_tokens: expected an integer >= 1 (0 only with echo=true), got 0"),
        ({"logprobs": 21}, "logprobs: expected an integer >= 0 and <= 20, got 21"),
        ({"n": 2, "best_of": 1}, "best_of: expected at least n (2), got 1"),
        ({"best_of": 2, "stream": True}, "best_of: expected n (1) in a stream, got 2"),
        ({"prompt": ["a"] * 9, "n": 128}, "prompt: expected at most 1024 sequences together, got 9 prompts with 128"),
    ],
)
def test_refused(body: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.ServingError) as caught:
        parse(body)
    assert caught.value.message.startswith(message)
    assert caught.value.status == 400
    assert isinstance(caught.value, errors.PayloadError | errors.ParameterError)
    assert caught.value.field == message.partition(":")[0]


# ------------------------------------------------------------------------------------------------ answers


def test_an_answer() -> None:
    completion = whole(parse().formatter, said("Good"), said(" day", end=ending()))
    assert completion.pop("id").startswith("cmpl-")
    assert isinstance(completion.pop("created"), int)
    assert completion.pop("system_fingerprint").startswith("djl-serving-")
    assert completion == {
        "object": "text_completion",
        "model": "served",
        "choices": [{"index": 0, "text": "Good day", "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
    }


def test_a_stream() -> None:
    parsed = parse({"stream": True, "stream_options": {"include_usage": True}})
    chunks = events(parsed.formatter, said("Good"), said(""), said(" day", end=ending(FinishReason.LENGTH)))
    assert [one["choices"] for one in chunks] == [
        [{"index": 0, "text": "Good", "logprobs": None, "finish_reason": None}],
        [{"index": 0, "text": " day", "logprobs": None, "finish_reason": "length"}],
        [],
    ]
    assert [one["usage"] and one["usage"]["total_tokens"] for one in chunks] == [None, None, 8]


@pytest.mark.parametrize("include_usage", [False, True])
def test_under_tgi_compat_the_last_piece_of_each_text_has_its_usage(include_usage: bool) -> None:
    body = {"prompt": ["a", "b"], "stream": True, "stream_options": {"include_usage": include_usage}}
    deltas = [said("Good"), said("", end=ending()), said("Bad", choice=1), said("", choice=1, end=ending())]
    chunks = events(parse(body, tgi_compat=True).formatter, *deltas)
    assert [one["choices"][0]["finish_reason"] for one in chunks] == ["", "stop", "", "stop"]
    counted = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    assert [one.get("usage") for one in chunks] == [None, counted, None, counted]
    assert "usage" not in chunks[0]


def test_several_prompts_with_several_answers() -> None:
    formatter = parse({"prompt": ["a", "b"], "n": 2}).formatter
    deltas = [
        said(f"text {choice}", choice=choice, end=ending(prompt_tokens=10 * (1 + choice // 2)))
        for choice in (3, 0, 2, 1)
    ]
    completion = whole(formatter, *deltas)
    assert [one["text"] for one in completion["choices"]] == ["text 0", "text 1", "text 2", "text 3"]
    assert completion["usage"] == {"prompt_tokens": 30, "completion_tokens": 12, "total_tokens": 42}


def test_logprobs() -> None:
    expected = {
        "tokens": ["Go", "od"],
        "token_logprobs": [-0.25, -0.5],
        "top_logprobs": [{"Go": -1.0, "x": -2.0}, {"y": -1.0, "od": -0.5}],
        "text_offset": [0, 2],
    }
    steps = (
        said("Go", token("Go", -0.25, "Go", "x", "x")),
        said("od", token("od", -0.5, "y"), end=ending()),
    )
    completion = whole(parse({"logprobs": 2}).formatter, *steps)
    assert completion["choices"][0]["logprobs"] == expected
    streamed = [
        one["choices"][0]["logprobs"] for one in events(parse({"logprobs": 2, "stream": True}).formatter, *steps)
    ]
    assert {name: [*streamed[0][name], *streamed[1][name]] for name in expected} == expected


def test_echo() -> None:
    """What the model was given, which may be less than what was sent."""
    first = msgspec.structs.replace(said("Good"), prompt="i.")
    steps = (first, said(" day", end=ending(prompt="i.")))
    assert whole(parse({"echo": True}).formatter, *steps)["choices"][0]["text"] == "i.Good day"
    streamed = events(parse({"echo": True, "stream": True}).formatter, *steps)
    assert [one["choices"][0]["text"] for one in streamed] == ["i.Good", " day"]


def test_echo_with_logprobs() -> None:
    formatter = parse({"echo": True, "logprobs": 1}).formatter
    choice = whole(formatter, said("Good", token("Good", -0.5), end=ending(prefill=PREFILL)))["choices"][0]
    assert choice["text"] == "Hi.Good"
    assert choice["logprobs"] == {
        "tokens": ["Hi", ".", "Good"],
        "token_logprobs": [None, -2.0, -0.5],
        "top_logprobs": [None, {"!": -1.0, ".": -2.0}, {"Good": -0.5}],
        "text_offset": [0, 2, 3],
    }


@pytest.mark.parametrize("max_tokens", [0, 9])
def test_a_streamed_echo_is_the_whole_one_in_pieces(max_tokens: int) -> None:
    """The prompt's tokens come first, and the offsets go on from there, for each choice."""
    asked = {"echo": True, "logprobs": 1, "max_tokens": max_tokens, "n": 2}
    steps = []
    for choice in (0, 1):
        first = said("Good", token("Good", -0.5), choice=choice)
        steps.append(msgspec.structs.replace(first, prompt="Hi.", prefill=PREFILL))
        steps.append(said(" day", token(" day", -0.25), choice=choice, end=ending(prefill=PREFILL)))
    expected = whole(parse(asked).formatter, *steps)["choices"]
    streamed = events(parse({**asked, "stream": True}).formatter, *steps)
    assert streamed[0]["choices"][0]["logprobs"]["tokens"][:2] == ["Hi", "."]
    for choice in expected:
        pieces = [one["choices"][0] for one in streamed if one["choices"][0]["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in pieces) == choice["text"]
        assert pieces[-1]["finish_reason"] == choice["finish_reason"]
        for name, values in choice["logprobs"].items():
            assert [value for piece in pieces for value in piece["logprobs"][name]] == values


def test_the_echo_beside_logprobs_is_what_the_tokens_say() -> None:
    prefill = (Token(0, "<s>", None, True), *PREFILL)
    formatter = parse({"echo": True, "logprobs": 1}).formatter
    choice = whole(formatter, said("Good", end=ending(prefill=prefill)))["choices"][0]
    assert choice["text"] == "<s>Hi.Good"
    spans = zip(choice["logprobs"]["text_offset"], choice["logprobs"]["tokens"], strict=True)
    assert all(choice["text"].startswith(said, at) for at, said in spans)


def test_a_scored_prompt_is_all_there_is() -> None:
    formatter = parse({"echo": True, "logprobs": 1, "max_tokens": 0}).formatter
    completion = whole(formatter, said("Good", end=ending(prefill=PREFILL, generated_tokens=1)))
    assert completion["choices"][0]["text"] == "Hi."
    assert completion["choices"][0]["logprobs"]["tokens"] == ["Hi", "."]
    assert completion["choices"][0]["finish_reason"] == "length"
    assert completion["usage"]["completion_tokens"] == 0


def test_pieces_of_several_texts_differ_in_nothing_else() -> None:
    texts = ["A", 'B"\n', "\\é\u2028", ""]
    steps = [said(text, choice=choice) for text in texts for choice in (0, 1)]
    chunks = events(parse({"stream": True, "n": 2}).formatter, *steps, said("!", choice=1, end=ending()))
    for event, step in zip(chunks[:6], steps[:6], strict=True):
        choice = {"index": step.choice, "text": step.text, "logprobs": None, "finish_reason": None}
        assert event == chunks[0] | {"choices": [choice]}
    assert len(chunks) == 7  # nothing of those without text
    assert chunks[-1]["choices"] == [{"index": 1, "text": "!", "logprobs": None, "finish_reason": "stop"}]


def test_an_error_ends_a_stream() -> None:
    (chunk,) = sse(parse({"stream": True}).formatter.error(errors.GenerationError("no")))
    assert chunk["error"]["message"] == "no"
