"""The streaming requests of the APIs that can be measured, and the parsing of their streams. Pure functions of bytes.

Sources: OpenAI's API reference (completions, chat completions, `stream_options`), Text Generation Inference's OpenAPI
document, LMI's "Chat Completions and Text Generation" schemas. `ignore_eos` is vLLM's extension of OpenAI's API, which
llama.cpp and this server know too: with it, every answer has exactly as many tokens as were requested.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from .http import Read


@dataclass(frozen=True)
class Generation:
    """One parsed answer.

    Attributes:
        token_times_s: when tokens arrived, one entry for each piece of the stream that holds any.
        tokens: number of generated tokens: the server's own count where it gives one.
        prompt_tokens: number of the prompt's tokens, if the server says.
    """

    token_times_s: list[float]
    tokens: int
    prompt_tokens: int | None
    text: str


class Dialect(Protocol):
    """One API."""

    @property
    def path(self) -> str:
        """The URL path of its streaming requests."""
        ...

    def body(self, prompt: str, output_tokens: int, model: str) -> dict[str, Any]:
        """A streaming, greedy request for `output_tokens` tokens."""
        ...

    def read(self, lines: Iterable[Read]) -> Generation:
        """Parse an answer from its lines, each with the time at which it was complete.

        Raises:
            ValueError: the answer is an error, or not complete.
            LookupError: the answer does not have the API's shape.
        """
        ...


def lines_of(pieces: Iterable[Read]) -> list[Read]:
    """The lines that are not empty, each with the time at which it was complete."""
    lines: list[Read] = []
    rest, time_s = b"", 0.0
    for time_s, data in pieces:
        *complete, rest = (rest + data).split(b"\n")
        lines += [(time_s, line) for line in complete if line.strip()]
    return [*lines, (time_s, rest)] if rest.strip() else lines


def _events(lines: Iterable[Read]) -> Iterable[tuple[float, bytes]]:
    """The data of server-sent events of one line each; comments and other fields are left out."""
    return ((time_s, line[5:].strip()) for time_s, line in lines if line.startswith(b"data:"))


def _object(data: bytes) -> dict[str, Any]:
    try:
        found: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError as exc:
        raise ValueError(f"not JSON ({exc}): {data[:200]!r}") from None
    if found.get("error"):
        raise ValueError(f"the stream ends with an error: {data[:300].decode(errors='replace')}")
    return found


class OpenAI:
    """/v1/completions."""

    path = "/v1/completions"

    def body(self, prompt: str, output_tokens: int, model: str) -> dict[str, Any]:
        return {"prompt": prompt, **self._common(output_tokens, model)}

    @staticmethod
    def _common(output_tokens: int, model: str) -> dict[str, Any]:
        return {
            "model": model,
            "max_tokens": output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }

    @staticmethod
    def _text(choice: Mapping[str, Any]) -> str:
        return choice.get("text") or ""

    def read(self, lines: Iterable[Read]) -> Generation:
        times_s: list[float] = []
        texts: list[str] = []
        usage: Mapping[str, Any] = {}
        ended = False
        for time_s, data in _events(lines):
            if data == b"[DONE]":
                ended = True
                continue
            chunk = _object(data)
            usage = chunk.get("usage") or usage
            for choice in chunk.get("choices") or ():
                text = self._text(choice)
                ended = ended or bool(choice.get("finish_reason"))
                if text or choice.get("token_ids"):
                    times_s.append(time_s)
                    texts.append(text)
        if not ended:
            raise ValueError(f"the stream has no end, only {len(times_s)} pieces of text")
        return Generation(
            times_s, usage.get("completion_tokens", len(times_s)), usage.get("prompt_tokens"), "".join(texts)
        )


class OpenAIChat(OpenAI):
    """/v1/chat/completions."""

    path = "/v1/chat/completions"

    def body(self, prompt: str, output_tokens: int, model: str) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": prompt}], **self._common(output_tokens, model)}

    @staticmethod
    def _text(choice: Mapping[str, Any]) -> str:
        delta = choice.get("delta") or {}
        return delta.get("content") or delta.get("reasoning_content") or ""


class Tgi:
    """Text Generation Inference's /generate_stream. It can't ignore the end-of-sequence token."""

    path = "/generate_stream"

    def body(self, prompt: str, output_tokens: int, model: str) -> dict[str, Any]:
        return {"inputs": prompt, "parameters": {"max_new_tokens": output_tokens, "details": True}, "stream": True}

    def read(self, lines: Iterable[Read]) -> Generation:
        return _read_tokens(_events(lines))


class Lmi:
    """LMI's /invocations: jsonlines, one token per line; the last line has the text and the details."""

    path = "/invocations"

    def body(self, prompt: str, output_tokens: int, model: str) -> dict[str, Any]:
        parameters = {"max_new_tokens": output_tokens, "ignore_eos_token": True, "details": True}
        return {"inputs": prompt, "parameters": parameters, "stream": True}

    def read(self, lines: Iterable[Read]) -> Generation:
        return _read_tokens(lines)


def _read_tokens(documents: Iterable[Read]) -> Generation:
    """Parse TGI's or LMI's stream: one JSON object per token, the last with the text and the details."""
    times_s: list[float] = []
    last: dict[str, Any] = {}
    for time_s, data in documents:
        last = _object(data)
        if (last.get("details") or {}).get("finish_reason") == "error":
            raise ValueError(f"the stream ends with an error: {data[:300].decode(errors='replace')}")
        times_s.append(time_s)
    if last.get("generated_text") is None:
        raise ValueError(f"the stream has no last line, only {len(times_s)} tokens")
    details = last.get("details") or {}
    tokens = details.get("generated_tokens", len(times_s))
    return Generation(times_s, tokens, details.get("input_length"), last["generated_text"])


DIALECTS: Final[Mapping[str, Dialect]] = {
    "openai": OpenAI(),
    "openai-chat": OpenAIChat(),
    "tgi": Tgi(),
    "lmi": Lmi(),
}
