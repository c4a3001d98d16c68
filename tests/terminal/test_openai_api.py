"""The client, and servers that do not do what they should: real ones, at the other end of a socket."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from djl_python.terminal.openai_api import ApiError, OpenAiApi, Piece
from djl_python.testing import RunningServer

KEY = "secret"


@contextmanager
def server(answer: bytes, status: int = 200, content_type: str = "text/event-stream") -> Iterator[str]:
    """One that says this to every request with the key."""

    class Request(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            known = self.headers.get("authorization") == f"Bearer {KEY}"
            self.send_response(status if known else 401)
            self.send_header("content-type", content_type)
            self.end_headers()
            self.wfile.write(answer if known else b'{"error": "who are you?"}')

        do_GET = do_POST

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Request) as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def ask(url: str, api_key: str = KEY) -> list[Piece]:
    with OpenAiApi(url, api_key=api_key, model="m") as api:
        return list(api.chat([{"role": "user", "content": "Hello"}], {}))


def test_a_key_is_a_header_and_so_is_what_else_a_server_wants() -> None:
    answer = b'data: {"choices": [{"delta": {"content": "yes"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    with server(answer) as url:
        with OpenAiApi(url, model="m", headers={"authorization": f"Bearer {KEY}"}) as api:
            assert [piece.text for piece in api.chat([{"role": "user", "content": "?"}], {})] == ["yes"]
        with pytest.raises(
            ApiError, match=r"^401: who are you\? \(--api-key, or the variable DJL_API_KEY, sends a key\)$"
        ):
            ask(url, api_key="wrong")


def test_an_answer_of_this_server(demo: RunningServer) -> None:
    with OpenAiApi(demo.url) as api:
        assert api.find_model() == "demo"
        pieces = list(api.chat([{"role": "user", "content": "What is deep learning?"}], {"max_tokens": 5}))
    assert "".join(piece.text for piece in pieces).startswith("Deep learning")
    assert [piece.finish_reason for piece in pieces if piece.finish_reason] == ["length"]
    assert pieces[-1].tokens == 5


def test_reasoning_comes_apart() -> None:
    events = (
        b'data: {"choices": [{"delta": {"role": "assistant", "reasoning_content": "hm"}}]}\n\n'
        b': a comment\n\ndata: {"choices": [{"delta": {"content": "yes"}, "finish_reason": "stop"}]}\n\n'
        b'data: {"choices": [], "usage": {"completion_tokens": 2}}\n\ndata: [DONE]\n\n'
    )
    with server(events) as url:
        assert ask(url) == [Piece(reasoning="hm"), Piece(text="yes", finish_reason="stop"), Piece(tokens=2)]


@pytest.mark.parametrize(
    ("answer", "status", "told"),
    [
        (b'{"error": {"message": "too long"}}', 400, "400: too long"),
        (b"no such page", 404, "404: no such page"),
        (b"", 503, "503: Service Unavailable"),
        (b'data: {"error": {"message": "the engine failed"}}\n\n', 200, "the engine failed"),
        (b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n', 200, "the answer broke off"),
        (b"data: [1]\n\n", 200, "no piece of an answer"),
        (b"data: {\n\n", 200, "no piece of an answer"),
    ],
)
def test_a_wrong_answer_is_reported_with_the_reason(answer: bytes, status: int, told: str) -> None:
    with server(answer, status) as url, pytest.raises(ApiError, match=told):
        ask(url)


def test_a_key_that_is_not_known() -> None:
    with server(b"") as url, pytest.raises(ApiError, match=r"401: who are you\?"):
        ask(url, api_key="other")


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b'{"data": [{"id": "a"}, {"id": "b"}]}', "has the models a, b: name one with --model"),
        (b'{"data": []}', "has no models"),
        (b"<html>", "does not speak OpenAI's API"),
        (b"[]", "does not speak OpenAI's API"),
    ],
)
def test_models_that_can_not_be_chosen_from(answer: bytes, told: str) -> None:
    with (
        server(answer, content_type="application/json") as url,
        OpenAiApi(f"{url}/v1/", api_key=KEY) as api,
        pytest.raises(ApiError, match=told),
    ):
        api.find_model()
