"""The streaming requests of the APIs that can be measured, and the parsing of their streams. Pure functions of bytes.

Sources: OpenAI's API reference (completions, chat completions, `stream_options`, responses), Anthropic's messages,
Ollama's docs/api.md, Text Generation Inference's OpenAPI document, LMI's "Chat Completions and Text Generation"
schemas. `ignore_eos` is vLLM's extension of OpenAI's completions and chats, which llama.cpp and this server know too:
with it, every answer has exactly as many tokens as were requested. The others have nothing like it, but LMI.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from .http import Read


@dataclass(frozen=True)
class BenchGeneration:
    """One parsed answer.

    Attributes:
        token_times_s: when tokens arrived, one entry for each piece of the stream that holds any.
        tokens: number of generated tokens: the server's own count where it gives one.
        prompt_tokens: number of the prompt's tokens, if the server says.
        model: the name of the model that answers, if the server says.
    """

    token_times_s: list[float]
    tokens: int
    prompt_tokens: int | None
    text: str
    model: str = ""


class BenchDialect(Protocol):
    """One API."""

    @property
    def path(self) -> str:
        """The URL path of its streaming requests."""
        ...

    def body(self, prompt: str, output_tokens: int, model: str) -> dict[str, Any]:
        """A streaming, greedy request for `output_tokens` tokens."""
        ...

    def read(self, lines: Iterable[Read]) -> BenchGeneration:
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
        event: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError as exc:
        raise ValueError(f"not JSON ({exc}): {data[:200]!r}") from None
    if event.get("error"):
        raise ValueError(f"the stream ends with an error: {data[:300].decode(errors='replace')}")
    return event


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

    def read(self, lines: Iterable[Read]) -> BenchGeneration:
        times_s: list[float] = []
        texts: list[str] = []
        usage: Mapping[str, Any] = {}
        model, ended = "", False
        for time_s, data in _events(lines):
            if data == b"[DONE]":
                ended = True
                continue
            chunk = _object(data)
            usage = chunk.get("usage") or usage
            model = str(chunk.get("model") or model)
            for choice in chunk.get("choices") or ():
                text = self._text(choice)
                ended = ended or bool(choice.get("finish_reason"))
                if text or choice.get("token_ids"):
                    times_s.append(time_s)
                    texts.append(text)
        if not ended:
            raise ValueError(f"the stream has no end, only {len(times_s)} pieces of text")
        tokens = usage.get("completion_tokens", len(times_s))
        return BenchGeneration(times_s, tokens, usage.get("prompt_tokens"), "".join(texts), model)


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

    def read(self, lines: Iterable[Read]) -> BenchGeneration:
        return _read_tokens(_events(lines))


class Lmi:
    """LMI's /invocations: jsonlines, one token per line; the last line has the text and the details."""

    path = "/invocations"

    def body(self, prompt: str, output_tokens: int, model: str) -> dict[str, Any]:
        parameters = {"max_new_tokens": output_tokens, "ignore_eos_token": True, "details": True}
        return {"inputs": prompt, "parameters": parameters, "stream": True}

    def read(self, lines: Iterable[Read]) -> BenchGeneration:
        return _read_tokens(lines)


class Responses:
    """OpenAI's /v1/responses."""

    path = "/v1/responses"

    def body(self, prompt: str, output_tokens: int, model: str) -> dict[str, Any]:
        limits = {"max_output_tokens": output_tokens, "temperature": 0, "store": False}
        return {"model": model, "input": prompt, "stream": True, **limits}

    def read(self, lines: Iterable[Read]) -> BenchGeneration:
        times_s: list[float] = []
        texts: list[str] = []
        response: Mapping[str, Any] | None = None
        for time_s, data in _events(lines):
            event = _object(data)
            kind = event.get("type")
            if kind in ("error", "response.failed"):
                raise ValueError(f"the stream ends with an error: {data[:300].decode(errors='replace')}")
            if kind in _RESPONSE_TEXTS:
                times_s.append(time_s)
                texts.append(event["delta"])
            elif kind in ("response.completed", "response.incomplete"):
                response = event["response"]
        if response is None:
            raise ValueError(f"the stream has no end, only {len(times_s)} pieces of text")
        usage = response.get("usage") or {}
        tokens = usage.get("output_tokens", len(times_s))
        model = str(response.get("model") or "")
        return BenchGeneration(times_s, tokens, usage.get("input_tokens"), "".join(texts), model)


class Anthropic:
    """Anthropic's /v1/messages."""

    path = "/v1/messages"

    def body(self, prompt: str, output_tokens: int, model: str) -> dict[str, Any]:
        messages = [{"role": "user", "content": prompt}]
        return {"model": model, "max_tokens": output_tokens, "messages": messages, "temperature": 0, "stream": True}

    def read(self, lines: Iterable[Read]) -> BenchGeneration:
        times_s: list[float] = []
        texts: list[str] = []
        usage: dict[str, Any] = {}
        model, ended = "", False
        for time_s, data in _events(lines):
            event = _object(data)
            kind, delta = event.get("type"), event.get("delta") or {}
            if kind == "message_start":
                model = str(event["message"].get("model") or "")
                usage |= event["message"].get("usage") or {}
            elif kind == "message_delta":
                usage |= event.get("usage") or {}
            elif kind == "content_block_delta" and (text := delta.get("text") or delta.get("thinking")):
                times_s.append(time_s)
                texts.append(text)
            ended = ended or kind == "message_stop"
        if not ended:
            raise ValueError(f"the stream has no end, only {len(times_s)} pieces of text")
        prompt = [usage[name] for name in _PROMPT_PARTS if usage.get(name) is not None]
        tokens = usage.get("output_tokens", len(times_s))
        return BenchGeneration(times_s, tokens, sum(prompt) if prompt else None, "".join(texts), model)


class Ollama:
    """Ollama's /api/chat: a line for each piece, the last one with the counts."""

    path = "/api/chat"

    def body(self, prompt: str, output_tokens: int, model: str) -> dict[str, Any]:
        options = {"num_predict": output_tokens, "temperature": 0}
        return {"model": model, "messages": [{"role": "user", "content": prompt}], "options": options, "stream": True}

    def read(self, lines: Iterable[Read]) -> BenchGeneration:
        times_s: list[float] = []
        texts: list[str] = []
        last: dict[str, Any] = {}
        for time_s, data in lines:
            last = _object(data)
            message = last.get("message") or {}
            if text := message.get("content") or message.get("thinking"):
                times_s.append(time_s)
                texts.append(text)
        if not last.get("done"):
            raise ValueError(f"the stream has no last line, only {len(times_s)} pieces of text")
        tokens = last.get("eval_count", len(times_s))
        # Models have a tag in Ollama's answers, also where the request names none.
        model = str(last.get("model") or "").removesuffix(":latest")
        return BenchGeneration(times_s, tokens, last.get("prompt_eval_count"), "".join(texts), model)


#: Events of responses with a piece of what the model has generated.
_RESPONSE_TEXTS: Final = (
    *("response.output_text.delta", "response.reasoning_text.delta", "response.reasoning_summary_text.delta"),
    "response.function_call_arguments.delta",
)
#: Anthropic's counts of a prompt's tokens, which do not overlap.
_PROMPT_PARTS: Final = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


def _read_tokens(documents: Iterable[Read]) -> BenchGeneration:
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
    return BenchGeneration(times_s, tokens, details.get("input_length"), last["generated_text"])


DIALECTS: Final[Mapping[str, BenchDialect]] = {
    "openai": OpenAI(),
    "openai-chat": OpenAIChat(),
    "tgi": Tgi(),
    "lmi": Lmi(),
    "responses": Responses(),
    "anthropic": Anthropic(),
    "ollama": Ollama(),
}
