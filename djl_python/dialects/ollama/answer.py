"""The answers to Ollama's chats and prompts: one JSON object, or a line for each piece. Runs in the worker.

Durations are in nanoseconds. A call of a tool is sent when it is complete.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ...core.errors import ServingError
from ...core.types import Delta, Finish, FinishReason, ToolCallDelta
from ...formats.json_framing import JSON, encode_json, encode_jsonlines
from ..shared.base import Formatter
from ..shared.chat.tools import whole_arguments
from .errors import ollama_error

NDJSON: Final = "application/x-ndjson"
_NANOSECONDS: Final = 1_000_000_000

Duration = Annotated[int, Meta(ge=0, description="In nanoseconds.")]
DoneReason = Literal["stop", "length", "load", "unload"]


class AnsweredFunction(msgspec.Struct, frozen=True):
    """The function that the model calls."""

    name: str
    arguments: dict[str, Any]


class AnsweredCall(msgspec.Struct, frozen=True):
    """A call of a tool."""

    id: str
    function: AnsweredFunction


class AnsweredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message, or a piece of it."""

    role: Literal["assistant"] = "assistant"
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[AnsweredCall] | UnsetType = UNSET


class OllamaAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer, or a line of it. The last object of an answer has the counts and durations."""

    model: str
    created_at: str
    done_reason: DoneReason | UnsetType = UNSET
    total_duration: Duration | UnsetType = UNSET
    load_duration: Duration | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: Duration | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: Duration | UnsetType = UNSET


class OllamaChatResponse(OllamaAnswer, frozen=True, kw_only=True):
    """An answer to a chat, or a line of it."""

    message: AnsweredMessage
    done: bool


class OllamaGenerateResponse(OllamaAnswer, frozen=True, kw_only=True):
    """An answer to a prompt, or a line of it."""

    response: str
    thinking: str | UnsetType = UNSET
    done: bool


class OllamaFormatter(Formatter):
    """The answer to one request.

    Args:
        chat: whether it is a chat; otherwise a prompt.
        stream: whether to answer with a line for each piece.
        model: the model's name, as the request has it.
        headers: further response headers.
    """

    shows_logprobs = False

    def __init__(self, *, chat: bool, stream: bool, model: str, headers: Mapping[str, str]) -> None:
        self.stream = stream
        self.headers = {"content-type": NDJSON if stream else JSON, **headers}
        self._chat = chat
        self._model = model
        self._begun_s = time.monotonic()
        self._first_s: float | None = None  # when the first piece came
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[AnsweredCall] = []
        self._open: list[ToolCallDelta] = []  # the pieces of the call that is being written
        self._finish: Finish | None = None

    def push(self, delta: Delta) -> bytes:
        if self._first_s is None:
            self._first_s = time.monotonic()
        calls = self._completed(delta.tool_calls, ends=delta.finish is not None)
        self._finish = delta.finish or self._finish
        if not self.stream:
            self._texts.append(delta.text)
            self._reasoning.append(delta.reasoning)
            self._calls += calls
            return b""
        if not (delta.text or delta.reasoning or calls):
            return b""
        return encode_jsonlines(self._object(delta.text, delta.reasoning, calls, None))

    def end(self) -> bytes:
        counts = self._counts()
        if self.stream:
            return encode_jsonlines(self._object("", "", (), counts))
        return encode_json(self._object("".join(self._texts), "".join(self._reasoning), self._calls, counts))

    def error(self, error: ServingError) -> bytes:
        return encode_jsonlines(ollama_error(error, "messages" if self._chat else "prompt"))

    def _completed(self, pieces: Sequence[ToolCallDelta], *, ends: bool) -> list[AnsweredCall]:
        """The calls that are complete now; one whose arguments are cut off is left out."""
        made: list[AnsweredCall | None] = []
        for piece in pieces:
            if self._open and piece.index != self._open[0].index:
                made.append(_call(self._open))
                self._open = []
            self._open.append(piece)
        if ends and self._open:
            made.append(_call(self._open))
            self._open = []
        return [call for call in made if call is not None]

    def _counts(self) -> dict[str, Any]:
        now = time.monotonic()
        if self._finish is None:
            return {"done_reason": "load"}
        first_s = now if self._first_s is None else self._first_s
        return {
            "done_reason": "length" if self._finish.reason is FinishReason.LENGTH else "stop",
            "total_duration": _nanoseconds(now - self._begun_s),
            "load_duration": 0,
            "prompt_eval_count": self._finish.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(first_s - self._begun_s),
            "eval_count": self._finish.generated_tokens,
            "eval_duration": _nanoseconds(now - first_s),
        }

    def _object(
        self, text: str, reasoning: str, calls: Sequence[AnsweredCall], counts: Mapping[str, Any] | None
    ) -> OllamaChatResponse | OllamaGenerateResponse:
        shared: dict[str, Any] = {
            "model": self._model,
            "created_at": timestamp(time.time()),
            "done": counts is not None,
        }
        shared |= counts or {}
        if not self._chat:
            return OllamaGenerateResponse(response=text, thinking=reasoning or UNSET, **shared)
        message = AnsweredMessage(content=text, thinking=reasoning or UNSET, tool_calls=list(calls) or UNSET)
        return OllamaChatResponse(message=message, **shared)


def timestamp(unix_s: float) -> str:
    """A time as Ollama writes it: RFC 3339, in UTC."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat().replace("+00:00", "Z")


def _nanoseconds(seconds: float) -> int:
    return int(seconds * _NANOSECONDS)


def _call(pieces: Sequence[ToolCallDelta]) -> AnsweredCall | None:
    arguments = whole_arguments("".join(piece.arguments for piece in pieces))
    if arguments is None:
        return None
    return AnsweredCall(pieces[0].id, AnsweredFunction(pieces[0].name, arguments))
