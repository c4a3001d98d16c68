"""A stream, put together again, says what the answer in one piece says: in every dialect, however steps come."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from djl_python.core.types import Delta, Finish, FinishReason, Token, ToolCallDelta, TopToken
from djl_python.dialects import dialect
from djl_python.dialects.shared.base import Formatter
from tests.dialects.exchange import answer, inputs, lines, model

ROUNDS = 60
WORDS = ["", "a", " b", "é", "\n", '"', "👍", "data: ", "[DONE]"]
REASONS = [FinishReason.EOS, FinishReason.STOP, FinishReason.LENGTH]
CHAT = {"messages": [{"role": "user", "content": "Hi."}]}
PROMPT = "Say: "

# ------------------------------------------------------------------------------------------------ what was generated


def token(draw: random.Random, number: int) -> Token:
    top = tuple(TopToken(i, draw.choice(WORDS), -0.5 - i, partial=draw.choice([None, b"\xf0"])) for i in range(2))
    return Token(number, draw.choice(WORDS), -float(number), special=draw.random() < 0.2, top=top)


def generated(draw: random.Random, choice: int, *, calls: bool) -> Iterator[Delta]:
    """One sequence: texts, then with `calls` pieces of tool calls, whose tokens are no text."""
    count = draw.randint(1, 8)
    tokens = [token(draw, number) for number in range(count)]
    spoken = draw.randint(0, count) if calls else count
    text = "".join(one.text for one in tokens)
    at, call = 0, -1
    while at < count:
        step = tokens[at : at + draw.randint(1, 3)]
        said = "".join(one.text for one in step) if at < spoken else ""
        pieces: list[ToolCallDelta] = []
        if at >= spoken:
            for _ in range(draw.randint(0, 2)):
                new = call < 0 or draw.random() < 0.4
                call += new
                pieces.append(
                    ToolCallDelta(call, f"id{call}", f"f{call}", "") if new else ToolCallDelta(call, arguments="{}")
                )
        end = Finish(
            reason=draw.choice(REASONS), text=text, prompt=PROMPT, prompt_tokens=5, generated_tokens=count, seed=3
        )
        yield Delta(
            choice=choice,
            prompt=PROMPT if at == 0 else "",
            tokens=tuple(step),
            text=said,
            tool_calls=tuple(pieces),
            finish=end if at + len(step) >= count else None,
        )
        at += len(step)


def steps(draw: random.Random, sequences: int, *, calls: bool = False) -> list[Delta]:
    """The steps of all sequences, in any order that a batch may have."""
    queues = [list(generated(draw, choice, calls=calls)) for choice in range(sequences)]
    ordered = []
    while queues := [queue for queue in queues if queue]:
        ordered.append(draw.choice(queues).pop(0))
    return ordered


# ------------------------------------------------------------------------------------------------ reading answers


def events(data: bytes) -> list[Any]:
    blocks = [event.removeprefix(b"data: ") for event in data.split(b"\n\n")]
    assert blocks.pop() == b""
    return [json.loads(event) for event in blocks if event != b"[DONE]"]


def choices(stream: list[Any]) -> dict[str, Any]:
    """A chat's or a completion's chunks as one answer."""
    usage = stream.pop()
    assert usage["choices"] == [] and all(one["usage"] is None for one in stream)
    made: dict[int, dict[str, Any]] = {}
    for one in stream:
        (choice,) = one["choices"]
        sofar = made.setdefault(choice["index"], {"text": "", "calls": {}, "logprobs": [], "finish_reason": None})
        assert sofar["finish_reason"] is None  # nothing comes after it
        delta = choice.get("delta", {})
        assert choice.get("text") or delta or choice["finish_reason"] or choice["logprobs"]["tokens"]
        sofar["text"] += choice.get("text") or delta.get("content") or ""
        for piece in delta.get("tool_calls", ()):
            call = sofar["calls"].setdefault(piece["index"], {"arguments": ""})
            call["arguments"] += piece["function"]["arguments"]
            if "id" in piece:
                call |= {"id": piece["id"], "type": piece["type"], "name": piece["function"]["name"]}
        sofar["logprobs"].append(choice["logprobs"])
        sofar["finish_reason"] = choice["finish_reason"]
    roles = [one["choices"][0]["delta"].get("role") for one in stream if "delta" in one["choices"][0]]
    assert roles.count("assistant") == (len(made) if roles else 0)
    joined = [{**one, "index": i, "logprobs": logprobs(*one["logprobs"])} for i, one in sorted(made.items())]
    return {"choices": joined, "usage": usage["usage"]}


def logprobs(*parts: dict[str, list[Any]] | None) -> dict[str, list[Any]]:
    """Each list of theirs, joined."""
    joined: dict[str, list[Any]] = {}
    for part in filter(None, parts):
        for name in ("content", "tokens", "token_logprobs", "top_logprobs", "text_offset"):
            joined.setdefault(name, []).extend(part.get(name, ()))
    return joined


def whole_choices(response: dict[str, Any]) -> dict[str, Any]:
    made = []
    for choice in response["choices"]:
        message = choice.get("message", {})
        calls = [call.pop("function") | call for call in message.get("tool_calls", ())]
        made.append(
            {
                "text": choice.get("text") or message.get("content") or "",
                "calls": dict(enumerate(calls)),
                "logprobs": logprobs(choice["logprobs"]),
                "finish_reason": choice["finish_reason"],
                "index": choice["index"],
            }
        )
    return {"choices": made, "usage": response["usage"]}


def token_lines(stream: list[Any]) -> dict[str, Any]:
    """LMI's and TGI's lines as one answer; what only a stream has is left out."""
    assert all(not one.get("generated_text") and not one.get("details") for one in stream[:-1])
    last = stream[-1]
    details = {**last["details"], "tokens": [one["token"] for one in stream]}
    details.pop("input_length", None)
    details["top_tokens"] = [one["top_tokens"] for one in stream]
    assert [one["index"] for one in stream if "index" in one] in ([], [*range(1, len(stream) + 1)])
    return {"generated_text": last["generated_text"], "details": details}


def whole_lines(response: Any) -> dict[str, Any]:
    (response,) = response if isinstance(response, list) else [response]
    response["details"].pop("prefill", None)
    return dict(response)


def outputs(stream: list[Any]) -> Any:
    return ["".join(texts) for texts in zip(*(line["outputs"] for line in stream), strict=True)]


def texts(answers: Any) -> Any:
    return [one["generated_text"] for one in answers]


def pieces(stream: list[Any]) -> Any:
    return {**stream[-1], "text_output": "".join(one["text_output"] for one in stream)}


Case = tuple[str, tuple[str, str], Any, dict[str, Any], int, Callable[[list[Any]], Any], Callable[[Any], Any]]
GENERATE = {"inputs": PROMPT, "parameters": {"details": True, "top_n_tokens": 2, "return_full_text": True}}
LOGGED = CHAT | {"logprobs": True, "top_logprobs": 2}
COMPLETE = {"prompt": PROMPT, "echo": True}
LOGGED_COMPLETE = {"prompt": PROMPT, "logprobs": 2}
BATCH = {"inputs": ["a", "b", "c"]}

#: name -> dialect, operations (whole, streamed), body, options, sequences, how to read either.
CASES: dict[str, Case] = {
    "chats": ("openai", ("chat", "chat"), CHAT | {"n": 3}, {}, 3, choices, whole_choices),
    "chats, logprobs": ("openai", ("chat", "chat"), LOGGED | {"n": 3}, {}, 3, choices, whole_choices),
    "completions, echo": ("openai", ("completion",) * 2, COMPLETE | {"n": 3}, {}, 3, choices, whole_choices),
    "completions, logprobs": ("openai", ("completion",) * 2, LOGGED_COMPLETE | {"n": 3}, {}, 3, choices, whole_choices),
    "LMI": ("lmi", ("predict", "predict"), GENERATE, {}, 1, token_lines, whole_lines),
    "LMI chat": ("lmi", ("predict", "predict"), CHAT, {}, 1, choices, whole_choices),
    "LMI chat, logprobs": ("lmi", ("predict", "predict"), LOGGED, {}, 1, choices, whole_choices),
    "LMI as TGI": ("lmi", ("predict", "predict"), GENERATE, {"tgi_compat": True}, 1, token_lines, whole_lines),
    "LMI batch": ("lmi", ("predict", "predict"), BATCH, {"rolling_batch": "disable"}, 3, outputs, texts),
    "TGI": ("tgi", ("generate", "generate_stream"), GENERATE, {}, 1, token_lines, whole_lines),
    "TGI root": ("tgi", ("compat_generate", "compat_generate"), GENERATE, {}, 1, token_lines, whole_lines),
    "Triton": ("triton", ("generate", "generate_stream"), {"text_input": PROMPT, "id": "7"}, {}, 1, pieces, dict),
}


def formatter(case: Case, *, stream: bool) -> Formatter:
    name, operations, body, options, *_ = case
    if stream and operations[0] == operations[1]:
        body = body | {"stream": True}
        if "inputs" not in body:
            body = body | {"stream_options": {"include_usage": True}}
    made = dialect(name).parse(inputs(operations[stream], body, name), model(**options)).formatter
    assert made.stream is stream
    return made


def bare(delta: Delta) -> Delta:
    """The same without log-probabilities."""
    return replace(delta, tokens=tuple(replace(one, logprob=None, top=()) for one in delta.tokens))


BARE: dict[str, Case] = {
    "LMI, bare": ("lmi", ("predict", "predict"), {"inputs": PROMPT}, {}, 1, token_lines, whole_lines),
    "TGI, bare": ("tgi", ("generate", "generate_stream"), {"inputs": PROMPT}, {}, 1, token_lines, whole_lines),
}


@pytest.mark.parametrize("name", [*CASES, *BARE])
@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_are_asked_for_where_they_show(name: str, stream: bool) -> None:
    case = (CASES | BARE)[name]
    made, other = formatter(case, stream=stream), formatter(case, stream=stream)
    deltas = steps(random.Random(name), case[4])
    shown = re.compile(rb"log_?prob")
    assert made.shows_logprobs is bool(shown.search(answer(made, *deltas).replace(b'"logprobs":null', b"")))
    if not made.shows_logprobs:
        assert answer(other, *map(bare, deltas))


@pytest.mark.parametrize("name", CASES)
def test_a_stream_says_what_the_whole_answer_says(name: str) -> None:
    case = CASES[name]
    *_, sequences, read_stream, read_whole = case
    draw = random.Random(name)
    for _ in range(ROUNDS):
        deltas = steps(draw, sequences, calls="chat" in name)
        streamed = formatter(case, stream=True)
        data = answer(streamed, *deltas)
        chunks = (events if "event-stream" in streamed.headers["content-type"] else lines)(data)
        expected = json.loads(answer(formatter(case, stream=False), *deltas))
        assert read_stream(chunks) == read_whole(expected), deltas
