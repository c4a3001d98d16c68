"""The blocks of Anthropic's messages, and their conversion for chat templates. Runs in the worker.

A user's message may hold tool results beside text and images; templates want a message of role `tool` for each.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from ...core import budgets
from ...core.errors import PayloadError
from ...core.types import ImageSource
from ..shared.chat.messages import CalledFunction, made_call

_CACHE: Final = "Without effect: prompts that begin alike share their KV blocks by themselves."
CacheControl = Annotated[Any, Meta(description=_CACHE)]


class TextBlock(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """Text."""

    text: str
    citations: Any = None
    cache_control: CacheControl = None


class Base64Source(msgspec.Struct, frozen=True, tag_field="type", tag="base64"):
    """An image in the request."""

    media_type: Annotated[str, Meta(pattern="^image/", extra={"expected": "the media type of an image"})]
    data: Annotated[str, Meta(min_length=1)]


class UrlSource(msgspec.Struct, frozen=True, tag_field="type", tag="url"):
    """An image elsewhere."""

    url: Annotated[str, Meta(min_length=1)]


class ImageBlock(msgspec.Struct, frozen=True, tag_field="type", tag="image"):
    """An image."""

    source: Base64Source | UrlSource
    cache_control: CacheControl = None


class ThinkingBlock(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    """Reasoning of an earlier answer. Its signature is not checked."""

    thinking: str
    signature: str = ""


class RedactedThinkingBlock(msgspec.Struct, frozen=True, tag_field="type", tag="redacted_thinking"):
    """Encrypted reasoning of another service's answer, which no model here can read: it is left out."""

    data: str = ""


class ToolUseBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A call that an earlier answer made."""

    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl = None


class ToolResultBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_result"):
    """A tool's answer."""

    tool_use_id: str
    content: str | list[TextBlock | ImageBlock] | None = None
    is_error: bool | None = None
    cache_control: CacheControl = None


Block = TextBlock | ImageBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock


class InputMessage(msgspec.Struct, frozen=True):
    """A turn of the chat. Consecutive messages of one role are one turn."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


Messages = Annotated[
    list[InputMessage],
    Meta(
        min_length=1,
        max_length=budgets.MESSAGES.most,
        description="The chat so far. If the last message is the assistant's, the answer goes on with it.",
    ),
]


class TemplateMessages:
    """The messages for a chat template.

    Args:
        system: the instructions.
        takes_images: whether the model does.

    Attributes:
        messages: in the form of `types.Chat`.
        images: the sources of their images, in order.

    Raises:
        PayloadError: there are too many blocks, a block is in a message of the wrong role, or the model takes no
            images and gets one.
    """

    def __init__(
        self, system: str | Sequence[TextBlock] | None, messages: Sequence[InputMessage], *, takes_images: bool
    ) -> None:
        self.messages: list[dict[str, Any]] = []
        self.images: list[ImageSource] = []
        self._takes_images = takes_images
        _check_parts(system, messages)
        if text := system if isinstance(system, str) else "\n".join(block.text for block in system or ()):
            self.messages.append({"role": "system", "content": text})
        located = ((message.role, list(_located(i, message))) for i, message in enumerate(messages))
        for role, turns in itertools.groupby(located, key=lambda turn: turn[0]):
            turn = [block for _, blocks_of in turns for block in blocks_of]
            match role:
                case "user":
                    self._add_user(turn)
                case "assistant":
                    self._add_assistant(turn)
                case _:
                    self._add_system(turn)

    def _add_system(self, turn: list[tuple[str, Block]]) -> None:
        for path, block in turn:
            if not isinstance(block, TextBlock):
                raise _misplaced(path, block, "system")
        self._add_text("system", [(path, block) for path, block in turn if isinstance(block, TextBlock)])

    def _add_user(self, turn: list[tuple[str, Block]]) -> None:
        shown: list[tuple[str, TextBlock | ImageBlock]] = []
        for path, block in turn:
            match block:
                case ToolResultBlock():
                    self._add_text("user", shown)
                    shown = []
                    self._add_result(path, block)
                case TextBlock() | ImageBlock():
                    shown.append((path, block))
                case _:
                    raise _misplaced(path, block, "user")
        self._add_text("user", shown)

    def _add_result(self, path: str, block: ToolResultBlock) -> None:
        content = block.content or ""
        parts = (
            [(f"{path}.content", TextBlock(content))]
            if isinstance(content, str)
            else [(f"{path}.content[{i}]", part) for i, part in enumerate(content)]
        )
        self._add_text("tool", parts, tool_call_id=block.tool_use_id)

    def _add_text(self, role: str, parts: Sequence[tuple[str, TextBlock | ImageBlock]], **more: str) -> None:
        if not parts:
            return
        if all(isinstance(part, TextBlock) for _, part in parts):
            content: Any = "\n".join(part.text for _, part in parts if isinstance(part, TextBlock))
        else:
            content = [self._part(path, part) for path, part in parts]
        self.messages.append({"role": role, "content": content, **more})

    def _part(self, path: str, part: TextBlock | ImageBlock) -> dict[str, str]:
        if isinstance(part, TextBlock):
            return {"type": "text", "text": part.text}
        if not self._takes_images:
            raise PayloadError(f"{path}: this model does not take images, expected text", path)
        if isinstance(part.source, UrlSource):
            self.images.append(ImageSource(part.source.url, f"{path}.source.url"))
        else:
            url = f"data:{part.source.media_type};base64,{part.source.data}"
            self.images.append(ImageSource(url, f"{path}.source.data"))
        return {"type": "image"}

    def _add_assistant(self, turn: list[tuple[str, Block]]) -> None:
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        # Joined once at the end: a text that grows by each block is copied for each, which takes minutes for 60 MB.
        texts: list[str] = []
        thoughts: list[str] = []
        for path, block in turn:
            match block:
                case TextBlock():
                    texts.append(block.text)
                case ThinkingBlock():
                    thoughts.append(block.thinking)
                case RedactedThinkingBlock():
                    pass
                case ToolUseBlock():
                    message.setdefault("tool_calls", []).append(
                        made_call(CalledFunction(block.name, block.input), block.id, f"{path}.input")
                    )
                case _:
                    raise _misplaced(path, block, "assistant")
        message["content"] = "".join(texts)
        if thoughts:
            message["reasoning_content"] = "".join(thoughts)
        self.messages.append(message)


def _check_parts(system: str | Sequence[TextBlock] | None, messages: Sequence[InputMessage]) -> None:
    """Refuse more blocks than a chat may have, those of tool results among them."""
    if isinstance(system, list) and (wrong := budgets.PARTS.excess(len(system))):
        raise PayloadError(f"system: {wrong}", "system")
    lists = [message.content for message in messages if isinstance(message.content, list)]
    results = (block.content for blocks in lists for block in blocks if isinstance(block, ToolResultBlock))
    count = sum(map(len, lists)) + sum(len(content) for content in results if isinstance(content, list))
    if wrong := budgets.PARTS.excess(count + (len(system) if isinstance(system, list) else 0)):
        raise PayloadError(f"messages: {wrong}", "messages")


def _located(index: int, message: InputMessage) -> Iterator[tuple[str, Block]]:
    """The blocks of a message, each with its path."""
    path = f"messages[{index}].content"
    if isinstance(message.content, str):
        yield path, TextBlock(message.content)
    else:
        yield from ((f"{path}[{i}]", block) for i, block in enumerate(message.content))


def _misplaced(path: str, block: Block, role: str) -> PayloadError:
    kind = block.__struct_config__.tag
    return PayloadError(f"{path}.type: no {kind} in a message of role {role}", f"{path}.type")
