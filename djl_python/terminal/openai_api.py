"""A client of OpenAI's API, as far as a chat in a terminal needs it. Runs in the command's own process.

Every server compatible with OpenAI's has this API: this one, vLLM, TGI, Ollama, llama.cpp. Source: OpenAI's API
reference, "Chat completions", "Completions" and "Models".
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx2

from ..config.sources import shown_url

_CONNECT_S: Final = 10.0
_DONE: Final = "[DONE]"
#: The header with which this server names parameters that had no effect.
_IGNORED: Final = "x-ignored-parameters"
#: Statuses of servers that want a key, or another one.
_NO_ENTRY: Final = (401, 403)

#: A message of a chat: role and content.
Message = dict[str, str]


class ApiError(Exception):
    """The server can't be reached, or answered with an error. The message is for people."""


@dataclass(frozen=True)
class Piece:
    """A piece of an answer. `finish_reason` comes with the last one, `tokens` (generated ones) where they are told.

    `model` is the name of the model that answers, as the server tells it.
    """

    text: str = ""
    reasoning: str = ""
    finish_reason: str = ""
    tokens: int | None = None
    model: str = ""


class OpenAiApi:
    """One model behind OpenAI's API.

    Args:
        url: of the server, with or without `/v1`; "" for a socket.
        socket: the path of a Unix socket, instead of a URL.
        api_key: sent as a bearer token, if it is not "".
        model: its name; "": the only one that the server has.
        headers: further ones of every request.

    Attributes:
        answered_by: the model that the last answer names, if it names one.
        ignored: the parameters that had no effect on the last answer, where the server tells (x-ignored-parameters).

    Example::

        with OpenAiApi("http://127.0.0.1:8080") as api:
            for piece in api.chat([{"role": "user", "content": "Hello"}], {"max_tokens": 16}):
                print(piece.text, end="")
    """

    def __init__(
        self,
        url: str = "",
        *,
        socket: str = "",
        api_key: str = "",
        model: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.url = shown_url(url) if url else f"unix:{socket}"  # without a password
        self.model = model
        self.answered_by = ""
        self.ignored: tuple[str, ...] = ()
        base = url.rstrip("/") or "http://localhost"
        self._client = httpx2.Client(
            base_url=base if base.endswith("/v1") else f"{base}/v1",
            transport=httpx2.HTTPTransport(uds=socket) if socket else None,
            headers={**({"authorization": f"Bearer {api_key}"} if api_key else {}), **(headers or {})},
            timeout=httpx2.Timeout(None, connect=_CONNECT_S),
            trust_env=not socket,
        )

    def __enter__(self) -> OpenAiApi:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    @property
    def other_model(self) -> str:
        """The model that gave the last answer, where another one was asked; else ""."""
        return self.answered_by if self.answered_by != self.model else ""

    def find_model(self) -> str:
        """Have `model` name a model that the server has; returns it.

        Raises:
            ApiError: the server can't be reached, or has several models and none was named.
        """
        if not self.model:
            names = self._models()
            if len(names) != 1:
                had = f"has the models {', '.join(names)}: name one with --model" if names else "has no models"
                raise ApiError(f"{self.url} {had}")
            self.model = names[0]
        return self.model

    def chat(self, messages: Sequence[Message], parameters: Mapping[str, Any]) -> Iterator[Piece]:
        """The answer to a chat, as it is generated. Closing the iterator ends the request.

        Raises:
            ApiError: the server refuses the request, or fails.
        """
        return self._stream("chat/completions", {"messages": list(messages), **parameters})

    def complete(self, prompt: str, parameters: Mapping[str, Any]) -> Iterator[Piece]:
        """The continuation of a text, as `chat`."""
        return self._stream("completions", {"prompt": prompt, **parameters})

    def _models(self) -> list[str]:
        try:
            response = self._client.get("models")
            _check(response)
            return [str(model["id"]) for model in response.json()["data"]]
        except httpx2.HTTPError as exc:
            raise ApiError(f"{self.url} can't be reached: {exc}") from exc
        except (ValueError, KeyError, TypeError) as exc:
            raise ApiError(f"{self.url} does not speak OpenAI's API: /v1/models has no list of models") from exc

    def _stream(self, path: str, body: Mapping[str, Any]) -> Iterator[Piece]:
        request = {"model": self.model, "stream": True, "stream_options": {"include_usage": True}, **body}
        try:
            with self._client.stream("POST", path, json=request) as response:
                _check(response)
                ended, self.answered_by = False, ""
                names = response.headers.get(_IGNORED, "").split(",")
                self.ignored = tuple(name.strip() for name in names if name.strip())
                for event in httpx2.EventSource(response):
                    if event.data == _DONE:
                        return
                    piece = _piece(event.data)
                    self.answered_by = piece.model or self.answered_by
                    ended = ended or bool(piece.finish_reason)
                    yield piece
        except httpx2.HTTPError as exc:
            raise ApiError(f"{self.url}: {exc or type(exc).__name__}") from exc
        if not ended:
            raise ApiError(f"{self.url}: the answer broke off")


def remarks(api: OpenAiApi) -> Iterator[str]:
    """What to say of the last answer: that another model gave it, and which parameters had no effect on it."""
    if api.other_model:
        yield f"{api.url} has no model {api.model}: {api.other_model} answered"
    if api.ignored:
        yield f"without effect on this answer: {', '.join(api.ignored)}"


def _check(response: httpx2.Response) -> None:
    """Raise ApiError unless the answer is good."""
    if response.status_code == 200:
        return
    response.read()
    reason = response.text.strip() or response.reason_phrase
    with contextlib.suppress(ValueError):  # no JSON: the text says it
        reason = _error(response.json()) or reason
    hint = " (--api-key, or the variable DJL_API_KEY, sends a key)" if response.status_code in _NO_ENTRY else ""
    raise ApiError(f"{response.status_code}: {reason}{hint}")


def _piece(data: str) -> Piece:
    try:
        chunk = json.loads(data)
        if reason := _error(chunk):
            raise ApiError(reason)
        usage = chunk.get("usage") or {}
        choice: dict[str, Any] = next(iter(chunk.get("choices") or ()), {})
        delta = choice.get("delta") or {}
        return Piece(
            text=delta.get("content") or choice.get("text") or "",
            reasoning=delta.get("reasoning_content") or delta.get("reasoning") or "",
            finish_reason=choice.get("finish_reason") or "",
            tokens=usage.get("completion_tokens"),
            model=str(chunk.get("model") or ""),
        )
    except (ValueError, AttributeError, TypeError) as exc:
        raise ApiError(f"the server sent what is no piece of an answer: {data[:200]!r}") from exc


def _error(answer: Any) -> str:
    """What an error object says: OpenAI's {"error": {"message"}}, or {"error": "..."}; "" for anything else."""
    error = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(error, dict):
        return str(error.get("message") or error)
    return str(error) if error else ""
