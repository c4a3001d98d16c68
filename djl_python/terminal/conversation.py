"""A chat's messages, and what is kept of them in files. Runs in the command's own process."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .openai_api import Message, OpenAiApi, Piece


@dataclass
class Conversation:
    """A chat with one model.

    Attributes:
        messages: questions and answers, without the system's message.
        parameters: fields of each request, beside the messages.
    """

    api: OpenAiApi
    system: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)

    def ask(self, question: str) -> Generator[Piece]:
        """The answer, as it comes. What has come of it when the iterator ends, or is closed, is part of the chat.

        Raises:
            ApiError: the server failed. A question without an answer is no part of the chat.
        """
        asked = {"role": "user", "content": question}
        system = [{"role": "system", "content": self.system}] if self.system else []
        texts: list[str] = []
        try:
            for piece in self.api.chat([*system, *self.messages, asked], self.parameters):
                texts.append(piece.text)
                yield piece
        finally:
            if any(texts):
                self.messages += [asked, {"role": "assistant", "content": "".join(texts)}]

    def saved(self, path: Path) -> None:
        """Write the chat into a file, as the body of a request; `loaded` reads it.

        Raises:
            OSError: that can't be done.
        """
        system = [{"role": "system", "content": self.system}] if self.system else []
        body = {"model": self.api.model, **self.parameters, "messages": [*system, *self.messages]}
        path.write_text(json.dumps(body, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")

    def loaded(self, path: Path) -> None:
        """Go on with the chat of a file: its messages and parameters, with this chat's model.

        Raises:
            OSError: the file can't be read.
            ValueError: it is no request of OpenAI's chat completions with texts.
        """
        body = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
            raise ValueError("expected a JSON object with messages, as /save writes it")
        messages = [_message(number, message) for number, message in enumerate(body.pop("messages"))]
        body.pop("model", None)
        begins = bool(messages) and messages[0]["role"] == "system"
        self.system = messages.pop(0)["content"] if begins else ""
        self.messages, self.parameters = messages, body


def _message(number: int, message: Any) -> Message:
    if (
        isinstance(message, dict)
        and isinstance(message.get("content"), str)
        and message.get("role") in ("system", "user", "assistant")
    ):
        return {"role": message["role"], "content": message["content"]}
    raise ValueError(f"messages[{number}]: expected a role (system, user or assistant) and a content that is text")
