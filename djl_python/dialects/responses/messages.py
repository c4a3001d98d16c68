"""The messages for a chat template that a response's input becomes. Runs in the worker.

Items are smaller than turns: reasoning, text and calls of one answer are three items and one message.
"""

from __future__ import annotations

import itertools
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

Content = str | list[dict[str, str]]


class _Turn:
    """A message that further items may belong to.

    What they add is joined once at the end: a text that grows by each item is copied for each, which takes minutes for
    60 MB.
    """

    def __init__(self, role: str, **more: str) -> None:
        self.role = role
        self.contents: list[Content] = []
        self.thoughts: list[str] = []
        self.calls: list[dict[str, Any]] = []
        self._more = more

    @property
    def message(self) -> dict[str, Any]:
        """It, in the form of `types.Chat`."""
        made: dict[str, Any] = {"role": self.role, "content": self._content(), **self._more}
        if self.thoughts:
            made["reasoning_content"] = "".join(self.thoughts)
        if self.calls:
            made["tool_calls"] = self.calls
        return made

    def _content(self) -> Content:
        """Its texts in lines, or as parts where there are images."""
        texts = list(itertools.takewhile(lambda content: isinstance(content, str), self.contents))
        text = "\n".join(map(str, texts))
        if len(texts) == len(self.contents):
            return text
        rest = itertools.chain.from_iterable(map(_as_parts, self.contents[len(texts) :]))
        return [*(_as_parts(text) if texts else ()), *rest]


class TemplateMessages:
    """The messages, to which items are added in order.

    Args:
        instructions: what the model is told first; "": nothing.
        takes_images: whether the model does.

    Attributes:
        images: the sources of their images, in order.
        asks_for_detail: whether an image has a `detail` other than "auto".
    """

    def __init__(self, instructions: str, *, takes_images: bool) -> None:
        self._turns: list[_Turn] = []
        self.images: list[ImageSource] = []
        self.asks_for_detail = False
        self._takes_images = takes_images
        self._parts = 0
        self._calls: set[str] = set()
        if instructions:
            self._say("system", instructions)

    def add(self, items: Sequence[Item], path: str) -> None:
        """Add items; `path` is the path of the field with them.

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

    @property
    def is_empty(self) -> bool:
        """Whether there are none."""
        return not self._turns

    @property
    def messages(self) -> tuple[dict[str, Any], ...]:
        """The messages, in the form of `types.Chat`."""
        return tuple(turn.message for turn in self._turns)

    # ------------------------------------------------------------------------------------ turns

    def _say(self, role: str, content: Content) -> None:
        """Add a message of the user's, or instructions. Consecutive messages of one role become one message."""
        last = self._turns[-1] if self._turns else None
        if last is None or not (last.role == role or {last.role, role} <= {*_INSTRUCTING}):
            self._turns.append(last := _Turn(role))
        last.contents.append(content)

    def _turn(self) -> _Turn:
        """The assistant's turn that goes on, or a new one."""
        if not self._turns or self._turns[-1].role != _ASSISTANT:
            self._turns.append(_Turn(_ASSISTANT))
        return self._turns[-1]

    def _answer(self, item: MessageItem, at: str) -> None:
        text = self._content(item.content, f"{at}.content", item.role)
        turn = self._turn()
        if turn.contents == [""]:
            turn.contents.clear()
        turn.contents.append(text)

    def _reason(self, item: ReasoningItem, at: str) -> None:
        text = "".join(part.text for part in item.content or ())
        self._count(len(item.content or ()) + len(item.summary or ()))
        if not text and item.encrypted_content:
            text = unsealed(item.encrypted_content, f"{at}.encrypted_content")
        if text:
            self._turn().thoughts.append(text)

    def _call(self, item: FunctionCallItem, at: str) -> None:
        self._calls.add(item.call_id)
        called = made_call(CalledFunction(item.name, item.arguments), item.call_id, f"{at}.arguments")
        self._turn().calls.append(called)

    def _take_output(self, item: FunctionOutputItem, at: str) -> None:
        if item.call_id not in self._calls:
            field = f"{at}.call_id"
            raise PayloadError(f"{field}: no function_call before this output has the call_id {item.call_id!r}", field)
        turn = _Turn("tool", tool_call_id=item.call_id)
        turn.contents.append(self._content(item.output, f"{at}.output", "user"))
        self._turns.append(turn)

    # ------------------------------------------------------------------------------------ content

    def _content(self, content: str | Sequence[Part], path: str, role: str) -> Content:
        """One string; with images, the parts in the form that templates read."""
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


def _as_parts(content: Content) -> list[dict[str, str]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
