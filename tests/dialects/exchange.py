"""What dialect tests are made of: a request as the worker gets it, what the model then says, and the answer read."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from djl_python.config import Checkpoint, ModelConfig, Options
from djl_python.core.types import Delta, Finish, FinishReason, Token, ToolCallDelta, TopToken
from djl_python.dialects.shared.base import Dialect, Formatter
from djl_python.inputs import Input
from djl_python.ipc.protocol import Call
from tests.text_tasks import result


def model(checkpoint: Checkpoint | None = None, **options: Any) -> ModelConfig:
    return ModelConfig(name="served", option=Options(**options), checkpoint=checkpoint or Checkpoint())


def inputs(operation: str, body: Any, dialect: str = "openai", content_type: str = "application/json") -> Input:
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return Input.from_call(Call(1, dialect, operation, "POST", "/", (), {"content-type": content_type}, data))


def token(text: str, logprob: float | None = -0.5, *alternatives: str) -> Token:
    top = tuple(TopToken(100 + i, alternative, -1.0 - i) for i, alternative in enumerate(alternatives))
    return Token(len(text), text, logprob, top=top)


def said(text: str, *more: Token, choice: int = 0, end: Finish | None = None) -> Delta:
    """A step that gave one token, or the given ones."""
    tokens = more or (token(text),)
    return Delta(choice=choice, tokens=tokens, text=text, finish=end)


def called(index: int, id: str = "", name: str = "", arguments: str = "", end: Finish | None = None) -> Delta:
    """A step that gave a piece of a tool call."""
    return Delta(tokens=(token("?"),), tool_calls=(ToolCallDelta(index, id, name, arguments),), finish=end)


def ending(reason: FinishReason = FinishReason.EOS, **changes: Any) -> Finish:
    given: dict[str, Any] = {"text": "?", "prompt": "Hi.", "prompt_tokens": 5, "generated_tokens": 3}
    return Finish(reason=reason, **given | changes)


def answer(formatter: Formatter, *deltas: Delta) -> bytes:
    return b"".join(map(formatter.push, deltas)) + formatter.end()


def whole(formatter: Formatter, *deltas: Delta) -> dict[str, Any]:
    """The JSON object of an answer that is not streamed."""
    assert not formatter.stream
    assert formatter.headers["content-type"] == "application/json"
    response: dict[str, Any] = json.loads(answer(formatter, *deltas))
    return response


def events(formatter: Formatter, *deltas: Delta) -> list[dict[str, Any]]:
    """The objects of a stream that ends with [DONE]."""
    assert formatter.stream
    assert formatter.headers["content-type"].partition(";")[0] == "text/event-stream"
    return sse(answer(formatter, *deltas))


def sse(data: bytes) -> list[dict[str, Any]]:
    *blocks, done, nothing = data.split(b"\n\n")
    assert (done, nothing) == (b"data: [DONE]", b"")
    return [json.loads(event.removeprefix(b"data: ")) for event in blocks]


def lines(data: bytes) -> list[dict[str, Any]]:
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


def task_answer(api: Dialect, task: str, operation: str, body: Any) -> Any:
    """The JSON that a model of a task answers, with the results of `tests.text_tasks`."""
    parsed = api.parse_task(task, inputs(operation, body), model())
    for request in parsed.requests:
        assert parsed.formatter.push(result(request)) == b""
    return json.loads(parsed.formatter.end())
