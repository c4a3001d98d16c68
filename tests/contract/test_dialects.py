"""One model in every dialect, over real sockets: the same text from each, and from each its own errors.

Two servers with the demo model: as it stands, and with the options that change what a dialect says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from djl_python.testing import RunningServer, running_server
from tests.conftest import DEMO

PROMPT = "What is deep learning?"
MESSAGES = [{"role": "user", "content": PROMPT}]
TOKENS = 14
STRICT = {"OPTION_TGI_DIALECT": "mindie", "OPTION_TGI_COMPAT": "true", "OPTION_UNKNOWN_PARAMETERS": "error"}

JSON, JSONLINES, SSE = "application/json", "application/jsonlines", "text/event-stream"


@pytest.fixture(scope="module")
def plain(demo: RunningServer) -> RunningServer:
    return demo


@pytest.fixture(scope="module")
def strict() -> Iterator[RunningServer]:
    """TGI's shapes on every route, MindIE at /generate_stream, and no field that means nothing."""
    with running_server("-m", f"demo={DEMO}", environment={"OPTION_THREADS": "1"} | STRICT) as server:
        yield server


def post(server: RunningServer, path: str, body: Any) -> httpx.Response:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(server.url + path, content=data, headers={"content-type": JSON}, timeout=60)


def objects(answer: httpx.Response) -> list[Any]:
    """What an answer consists of, whichever way it is framed."""
    if answer.headers["content-type"] == JSON:
        return [answer.json()]
    lines = (line.removeprefix("data:").strip() for line in answer.text.splitlines() if not line.startswith("event:"))
    return [json.loads(line) for line in lines if line not in ("", "[DONE]")]


# ------------------------------------------------------------------------------------------------ the same text

Reader = Callable[[list[Any]], str]

GENERATE = {"inputs": PROMPT, "parameters": {"max_new_tokens": TOKENS, "do_sample": False}}
COMPLETE = {"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0}
TRITON = {"text_input": PROMPT, "parameters": {"max_tokens": TOKENS}}
INFER = {
    "inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": [PROMPT]}],
    "parameters": {"max_tokens": TOKENS},
}
CHAT = {"messages": MESSAGES, "max_tokens": TOKENS, "temperature": 0}
STREAM = {"stream": True}
NAMED = {"model": "demo"}
RESPOND = {"input": PROMPT, "max_output_tokens": TOKENS, "temperature": 0, "store": False}
OLLAMA = {"model": "demo", "messages": MESSAGES, "options": {"num_predict": TOKENS, "temperature": 0}}


def whole(answers: list[Any]) -> str:
    (answer,) = answers
    (answer,) = answer if isinstance(answer, list) else [answer]
    return str(answer["generated_text"])


def tokens(answers: list[Any]) -> str:
    assert answers[-1]["generated_text"] == "".join(one["token"]["text"] for one in answers)
    return whole(answers[-1:])


def choice(answers: list[Any]) -> str:
    (answer,) = answers
    return str(answer["choices"][0].get("text") or answer["choices"][0]["message"]["content"])


def pieces(chunks: list[Any]) -> str:
    choices = [one["choices"][0] for one in chunks]
    return "".join(one.get("text", "") or one.get("delta", {}).get("content", "") for one in choices)


def message(answers: list[Any]) -> str:
    return str(answers[0]["content"][0]["text"])


def message_pieces(events: list[Any]) -> str:
    return "".join(one["delta"]["text"] for one in events if one["type"] == "content_block_delta")


def response(answers: list[Any]) -> str:
    return str(answers[0]["output"][0]["content"][0]["text"])


def response_pieces(events: list[Any]) -> str:
    text = "".join(one["delta"] for one in events if one["type"] == "response.output_text.delta")
    assert text == response([events[-1]["response"]])
    return text


def ollama(lines: list[Any]) -> str:
    assert [one["done"] for one in lines] == [False] * (len(lines) - 1) + [True]
    return "".join(one["message"]["content"] for one in lines)


def triton(answers: list[Any]) -> str:
    return "".join(one["text_output"] for one in answers)


def tensor(answers: list[Any]) -> str:
    return str(answers[0]["outputs"][0]["data"][0])


PROMPTED: dict[str, tuple[str, Any, Reader]] = {
    "LMI": ("/invocations", GENERATE, whole),
    "LMI by name": ("/predictions/demo", GENERATE, whole),
    "LMI stream": ("/invocations", GENERATE | STREAM, tokens),
    "LMI completion": ("/invocations", COMPLETE, choice),
    "LMI completion stream": ("/predictions/demo", COMPLETE | STREAM, pieces),
    "OpenAI": ("/v1/completions", COMPLETE, choice),
    "OpenAI stream": ("/v1/completions", COMPLETE | STREAM, pieces),
    "TGI": ("/generate", GENERATE, whole),
    "TGI root": ("/", GENERATE, whole),
    "TGI root stream": ("/", GENERATE | STREAM, tokens),
    "TGI stream, or MindIE": ("/generate_stream", GENERATE, tokens),
    "Triton": ("/v2/models/demo/generate", TRITON, triton),
    "Triton stream": ("/v2/models/demo/generate_stream", TRITON, triton),
    "Triton infer": ("/v2/models/demo/versions/1/infer", INFER, tensor),
}
CHATTED: dict[str, tuple[str, Any, Reader]] = {
    "LMI chat": ("/invocations", CHAT, choice),
    "LMI chat stream": ("/predictions/demo", CHAT | STREAM, pieces),
    "OpenAI chat": ("/v1/chat/completions", CHAT, choice),
    "OpenAI chat stream": ("/v1/chat/completions", CHAT | STREAM, pieces),
    "Responses": ("/v1/responses", RESPOND, response),
    "Responses stream": ("/v1/responses", RESPOND | STREAM, response_pieces),
    "Ollama": ("/api/chat", OLLAMA | {"stream": False}, ollama),
    "Ollama stream": ("/api/chat", OLLAMA, ollama),
    "Anthropic": ("/v1/messages", CHAT | NAMED, message),
    "Anthropic stream": ("/v1/messages", CHAT | NAMED | STREAM, message_pieces),
}


def texts(server: RunningServer, asked: dict[str, tuple[str, Any, Reader]]) -> dict[str, str]:
    by_name = {}
    for name, (path, body, read) in asked.items():
        answer = post(server, path, body)
        assert answer.status_code == 200, (name, answer.text)
        by_name[name] = read(objects(answer))
    return by_name


@pytest.mark.parametrize("asked", [PROMPTED, CHATTED], ids=["prompt", "chat"])
def test_the_same_text_in_every_dialect(
    plain: RunningServer, strict: RunningServer, asked: dict[str, tuple[str, Any, Reader]]
) -> None:
    by_name = texts(plain, asked)
    expected = next(iter(by_name.values()))
    assert len(expected.split()) > 3
    assert by_name == dict.fromkeys(asked, expected) == texts(strict, asked)


def test_a_chat_is_its_template_gone_on_with(plain: RunningServer) -> None:
    written = post(plain, "/chat_tokenize", {"messages": MESSAGES}).json()["templated_text"]
    (said,) = set(texts(plain, CHATTED).values())
    assert texts(plain, {"chat": ("/generate", GENERATE | {"inputs": written}, whole)})["chat"] == said


#: What a greedy request has no use for.
IN_VAIN: dict[str, Any] = {"temperature": 0.7, "top_k": 1, "top_p": 0.5, "min_p": 0.1, "typical_p": 0.5, "seed": 3}


def in_vain(*but: str) -> dict[str, Any]:
    return {name: value for name, value in IN_VAIN.items() if name not in but}


@pytest.mark.parametrize(
    ("name", "greedy", "ignored"),
    [
        ("LMI", {}, in_vain()),
        ("LMI stream", {}, in_vain()),
        ("LMI chat", {"top_p": 0}, in_vain("top_p")),
        ("OpenAI", {"temperature": 0}, in_vain("temperature")),
        ("OpenAI", {"top_p": 0}, in_vain("top_p")),
        ("OpenAI chat", {"temperature": 0}, in_vain("temperature")),
        ("TGI", {}, {"seed": 3}),  # whatever else is given switches sampling on
        ("TGI stream, or MindIE", {"do_sample": False}, in_vain("min_p", "typical_p")),
        ("Triton", {"do_sample": False}, in_vain("typical_p", "top_k")),  # a top_k of 1 is what is done
        ("Triton infer", {"temperature": 0}, in_vain("temperature", "typical_p", "top_k")),
    ],
)
def test_sampling_parameters_of_a_greedy_request_are_reported_as_ignored(
    plain: RunningServer, strict: RunningServer, name: str, greedy: dict[str, Any], ignored: dict[str, Any]
) -> None:
    server = strict if name.endswith("MindIE") else plain
    path, body, read = (PROMPTED | CHATTED)[name]
    answer = post(server, path, with_parameters(body, greedy | ignored))
    assert answer.status_code == 200, answer.text
    assert set(answer.headers["x-ignored-parameters"].split(",")) == set(ignored)
    assert read(objects(answer)) == read(objects(post(server, path, body)))


HUGE = 1 << 64
SAMPLED = {"temperature": 1, "top_k": HUGE}
TOO_LONG = ["x" * 20_000, "y" * 20_000]
TOO_MANY = ["x"] * 2_000


def with_parameters(body: Any, parameters: dict[str, Any]) -> Any:
    """Where this dialect has them."""
    return (
        {**body, "parameters": {**body["parameters"], **parameters}} if "parameters" in body else {**body, **parameters}
    )


@pytest.mark.parametrize("name", [*PROMPTED, *CHATTED])
def test_no_number_is_too_large_for_the_others(plain: RunningServer, name: str) -> None:
    """More than all tokens is all of them; what can be no token is refused, and the next one is answered."""
    path, body, read = (PROMPTED | CHATTED)[name]
    answer = post(plain, path, with_parameters(body, SAMPLED))
    assert answer.status_code == 200 and read(objects(answer)), answer.text
    if not name.startswith(("T", "Anthropic", "Ollama", "Responses")):  # whose requests name no tokens
        refused = post(plain, path, with_parameters(body, {"stop_token_ids": [HUGE]}))
        assert refused.status_code in (400, 424), refused.text
        assert f"stop_token_ids: token id {HUGE}, expected 0 to" in refused.text
    assert post(plain, path, body).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "fields"),
    [
        ("/invocations", GENERATE, ("stop_sequences", "bad_sequences")),
        ("/v1/completions", COMPLETE, ("stop", "bad_words")),
        ("/v1/chat/completions", CHAT, ("stop", "bad_words")),
        ("/generate", GENERATE, ("stop",)),
        ("/v2/models/demo/generate", TRITON, ("stop_words", "bad_words")),
    ],
)
def test_texts_to_look_for_are_limited(plain: RunningServer, path: str, body: Any, fields: tuple[str, ...]) -> None:
    beside = path.startswith("/v2")  # whose parameters are no lists
    for field in fields:
        refused = post(plain, path, {**body, field: TOO_LONG} if beside else with_parameters(body, {field: TOO_LONG}))
        assert refused.status_code in (400, 422, 424), refused.text
        assert "expected at most 32768 characters together, got 40000" in refused.text
    if path != "/generate":  # TGI has a limit of its own
        many = {fields[-1]: TOO_MANY}
        refused = post(plain, path, {**body, **many} if beside else with_parameters(body, many))
        assert "expected at most 1024 texts, got 2000" in refused.text


@pytest.mark.parametrize(
    ("path", "body"), [("/invocations", GENERATE), ("/v1/completions", COMPLETE), ("/v1/chat/completions", CHAT)]
)
def test_token_ids_to_look_for_are_limited(plain: RunningServer, path: str, body: Any) -> None:
    fields: dict[str, Any] = {"stop_token_ids": [7] * 1_025}
    if path != "/invocations":
        fields["logit_bias"] = {str(number): 1 for number in range(1_025)}
    for field, value in fields.items():
        refused = post(plain, path, with_parameters(body, {field: value}))
        assert refused.status_code in (400, 424), refused.text
        assert f"{field}: expected at most 1024 token ids, got 1025" in refused.text


def test_texts_that_each_prompt_has_of_its_own_are_limited_together(plain: RunningServer) -> None:
    for field in ("stop", "bad_words"):
        own = {"name": field, "shape": [2], "datatype": "BYTES", "data": TOO_LONG}
        refused = post(plain, "/v2/models/demo/infer", {"inputs": [*prompts(2)["inputs"], own]})
        assert refused.status_code == 400
        assert f"{field}: expected at most 32768 characters together, got 40000" in refused.text


STOPPED = {"stop_token_ids": [0, 2], "skip_special_tokens": False}


@pytest.mark.parametrize(
    ("path", "body", "read"),
    [
        ("/invocations", with_parameters(GENERATE, {**STOPPED, "max_new_tokens": 60}), whole),
        ("/invocations", with_parameters(GENERATE, {**STOPPED, "max_new_tokens": 60}) | STREAM, tokens),
        ("/v1/completions", COMPLETE | STOPPED | {"max_tokens": 60}, choice),
        ("/v1/completions", COMPLETE | STOPPED | {"max_tokens": 60} | STREAM, pieces),
        ("/v1/chat/completions", CHAT | STOPPED | {"max_tokens": 60}, choice),
        ("/v1/chat/completions", CHAT | STOPPED | {"max_tokens": 60} | STREAM, pieces),
    ],
)
@pytest.mark.parametrize("kept", [False, True])
def test_a_stop_token_is_left_out_like_a_stop_text(
    plain: RunningServer, path: str, body: Any, read: Reader, kept: bool
) -> None:
    """Whether special tokens show or not: these are special tokens that would end the text in any case."""
    if kept:
        inside = {"include_stop_str_in_output": True}
        body = with_parameters(body, inside) if "parameters" in body else body | inside
    text = read(objects(post(plain, path, body)))
    assert text.rstrip().endswith("|>") == kept
    assert text.count("<|") == kept


ON_AND_ON = {"ignore_eos": True, "stop": ["<|im_end|>", "<|endoftext|>"]}


@pytest.mark.parametrize(
    ("path", "body", "read"),
    [
        ("/invocations", with_parameters(GENERATE, {**ON_AND_ON, "max_new_tokens": 60}), whole),
        ("/invocations", with_parameters(GENERATE, {**ON_AND_ON, "max_new_tokens": 60}) | STREAM, tokens),
        ("/v1/completions", COMPLETE | ON_AND_ON | {"max_tokens": 60}, choice),
        ("/v1/chat/completions", CHAT | ON_AND_ON | {"max_tokens": 60}, choice),
        ("/v1/chat/completions", CHAT | ON_AND_ON | {"max_tokens": 60} | STREAM, pieces),
        ("/v2/models/demo/generate", TRITON | ON_AND_ON | {"parameters": {"max_tokens": 60}}, triton),
    ],
)
def test_a_special_token_may_be_a_stop_sequence(plain: RunningServer, path: str, body: Any, read: Reader) -> None:
    """Also where special tokens are left out of the text, in which no stop sequence could be found."""
    text = read(objects(post(plain, path, body)))
    assert text.strip().endswith("find patterns in data.")


USED_UP = {
    "type": "object",
    "properties": {"score": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["score", "why"],
    "patternProperties": {"^(score|why)$": {"type": ["integer", "null"]}},
}
IN_FORMAT = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": USED_UP}}}


@pytest.mark.parametrize(
    ("path", "body", "read"),
    [
        ("/invocations", CHAT | IN_FORMAT, choice),
        ("/v1/chat/completions", CHAT | IN_FORMAT, choice),
        ("/v1/chat/completions", CHAT | IN_FORMAT | STREAM, pieces),
        ("/v1/completions", COMPLETE | {"guided_json": USED_UP}, choice),
        ("/v1/completions", COMPLETE | {"guided_json": USED_UP} | STREAM, pieces),
        ("/invocations", with_parameters(GENERATE, {"guided_json": USED_UP}), whole),
        ("/invocations", with_parameters(GENERATE, {"grammar": {"type": "json", "value": USED_UP}}) | STREAM, tokens),
        ("/generate", with_parameters(GENERATE, {"grammar": {"type": "json", "value": USED_UP}}), whole),
        ("/generate_stream", with_parameters(GENERATE, {"grammar": {"type": "json", "value": USED_UP}}), tokens),
    ],
)
def test_a_schema_whose_patterns_are_used_up_has_instances(
    plain: RunningServer, path: str, body: Any, read: Reader
) -> None:
    """No key is left for a pattern once those that match are there, and one that it asks for need not be listed."""
    body = with_parameters(body, {"max_new_tokens": 60}) if "parameters" in body else body | {"max_tokens": 60}
    answer = post(plain, path, body)
    assert answer.status_code == 200, answer.text
    instance = json.loads(read(objects(answer)))
    assert set(instance) == {"score", "why"} and 1 <= instance["score"] <= 99


def prompts(count: int) -> Any:
    return {"inputs": [{"name": "text_input", "shape": [count], "datatype": "BYTES", "data": ["a"] * count}]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": ["a"] * 1_025}),
        ("/v1/completions", {"prompt": ["a"] * 9, "n": 128}),
        ("/v2/models/demo/infer", prompts(1_025)),
    ],
)
def test_sequences_are_limited(plain: RunningServer, path: str, body: Any) -> None:
    refused = post(plain, path, body)
    assert refused.status_code == 400
    assert "expected at most 1024 sequences together, got " in refused.text


# ------------------------------------------------------------------------------------------------ errors


def lmi_error(message: str, tokens: bool = True) -> Any:
    details = {"finish_reason": "error", "generated_tokens": None, "inputs": None}
    return {
        "generated_text": "",
        "details": {**details, "tokens": None} if tokens else details,
        "error": message,
        "code": 424,
    }


def openai_error(message: str, param: str | None = None, code: str | None = None) -> Any:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


def tgi_error(message: str, kind: str = "validation") -> Any:
    return {"error": f"Input validation error: {message}" if kind == "validation" else message, "error_type": kind}


NO_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
NO_VALUE = {"a": {"type": "nonsense"}}
NO_REGEX = {"type": "regex", "value": "(a"}
LMI_TOKEN = {"id": -1, "text": "", "log_prob": -1, "special_token": True}
NO_GRAMMAR = "grammar is not valid: Invalid type: nonsense"
IN_SCHEMA = "response_format.json_schema.schema"
TEMPERATURE = "temperature: expected a number >= 0 and <= 2, got 9"


@pytest.mark.parametrize(
    ("path", "body", "status", "content_type", "expected"),
    [
        # LMI: the payload itself, then parameters; in a stream, its line.
        (
            "/invocations",
            {"parameters": {}},
            424,
            JSON,
            {
                "error": "inputs: required, expected a string (or prompt, for a completion, or messages, for a chat)",
                "code": 424,
            },
        ),
        (
            "/invocations",
            {"inputs": "a", "parameters": {"top_p": 2}},
            424,
            JSON,
            lmi_error("parameters.top_p: expected a number >= 0 and <= 1 (0: greedy), got 2"),
        ),
        (
            "/invocations",
            {"inputs": "a", "parameters": {"top_p": 2}, "stream": True},
            424,
            JSON,
            {
                "token": LMI_TOKEN,
                **lmi_error("parameters.top_p: expected a number >= 0 and <= 1 (0: greedy), got 2", tokens=False),
            },
        ),
        ("/invocations", {"messages": MESSAGES, "temperature": 9}, 424, JSON, lmi_error(TEMPERATURE)),
        (
            "/invocations",
            {"messages": MESSAGES, "response_format": NO_SCHEMA},
            424,
            JSON,
            lmi_error(f"{IN_SCHEMA}: {NO_GRAMMAR}"),
        ),
        (
            "/predictions/other",
            {"inputs": "a"},
            404,
            JSON,
            {"code": 404, "type": "ModelNotFoundException", "message": "there is no model 'other'; loaded: demo"},
        ),
        # OpenAI.
        (
            "/v1/chat/completions",
            {"messages": MESSAGES, "temperature": 9},
            400,
            JSON,
            openai_error(TEMPERATURE, "temperature"),
        ),
        *(
            (
                path,
                {**body, "response_format": NO_SCHEMA, "stream": stream},
                400,
                JSON,
                openai_error(f"{IN_SCHEMA}: {NO_GRAMMAR}", IN_SCHEMA),
            )
            for path, body in (("/v1/chat/completions", {"messages": MESSAGES}), ("/v1/completions", {"prompt": "a"}))
            for stream in (False, True)
        ),
        (
            "/v1/chat/completions",
            {"messages": MESSAGES, "guided_regex": "(a", "stream": True},
            400,
            JSON,
            openai_error("guided_regex: grammar is not valid: unclosed group", "guided_regex"),
        ),
        (
            "/v1/chat/completions",
            {
                "messages": MESSAGES,
                "tool_choice": "required",
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": NO_VALUE}}}],
            },
            400,
            JSON,
            openai_error(f"tools: {NO_GRAMMAR}", "tools"),
        ),
        (
            "/v1/completions",
            {"prompt": "a", "logit_bias": {"99999": 1}},
            400,
            JSON,
            openai_error("logit_bias: token id 99999, expected 0 to 2047 (the vocabulary)", "logit_bias"),
        ),
        (
            "/v1/responses",
            {"input": "a", "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "nonsense"}}}},
            400,
            JSON,
            openai_error(f"text.format.schema: {NO_GRAMMAR}", "text.format.schema"),
        ),
        ("/v1/audio/speech", {"input": "a"}, 404, JSON, openai_error("there is nothing at /v1/audio/speech")),
        (
            "/v1/models",
            {},
            405,
            JSON,
            openai_error("/v1/models does not take POST; it takes GET, HEAD, OPTIONS"),
        ),
        # TGI: JSON, and an event where the answer is a stream of them.
        *(
            (
                path,
                {"inputs": "a", "parameters": {"grammar": NO_REGEX}, **extra},
                422,
                content_type,
                tgi_error("grammar is not valid: unclosed group"),
            )
            for path, extra, content_type in (
                ("/generate", {}, JSON),
                ("/", {}, JSON),
                ("/", STREAM, JSON),
                ("/generate_stream", {}, SSE),
            )
        ),
        (
            "/generate",
            {"inputs": "a", "parameters": {"max_new_tokens": 2048}},
            422,
            JSON,
            tgi_error(
                "`inputs` tokens + `max_new_tokens` must be <= 2048. Given: 1 `inputs` tokens and 2048 `max_new_tokens`"
            ),
        ),
        ("/generate/more", {}, 404, JSON, tgi_error("there is nothing at /generate/more", "not_found")),
        # Triton.
        (
            "/v2/models/demo/generate_stream",
            {"text_input": "a", "temperature": -1},
            400,
            JSON,
            {"error": "temperature: expected a number >= 0, got -1"},
        ),
        (
            "/v2/models/demo/generate",
            {"text_input": "a", "parameters": {"stop": {"a": 1}}},
            400,
            JSON,
            {"error": 'parameters.stop: expected a string, a number or a boolean, got {"a":1}'},
        ),
        (
            "/v2/models/other/generate",
            {"text_input": "a"},
            404,
            JSON,
            {"error": "there is no model 'other'; loaded: demo"},
        ),
        ("/v2/models/demo/nothing", {}, 404, JSON, {"error": "there is nothing at /v2/models/demo/nothing"}),
        # Nobody's.
        (
            "/nothing",
            {},
            404,
            JSON,
            {"code": 404, "type": "ResourceNotFoundException", "message": "there is nothing at /nothing"},
        ),
    ],
)
def test_errors(plain: RunningServer, path: str, body: Any, status: int, content_type: str, expected: Any) -> None:
    answer = post(plain, path, body)
    assert (answer.status_code, answer.headers["content-type"]) == (status, content_type)
    assert objects(answer) == [expected]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/invocations", 424),
        ("/v1/chat/completions", 400),
        ("/v1/completions", 400),
        ("/generate", 400),
        ("/", 400),
        ("/tokenize", 400),
        ("/v2/models/demo/generate", 400),
        ("/v2/models/demo/infer", 400),
    ],
)
def test_a_body_that_is_no_json(plain: RunningServer, path: str, status: int) -> None:
    for body in (b"{", b"[]", b'"x"', b"\xff"):
        answer = post(plain, path, body)
        assert answer.status_code == status
        assert "error" in answer.json()


# ------------------------------------------------------------------------------------------------ fields unknown

UNKNOWN: dict[str, tuple[str, Any, str]] = {
    "LMI": ("/invocations", {"inputs": "a", "parameters": {"zzz": 1}}, "zzz"),
    "LMI beside parameters": ("/invocations", {"inputs": "a", "zzz": 1}, "zzz"),
    "LMI chat": ("/invocations", {"messages": MESSAGES, "max_tokens": 1, "zzz": 1}, "zzz"),
    "OpenAI": ("/v1/completions", {"prompt": "a", "max_tokens": 1, "zzz": 1}, "zzz"),
    "OpenAI chat": (
        "/v1/chat/completions",
        {"messages": MESSAGES, "max_tokens": 1, "stream_options": {"zzz": 1}, "stream": True},
        "stream_options.zzz",
    ),
    "Responses": (
        "/v1/responses",
        {"input": [{"role": "user", "content": "a", "zzz": 1}], "max_output_tokens": 1, "store": False},
        "input.zzz",
    ),
    "TGI": ("/generate", {"inputs": "a", "parameters": {"zzz": 1}}, "zzz"),
    "TGI root": ("/", {"inputs": "a", "zzz": 1}, "zzz"),
    "TGI stream, or MindIE": ("/generate_stream", {"inputs": "a", "parameters": {"zzz": 1}}, "zzz"),
    "TGI tokenize": ("/tokenize", {"inputs": "a", "zzz": 1}, "zzz"),
    "TGI chat_tokenize": ("/chat_tokenize", {"messages": MESSAGES, "zzz": 1}, "zzz"),
    "Triton": ("/v2/models/demo/generate", {"text_input": "a", "parameters": {"zzz": 1}}, "zzz"),
    "Triton beside parameters": ("/v2/models/demo/generate_stream", {"text_input": "a", "zzz": 1}, "zzz"),
    "Triton infer": ("/v2/models/demo/infer", INFER | {"parameters": {"zzz": 1}}, "zzz"),
    "Triton infer beside parameters": ("/v2/models/demo/infer", INFER | {"zzz": 1}, "zzz"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_fields_are_named(plain: RunningServer, name: str) -> None:
    path, body, field = UNKNOWN[name]
    answer = post(plain, path, body)
    assert answer.status_code == 200
    assert field in answer.headers["x-ignored-parameters"].split(",")


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_fields_are_refused_where_the_model_says_so(strict: RunningServer, name: str) -> None:
    path, body, field = UNKNOWN[name]
    answer = post(strict, path, body)
    (error,) = objects(answer)
    if name == "Responses":  # whose errors are OpenAI's, beside TGI's shapes too
        assert (answer.status_code, error["error"]["param"]) == (400, field)
        return
    assert f"{field}: no such " in error["error"]
    if path.startswith("/v2"):
        assert (answer.status_code, set(error)) == (400, {"error"})
    elif path == "/invocations":
        assert (answer.status_code, error["code"], error["error_type"]) == (424, 424, "validation")
    else:
        assert (answer.status_code, set(error), error["error_type"]) == (422, {"error", "error_type"}, "validation")
