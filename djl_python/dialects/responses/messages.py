"""The messages for a chat template that a response's input becomes. Runs in the worker.

Items are smaller than turns: reasoning, text and calls of one answer are three items and one message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ...core import budgets
from ...core.errors import PayloadError
from ...core.types import ImageSource
from ..shared.chat.messages import CalledFunction, made_call
from .items import (
    FunctionCallItem,
    FunctionOutputItem,
    InputImagePart,
    InputTextPart,
    Item,
    MessageItem,
    OutputRefusalPart,
    OutputTextPart,
    Part,
    ReasoningItem,
)
from .sealed import unsealed

_ASSISTANT: Final = "assistant"
_INSTRUCTING: Final = ("system", "developer")
_AUTO: Final = (None, "auto")


class TemplateMessages:
    """The messages, to which items are added in order.

    Args:
        instructions: what the model is told first; "": nothing.
        takes_images: whether the model does.

    Attributes:
        messages: in the form of `types.Chat`.
        images: the sources of their images, in order.
        asks_for_detail: whether an image has a `detail` other than "auto".
    """

    def __init__(self, instructions: str, *, takes_images: bool) -> None:
        self.messages: list[dict[str, Any]] = []
        self.images: list[ImageSource] = []
        self.asks_for_detail = False
        self._takes_images = takes_images
        self._parts = 0
        self._calls: set[str] = set()
        if instructions:
            self._say("system", instructions)

    def add(self, items: Sequence[Item], path: str) -> None:
        """Add items; `path` is the field that has them.

        Raises:
            PayloadError: there are too many parts, one is in a message of the wrong role, an output belongs to no call,
                or the model takes no images and gets one.
        """
        for i, item in enumerate(items):
            at = f"{path}[{i}]"
            match item:
                case MessageItem(role="assistant"):
                    self._answer(item, at)
                case MessageItem():
                    self._say(item.role, self._content(item.content, f"{at}.content", item.role))
                case ReasoningItem():
                    self._reason(item, at)
                case FunctionCallItem():
                    self._call(item, at)
                case FunctionOutputItem():
                    self._take_output(item, at)

    def say(self, text: str) -> None:
        """Add a text of the user's."""
        self._say("user", text)

    # ------------------------------------------------------------------------------------ turns

    def _say(self, role: str, content: str | list[dict[str, str]]) -> None:
        """A message of the user's, or instructions; one after another of its kind is one turn with it."""
        last = self.messages[-1] if self.messages else None
        if last is not None and (last["role"] == role or {last["role"], role} <= {*_INSTRUCTING}):
            last["content"] = _joined(last["content"], content)
        else:
            self.messages.append({"role": role, "content": content})

    def _turn(self) -> dict[str, Any]:
        """The assistant's turn that goes on, or a new one."""
        if not self.messages or self.messages[-1]["role"] != _ASSISTANT:
            self.messages.append({"role": _ASSISTANT, "content": ""})
        return self.messages[-1]

    def _answer(self, item: MessageItem, at: str) -> None:
        text = self._content(item.content, f"{at}.content", item.role)
        turn = self._turn()
        turn["content"] = _joined(turn["content"], text) if turn["content"] else text

    def _reason(self, item: ReasoningItem, at: str) -> None:
        text = "".join(part.text for part in item.content or ())
        self._count(len(item.content or ()))
        if not text and item.encrypted_content:
            text = unsealed(item.encrypted_content, f"{at}.encrypted_content")
        if text:
            turn = self._turn()
            turn["reasoning_content"] = turn.get("reasoning_content", "") + text

    def _call(self, item: FunctionCallItem, at: str) -> None:
        self._calls.add(item.call_id)
        called = made_call(CalledFunction(item.name, item.arguments), item.call_id, f"{at}.arguments")
        self._turn().setdefault("tool_calls", []).append(called)

    def _take_output(self, item: FunctionOutputItem, at: str) -> None:
        if item.call_id not in self._calls:
            field = f"{at}.call_id"
            raise PayloadError(f"{field}: no function_call before this output has the call_id {item.call_id!r}", field)
        content = self._content(item.output, f"{at}.output", "user")
        self.messages.append({"role": "tool", "content": content, "tool_call_id": item.call_id})

    # ------------------------------------------------------------------------------------ content

    def _content(self, content: str | Sequence[Part], path: str, role: str) -> str | list[dict[str, str]]:
        """One string, if there are no images; otherwise the parts as templates read them."""
        if isinstance(content, str):
            return content
        self._count(len(content))
        made = [self._part(part, f"{path}[{i}]", role) for i, part in enumerate(content)]
        return made if any(part["type"] == "image" for part in made) else "".join(part["text"] for part in made)

    def _part(self, part: Part, path: str, role: str) -> dict[str, str]:
        match part:
            case InputTextPart(text=text) | OutputTextPart(text=text):
                return {"type": "text", "text": text}
            case OutputRefusalPart(refusal=refusal):
                return {"type": "text", "text": refusal}
            case InputImagePart():
                return self._image(part, path, role)

    def _image(self, part: InputImagePart, path: str, role: str) -> dict[str, str]:
        if role != "user":
            raise PayloadError(f"{path}.type: no input_image in a message of role {role}", f"{path}.type")
        if not self._takes_images:
            raise PayloadError(f"{path}: this model does not take images, expected input_text", path)
        self.images.append(ImageSource(part.image_url, f"{path}.image_url"))
        self.asks_for_detail = self.asks_for_detail or part.detail not in _AUTO
        return {"type": "image"}

    def _count(self, parts: int) -> None:
        self._parts += parts
        if wrong := budgets.PARTS.excess(self._parts):
            raise PayloadError(f"input: {wrong}", "input")


def _joined(first: str | list[dict[str, str]], second: str | list[dict[str, str]]) -> str | list[dict[str, str]]:
    """The contents of two messages that are one turn."""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n{second}"
    return [*_as_parts(first), *_as_parts(second)]


def _as_parts(content: str | list[dict[str, str]]) -> list[dict[str, str]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
