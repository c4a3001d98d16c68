"""OpenAI's responses: what a request becomes, and the response, the events and the errors that answer it."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from djl_python.config import Checkpoint
from djl_python.core.errors import (
    ContextLengthError,
    OverloadedError,
    ParameterError,
    PayloadError,
    ServingError,
    WorkerDiedError,
)
from djl_python.core.types import Chat, Delta, FinishReason, Grammar, ImageSource
from djl_python.dialects.responses.dialect import ResponsesDialect
from tests.dialects.exchange import called, ending, inputs, model, said, token, whole
from tests.dialects.test_streams import steps

API = ResponsesDialect()
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}
TIME = {"type": "function", "name": "time", "parameters": {"type": "object", "properties": {}}}
TAKES_IMAGES = Checkpoint(takes_images=True)
IMAGE = {"type": "input_image", "image_url": "https://a/b.png", "detail": "high"}
LOGPROBS = ["message.output_text.logprobs"]
SEALED = ["reasoning.encrypted_content"]
#: The client's own types: an event or a response that is none of them is refused.
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def parsed(checkpoint: Checkpoint | None = None, **body: Any) -> Any:
    return API.parse(inputs("create_response", {"input": "Hi."} | body, "responses"), model(checkpoint))


def chat(input_: Any, checkpoint: Checkpoint | None = None, **body: Any) -> Chat:
    (request,) = parsed(checkpoint, input=input_, **body).requests
    assert isinstance(request.prompt, Chat)
    return request.prompt


def events(formatter: Any, *deltas: Delta) -> list[dict[str, Any]]:
    """The data of each event, which the client's types take, and whose numbers have no gap."""
    return read(b"".join(map(formatter.push, deltas)) + formatter.end())


def read(data: bytes) -> list[dict[str, Any]]:
    blocks = [event.split(b"\n") for event in data.removesuffix(b"\n\n").split(b"\n\n")]
    made = [json.loads(data.removeprefix(b"data: ")) for _, data in blocks]
    assert [name.removeprefix(b"event: ").decode() for name, _ in blocks] == [one["type"] for one in made]
    for one in made:
        EVENT.validate_python(one)
    return made


# ------------------------------------------------------------------------------------------------ requests


def test_a_request_asks_for_what_its_fields_say() -> None:
    (request,) = parsed(
        max_output_tokens=9, temperature=0.5, top_p=0.25, top_k=3, seed=7, stop="z", user="u", metadata={"a": "b"}
    ).requests
    sampling = request.sampling
    assert (sampling.max_new_tokens, sampling.do_sample, sampling.temperature) == (9, True, 0.5)
    assert (sampling.top_p, sampling.top_k, sampling.seed, request.text.stop_sequences) == (0.25, 3, 7, ("z",))
    assert (request.add_special_tokens, request.splits_reasoning, request.must_fit) == (False, True, False)
    assert request.ignored == ()
    assert request.prompt.messages == ({"role": "user", "content": "Hi."},)


def test_items_become_the_messages_of_a_chat_template() -> None:
    made = chat(
        [
            {"role": "developer", "content": "Be kind."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather"}]},
            {"role": "user", "content": "in Bern?"},
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "Hm."}],
                "encrypted_content": None,
            },
            {
                "type": "message",
                "id": "msg_1",
                "status": "completed",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
            },
            {
                "type": "function_call",
                "id": "fc_1",
                "call_id": "c1",
                "name": "weather",
                "arguments": '{"city":"Bern"}',
                "status": "completed",
            },
            {"type": "function_call_output", "call_id": "c1", "output": "Sun"},
            {"role": "assistant", "content": "Sunny."},
            {"role": "user", "content": "Sure?"},
        ],
        instructions="Be short.",
        tools=[WEATHER],
    )
    arguments = {"name": "weather", "arguments": '{"city":"Bern"}'}
    assert made.messages == (
        {"role": "system", "content": "Be short.\nBe kind."},
        {"role": "user", "content": "Weather\nin Bern?"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": "c1", "type": "function", "function": arguments}],
        },
        {"role": "tool", "content": "Sun", "tool_call_id": "c1"},
        {"role": "assistant", "content": "Sunny."},
        {"role": "user", "content": "Sure?"},
    )
    assert (made.continue_final, made.add_generation_prompt) == (False, True)
    assert made.tool_use is not None
    assert made.tool_use.tools[0]["function"]["parameters"] == WEATHER["parameters"]


def test_images_keep_their_place_and_their_path() -> None:
    items = [
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [IMAGE]},
        {"role": "user", "content": [{"type": "input_text", "text": "See"}, IMAGE]},
    ]
    made = chat(items, TAKES_IMAGES)
    assert made.messages[1:] == (
        {"role": "tool", "content": [{"type": "image"}], "tool_call_id": "c"},
        {"role": "user", "content": [{"type": "text", "text": "See"}, {"type": "image"}]},
    )
    assert made.images == (
        ImageSource("https://a/b.png", "input[1].output[0].image_url"),
        ImageSource("https://a/b.png", "input[2].content[1].image_url"),
    )
    assert parsed(TAKES_IMAGES, input=items).requests[0].ignored == ("detail",)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ("auto", "", ["weather", "time"])),
        ("required", ("required", "", ["weather", "time"])),
        ("none", ("none", "", ["weather", "time"])),
        ({"type": "function", "name": "time"}, ("named", "time", ["weather", "time"])),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "time"}]},
            ("required", "", ["time"]),
        ),
    ],
)
def test_a_tool_is_chosen_as_the_request_says(choice: Any, expected: Any) -> None:
    use = chat("Hi.", tools=[WEATHER, TIME], tool_choice=choice, parallel_tool_calls=False).tool_use
    assert use is not None and not use.parallel
    assert (use.choice, use.name, [tool["function"]["name"] for tool in use.tools]) == expected


def test_effort_is_the_templates_and_other_wishes_about_reasoning_are_named() -> None:
    (request,) = parsed(reasoning={"effort": "low", "summary": "auto"}).requests
    assert request.prompt.variables == {"reasoning_effort": "low"}
    assert request.prompt.variable_fields == {"reasoning_effort": "reasoning.effort"}
    assert request.ignored == ("reasoning.summary",)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"zzz": 1}, "zzz"),
        ({"truncation": "auto"}, "truncation"),
        ({"truncation": "disabled"}, None),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 2, "include": LOGPROBS}, None),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"max_tool_calls": 3}, "max_tool_calls"),
        ({"prompt_cache_key": "k"}, "prompt_cache_key"),
        ({"service_tier": "auto"}, None),
        ({"service_tier": "flex"}, "service_tier"),
        ({"temperature": 0, "top_p": 0.5}, "top_p"),
        ({"safety_identifier": "a", "user": "b", "store": True, "stream": True, "stream_options": {}}, None),
    ],
)
def test_fields_without_effect_are_named(body: dict[str, Any], named: str | None) -> None:
    assert parsed(**body).requests[0].ignored == (() if named is None else (named,))


@pytest.mark.parametrize(
    ("format_", "expected"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, Grammar("json_object")),
        (
            {"type": "json_schema", "name": "x", "schema": {"type": "object", "properties": {}}},
            "json_schema",
        ),
    ],
)
def test_a_format_constrains_the_text(format_: Any, expected: Any) -> None:
    grammar = parsed(text={"format": format_}).requests[0].sampling.grammar
    if expected == "json_schema":
        assert (grammar.kind, grammar.field) == ("json_schema", "text.format.schema")
        forced = parsed(text={"format": format_}, tools=[TIME], tool_choice="required").requests[0]
        assert (forced.sampling.grammar, forced.ignored) == (None, ("text.format",))
    else:
        assert grammar == expected


@pytest.mark.parametrize(
    ("body", "field", "code"),
    [
        ({"input": None}, "input", None),
        ({"input": []}, "input", None),
        ({"input": 3}, "input", None),
        ({"input": [{"role": "tool", "content": "a"}]}, "input[0].role", None),
        ({"input": [{"type": "web_search_call", "id": "a"}]}, "input[0].type", None),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type", None),
        ({"input": [{"role": "user", "content": [IMAGE]}]}, "input[0].content[0]", None),
        ({"input": [{"role": "system", "content": [IMAGE]}]}, "input[0].content[0].type", None),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input[0].content[0].image_url",
            None,
        ),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "a"}]}, "input[0].call_id", None),
        (
            {"input": [{"type": "reasoning", "encrypted_content": "djl-reasoning:!"}]},
            "input[0].encrypted_content",
            None,
        ),
        ({"max_output_tokens": 0}, "max_output_tokens", None),
        ({"temperature": 2.5}, "temperature", None),
        ({"metadata": {"a": 1}}, "metadata", None),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata", None),
        ({"include": ["zzz"]}, "include[0]", None),
        ({"truncation": "zzz"}, "truncation", None),
        ({"stream_options": {}}, "stream_options", None),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "unsupported_value"),
        ({"tools": [{"type": "mcp", "server_label": "a"}]}, "tools[0].type", "unsupported_value"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", None),
        (
            {"tools": [{"type": "custom", "name": "c"}, {**TIME, "parameters": {"type": "array"}}]},
            "tools[1].parameters.type",
            None,
        ),
        ({"tools": [TIME, {**TIME, "name": "x", "parameters": {"type": "array"}}]}, "tools[1].parameters.type", None),
        ({"tools": [TIME], "tool_choice": {"type": "function", "name": "b"}}, "tool_choice.name", None),
        ({"tools": [TIME], "tool_choice": {"type": "file_search"}}, "tool_choice.type", None),
        (
            {
                "tools": [TIME],
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "b"}]},
            },
            "tool_choice.tools[0].name",
            None,
        ),
        ({"tool_choice": "required"}, "tool_choice", None),
        ({"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
        ({"prompt": {"id": "p"}}, "prompt", "unsupported_parameter"),
        ({"background": True, "store": False}, "background", None),
    ],
)
def test_a_wrong_field_is_refused_by_its_path(body: dict[str, Any], field: str, code: str | None) -> None:
    with pytest.raises((ParameterError, PayloadError)) as refused:
        parsed(**body)
    error = refused.value
    assert isinstance(error, ParameterError | PayloadError)
    assert error.field == field and error.message.startswith(f"{field}: ")
    answer = API.error(error)
    told = json.loads(answer.body)["error"]
    assert answer.status == 400
    assert told == {"message": error.message, "type": "invalid_request_error", "param": field, "code": code}


# ------------------------------------------------------------------------------------------------ answers

ANSWER = (
    Delta(tokens=said("").tokens, reasoning="Hm"),
    Delta(tokens=said("").tokens, reasoning="."),
    said("I "),
    said("look."),
    called(0, "c1", "weather", '{"city":'),
    called(0, arguments='"Bern"}'),
    called(1, "c2", "time", ""),
    Delta(finish=ending(FinishReason.EOS, prompt_tokens=7, cached_tokens=4, reasoning_tokens=2, generated_tokens=9)),
)


def bare(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name != "id"}


def test_a_response_shows_its_settings_and_an_item_for_each_part() -> None:
    settings: dict[str, Any] = {
        "instructions": "Be short.",
        "max_output_tokens": 50,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "reasoning": {"effort": "low", "summary": None},
        "safety_identifier": "s",
        "temperature": 0.5,
        "text": {"format": {"type": "json_object"}, "verbosity": "low"},
        "tool_choice": {"type": "function", "name": "weather"},
        "tools": [WEATHER],
        "top_p": 0.25,
        "truncation": "auto",
        "user": "u",
    }
    made = whole(parsed(**settings, include=SEALED).formatter, *ANSWER)
    Response.model_validate(made, strict=True)
    assert {name: made[name] for name in settings} == settings
    assert [bare(item) for item in made["output"]] == [
        {
            "type": "reasoning",
            "status": "completed",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm."}],
            "encrypted_content": "djl-reasoning:SG0u",
        },
        {
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}],
        },
        {
            "type": "function_call",
            "call_id": "c1",
            "name": "weather",
            "arguments": '{"city":"Bern"}',
            "status": "completed",
        },
        {"type": "function_call", "call_id": "c2", "name": "time", "arguments": "", "status": "completed"},
    ]
    assert (made["status"], made["error"], made["incomplete_details"]) == ("completed", None, None)
    assert made["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 16,
    }


@pytest.mark.parametrize(("body", "expected"), [({}, (1.0, 1.0)), ({"temperature": 0}, (0.0, 1.0))])
def test_settings_that_the_request_leaves_open_are_shown_as_they_are(body: Any, expected: Any) -> None:
    made = whole(parsed(**body).formatter, *ANSWER)
    assert (made["temperature"], made["top_p"]) == expected
    assert (made["text"], made["tool_choice"], made["tools"]) == (
        {"format": {"type": "text"}, "verbosity": "medium"},
        "auto",
        [],
    )


def test_an_answer_is_an_input_that_reads_the_same() -> None:
    """Also where the client keeps nothing of the reasoning but its encrypted content, as Codex does."""
    output = whole(parsed(include=SEALED).formatter, *ANSWER)["output"]
    results = [{"type": "function_call_output", "call_id": call, "output": "a"} for call in ("c1", "c2")]
    turn = chat([*output, *results]).messages[0]
    assert (turn["reasoning_content"], turn["content"], len(turn["tool_calls"])) == ("Hm.", "I look.", 2)
    output[0].pop("content")
    assert chat([*output, *results]).messages[0] == turn
    output[0]["encrypted_content"] = "gAAAAB"  # another service's
    assert "reasoning_content" not in chat([*output, *results]).messages[0]


BEGINNING = ["response.created", "response.in_progress"]
REASONING = [
    *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta"),
    *("reasoning_text.done", "content_part.done", "output_item.done"),
]
MESSAGE = [
    *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
    *("output_text.done", "content_part.done", "output_item.done"),
]
CALL = ["output_item.added", *["function_call_arguments.delta"] * 2, "function_call_arguments.done", "output_item.done"]
EMPTY_CALL = ["output_item.added", "function_call_arguments.done", "output_item.done"]


def test_events_come_in_openais_order() -> None:
    formatter = parsed(stream=True).formatter
    assert formatter.headers["content-type"] == "text/event-stream; charset=utf-8"
    made = events(formatter, *ANSWER)
    items = [f"response.{name}" for name in (*REASONING, *MESSAGE, *CALL, *EMPTY_CALL)]
    assert [one["type"] for one in made] == [*BEGINNING, *items, "response.completed"]
    assert [one["sequence_number"] for one in made] == list(range(len(made)))
    indices = [one["output_index"] for one in made if "output_index" in one]
    assert indices == [0] * 7 + [1] * 7 + [2] * 5 + [3] * 3
    begun, done = made[0]["response"], made[-1]["response"]
    assert (begun["status"], begun["output"], begun["usage"]) == ("in_progress", [], None)
    assert (done["id"], done["status"], done["usage"]["total_tokens"]) == (begun["id"], "completed", 16)
    added = [one["item"] for one in made if one["type"] == "response.output_item.added"]
    assert [item["status"] for item in added] == ["in_progress"] * 4
    assert [item.get("content", []) for item in added] == [[]] * 4
    finished = [one["item"] for one in made if one["type"] == "response.output_item.done"]
    assert finished == done["output"] and [item["id"] for item in added] == [item["id"] for item in finished]
    by_item = {item["id"]: "" for item in finished}
    for one in made:
        if one["type"].endswith(".delta"):
            by_item[one["item_id"]] += one["delta"]
        elif "item_id" in one and one["type"].endswith("_text.done"):
            assert one["text"] == by_item[one["item_id"]]
    assert list(by_item.values()) == ["Hm.", "I look.", '{"city":"Bern"}', ""]


def test_a_whole_response_says_what_its_stream_ends_with() -> None:
    streamed = events(parsed(stream=True).formatter, *ANSWER)[-1]["response"]
    made = whole(parsed().formatter, *ANSWER)
    assert [bare(item) for item in streamed["output"]] == [bare(item) for item in made["output"]]
    assert streamed["usage"] == made["usage"] and streamed.keys() == made.keys()


@pytest.mark.parametrize("include", [[], LOGPROBS])
def test_a_stream_says_what_the_whole_response_says_however_steps_come(include: list[str]) -> None:
    draw = random.Random(str(include))
    for _ in range(60):
        deltas = steps(draw, 1, calls=True)
        whole_output = whole(parsed(include=include).formatter, *deltas)["output"]
        made = events(parsed(include=include, stream=True).formatter, *deltas)
        assert [bare(item) for item in made[-1]["response"]["output"]] == [bare(item) for item in whole_output]
        pieces: dict[str, str] = {}
        logprobs: dict[str, list[Any]] = {}
        for one in made:
            if one["type"].endswith(".delta"):
                pieces[one["item_id"]] = pieces.get(one["item_id"], "") + one["delta"]
                logprobs.setdefault(one["item_id"], []).extend(one.get("logprobs", ()))
        for item in made[-1]["response"]["output"]:
            text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
            assert pieces.get(item["id"], "") == text
            if item["type"] == "message":
                reported = item["content"][0]["logprobs"]
                assert reported[: len(logprobs.get(item["id"], []))] == logprobs.get(item["id"], [])
                assert bool(include) or not reported


def test_an_answer_without_text_is_an_empty_message() -> None:
    made = events(parsed(stream=True).formatter, Delta(finish=ending()))
    names = [*MESSAGE[:2], *MESSAGE[4:]]
    assert [one["type"] for one in made] == [*BEGINNING, *(f"response.{name}" for name in names), "response.completed"]
    assert made[-1]["response"]["output"][0]["content"][0]["text"] == ""


@pytest.mark.parametrize("last", [said("look"), called(0, "c", "f", '{"a')])
def test_an_answer_that_the_limit_cuts_off_is_incomplete(last: Delta) -> None:
    cut = (said("I "), last, Delta(finish=ending(FinishReason.LENGTH)))
    made = whole(parsed().formatter, *cut)
    assert (made["status"], made["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert made["completed_at"] is None and made["output"][-1]["status"] == "incomplete"
    streamed = events(parsed(stream=True).formatter, *cut)
    assert streamed[-1]["type"] == "response.incomplete"
    assert [bare(item) for item in streamed[-1]["response"]["output"]] == [bare(item) for item in made["output"]]
    assert streamed[-2]["item"]["status"] == "incomplete"


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_are_those_of_the_texts_tokens(stream: bool) -> None:
    formatter = parsed(include=LOGPROBS, top_logprobs=1, stream=stream).formatter
    assert formatter.shows_logprobs and not parsed().formatter.shows_logprobs
    deltas = (
        Delta(tokens=(token("hm"),), reasoning="hm"),
        Delta(tokens=(token("</think>"),)),  # belongs to the reasoning, which ends before the text begins
        said("I ", token("I", -0.5, "You"), token(" ", -0.25)),
        Delta(tokens=(token("half"),)),  # of a character
        said("é", token("é")),
        Delta(tokens=(token("<end>"),), finish=ending()),
    )
    names = ["</think>", "I", " ", "half", "é", "<end>"]
    if stream:
        made = events(formatter, *deltas)
        streamed = [one["logprobs"] for one in made if one["type"] == "response.output_text.delta"]
        assert [[one["token"] for one in logprobs] for logprobs in streamed] == [names[:3], names[3:5]]
        response = made[-1]["response"]
    else:
        response = whole(formatter, *deltas)
    content_logprobs = response["output"][1]["content"][0]["logprobs"]
    assert [one["token"] for one in content_logprobs] == names
    assert (content_logprobs[1]["logprob"], content_logprobs[1]["bytes"]) == (-0.5, [73])
    assert [one["token"] for one in content_logprobs[1]["top_logprobs"]] == ["You"]


# ------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("error", "code", "failure"),
    [
        (WorkerDiedError("gone"), "worker_died", "server_error"),
        (OverloadedError("busy"), "rate_limit_exceeded", "rate_limit_exceeded"),
        (PayloadError("inputs: no", "inputs"), "invalid_request_error", "invalid_prompt"),
    ],
)
def test_a_stream_that_fails_ends_with_the_error_and_the_failed_response(
    error: ServingError, code: str, failure: str
) -> None:
    formatter = parsed(stream=True).formatter
    made = read(formatter.push(said("I ")) + formatter.error(error))
    told, failed = made[-2:]
    assert (told["type"], told["code"], failed["type"]) == ("error", code, "response.failed")
    assert [one["sequence_number"] for one in made] == list(range(len(made)))
    response = failed["response"]
    assert (response["status"], response["error"]) == ("failed", {"code": failure, "message": told["message"]})
    assert (response["output"][0]["content"][0]["text"], response["output"][0]["status"]) == ("I ", "incomplete")
    (unnumbered,) = read(API.stream_error(error, {"content-type": "text/event-stream"}))
    assert (unnumbered["type"], unnumbered["message"]) == ("error", told["message"])
    assert unnumbered["sequence_number"] > told["sequence_number"]


@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        (PayloadError("inputs: expected x", "inputs"), "input: expected x", None),
        (PayloadError("messages[2].role: left out", "messages[2].role"), "input: left out", None),
        (PayloadError("messages: no template", "messages"), "input: no template", None),
        (
            ContextLengthError(90, None, 64),
            "This model's maximum context length is 64 tokens. However, you requested 91 tokens (90 tokens in the "
            "input, at least 1 in the completion). Please reduce the length of the input.",
            "context_length_exceeded",
        ),
    ],
)
def test_an_error_about_the_prompt_names_the_input(error: ServingError, message: str, code: str | None) -> None:
    answer = API.error(error)
    assert (answer.status, json.loads(answer.body)["error"]) == (
        400,
        {"message": message, "type": "invalid_request_error", "param": "input", "code": code},
    )


def test_overload_says_when_to_come_again() -> None:
    answer = API.error(OverloadedError("busy"))
    assert answer.status == 429 and "retry-after" in answer.headers


def test_tools_that_are_no_functions_are_left_out_beside_functions() -> None:
    others = [{"type": "web_search", "external_web_access": True}, {"type": "namespace", "name": "n", "tools": []}]
    (made,) = parsed(tools=[others[0], TIME, others[1]], tool_choice="required").requests
    assert [tool["function"]["name"] for tool in made.prompt.tool_use.tools] == [TIME["name"]]
    assert {"tools.web_search", "tools.namespace"} <= set(made.ignored)
