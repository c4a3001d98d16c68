"""vLLM's /tokenize, /detokenize and /version beside TGI's /tokenize, and one model by its name, over real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from djl_python import __version__
from djl_python.testing import FAKE_ENGINE, RunningServer, running_server, write_byte_tokenizer
from tests.conftest import DEMO

TEXT = "What is deep learning?"
MESSAGES = [{"role": "user", "content": TEXT}]
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
#: Writes the tools' names, the messages, and the beginning of an answer.
TEMPLATE = (
    "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}{{ '' if loop.last else '; ' }}{% endfor %}"
    "{% if add_generation_prompt %}; assistant: {% endif %}"
)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Two models whose tokens are bytes, with contexts of 100 and of 200 tokens."""
    folder, arguments = tmp_path_factory.mktemp("models"), []
    for name, length in (("short", 100), ("long", 200)):
        path = write_byte_tokenizer(folder / name)
        (path / "chat_template.jinja").write_text(TEMPLATE)
        (path / "serving.properties").write_text(
            f"option.model_id={path}\noption.rolling_batch={FAKE_ENGINE}\noption.max_model_len={length}\n"
        )
        arguments += ["-m", f"{name}={path}"]
    with running_server(*arguments) as server:
        yield server


def post(server: RunningServer, path: str, body: Any) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=60)


def ask(server: RunningServer, path: str, body: Any) -> Any:
    answer = post(server, path, body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(DEMO / "tokenizer.json"))


def test_a_prompt_has_its_tokenizers_tokens(demo: RunningServer, tokenizer: Tokenizer) -> None:
    expected = tokenizer.encode(TEXT)
    answer = ask(demo, "/tokenize", {"model": "demo", "prompt": TEXT})
    limit = httpx.get(f"{demo.url}/v1/models/demo").json()["max_model_len"]
    assert answer == {"count": len(expected.ids), "max_model_len": limit, "tokens": expected.ids}
    answer = ask(demo, "/tokenize", {"prompt": TEXT, "return_token_strs": True, "add_special_tokens": False})
    bare = tokenizer.encode(TEXT, add_special_tokens=False)
    assert (answer["tokens"], answer["token_strs"]) == (bare.ids, bare.tokens)
    assert any(entry.startswith("\u0120") for entry in bare.tokens)


def test_a_chat_has_the_tokens_of_what_its_template_writes(demo: RunningServer, tokenizer: Tokenizer) -> None:
    written = ask(demo, "/chat_tokenize", {"messages": MESSAGES})["templated_text"]
    expected = tokenizer.encode(written, add_special_tokens=False)
    answer = ask(demo, "/tokenize", {"model": "demo", "messages": MESSAGES, "return_token_strs": True})
    assert (answer["count"], answer["tokens"]) == (len(expected.ids), expected.ids)
    assert answer["token_strs"] == expected.tokens
    usage = ask(demo, "/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1})["usage"]
    assert usage["prompt_tokens"] == answer["count"]


def test_detokenize_is_the_way_back(demo: RunningServer, two: RunningServer, tokenizer: Tokenizer) -> None:
    ids = ask(demo, "/tokenize", {"messages": MESSAGES})["tokens"]
    text = ask(demo, "/detokenize", {"model": "demo", "tokens": ids})["prompt"]
    assert text == tokenizer.decode(ids, skip_special_tokens=False)
    for text in ("", "z\u00fcrich \U0001f600"):
        ids = ask(two, "/tokenize", {"model": "long", "prompt": text})["tokens"]
        assert ask(two, "/detokenize", {"model": "long", "tokens": ids}) == {"prompt": text}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "user: a; assistant: b; assistant: "),
        ({"add_generation_prompt": False}, "user: a; assistant: b"),
        ({"add_generation_prompt": False, "continue_final_message": True}, "user: a; assistant: b"),
        ({"tools": [WEATHER]}, "[weather]user: a; assistant: b; assistant: "),
    ],
)
def test_fields_of_a_chat_have_their_effect(two: RunningServer, fields: dict[str, Any], text: str) -> None:
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    ids = ask(two, "/tokenize", {"model": "long", "messages": chat, **fields})["tokens"]
    assert ask(two, "/detokenize", {"model": "long", "tokens": ids}) == {"prompt": text}


def test_the_body_names_one_of_several_models(two: RunningServer) -> None:
    for name, limit in (("short", 100), ("long", 200)):
        bodies: list[dict[str, Any]] = [{"prompt": "abc"}, {"messages": MESSAGES}, {"prompt": "x" * 100_000}]
        for body in bodies:
            assert ask(two, "/tokenize", {"model": name, **body})["max_model_len"] == limit
        assert ask(two, "/detokenize", {"model": name, "tokens": []}) == {"prompt": ""}
        # TGI's body, too, with a field that is not TGI's.
        assert len(ask(two, "/tokenize", {"model": name, "inputs": "abc"})) == 3
    asked: list[tuple[str, dict[str, Any]]] = [("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})]
    for path, body in asked:
        refused = post(two, path, {"model": "none", **body})
        assert refused.status_code == 404
        assert "none" in refused.text


def test_the_body_says_whose_tokenize_it_is(demo: RunningServer) -> None:
    body: dict[str, Any]
    for body in ({"inputs": TEXT}, {"inputs": "prompt"}, {"inputs": TEXT, "prompt": None}):
        assert isinstance(answer := ask(demo, "/tokenize", body), list)
        assert {"id", "text", "start", "stop"} == answer[0].keys()
    for body in (
        {"prompt": TEXT},
        {"prompt": "inputs"},
        {"messages": MESSAGES},
        {"prompt": "messages", "inputs": None},
    ):
        assert "count" in ask(demo, "/tokenize", body)


@pytest.mark.parametrize(
    ("path", "body", "param", "message"),
    [
        ("/tokenize", {"prompt": 3}, "prompt", "prompt: expected a string, got 3"),
        ("/tokenize", {"prompt": ["a"]}, "prompt", "prompt: expected a string, got "),
        ("/tokenize", {"prompt": "a", "add_special_tokens": 2}, "add_special_tokens", "expected true or false, got 2"),
        ("/tokenize", {"messages": [], "return_token_strs": "x"}, "return_token_strs", "expected true or false"),
        ("/tokenize", {"messages": []}, "messages", "messages: expected "),
        ("/tokenize", {"messages": MESSAGES, "prompt": "a"}, "messages", "messages: not together with prompt"),
        (
            "/tokenize",
            {"messages": MESSAGES, "continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
            "not together with add_generation_prompt=true",
        ),
        ("/tokenize", {"prompt": "a b " * 200_000}, "prompt", "expected at most 100000, of which a list is given"),
        ("/detokenize", {}, "tokens", "tokens: required"),
        ("/detokenize", {"tokens": "abc"}, "tokens", "tokens: expected an array"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens[1]", "tokens[1]: expected an integer >= 0, got -1"),
        ("/detokenize", {"tokens": [10**6]}, "tokens", "tokens: expected token ids >= 0 and < "),
    ],
)
def test_refusals_name_the_field(demo: RunningServer, path: str, body: Any, param: str, message: str) -> None:
    answer = post(demo, path, body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert message in error["message"]


def test_fields_without_effect_are_named(demo: RunningServer) -> None:
    for path, body in (
        ("/tokenize", {"prompt": "a", "zzz": 1}),
        ("/tokenize", {"messages": MESSAGES, "zzz": 1}),
        ("/detokenize", {"tokens": [5], "zzz": 1}),
    ):
        assert post(demo, path, body).headers["x-ignored-parameters"] == "zzz"


def test_version(demo: RunningServer) -> None:
    assert httpx.get(f"{demo.url}/version").json() == {"version": __version__}


def test_a_model_by_its_name(two: RunningServer) -> None:
    listed = httpx.get(f"{two.url}/v1/models").json()["data"]
    assert [one["id"] for one in listed] == ["short", "long"]
    for one in listed:
        answer = httpx.get(f"{two.url}/v1/models/{one['id']}")
        assert (answer.status_code, answer.json()) == (200, one)
    for name in ("none", "some/none", "some%2Fnone"):
        answer = httpx.get(f"{two.url}/v1/models/{name}")
        error = answer.json()["error"]
        assert answer.status_code == 404
        assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", "model", "model_not_found")
        assert error["message"].startswith(f"The model `{name.replace('%2F', '/')}` does not exist")
