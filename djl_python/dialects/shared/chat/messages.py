"""The messages and tools of a chat, in OpenAI's form: their types, and their conversion for chat templates.

Runs in the worker; for every API that takes chats. Sources: OpenAI's API reference (chat completions), LMI's chat
schema 0.31, TGI 2.3.2's OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from ....core import budgets
from ....core.errors import PayloadError
from ....core.types import ImageSource
from ....formats.json_framing import encode_json
from ..typed_body import OTHER_TAG

# ------------------------------------------------------------------------------------------------ content


class TextPart(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """Text."""

    text: str


class ImageUrl(msgspec.Struct, frozen=True, omit_defaults=True):
    """The address of an image: a data URL or an http(s) URL. `detail` has no effect: the model's own image processor
    decides on the resolution."""

    url: Annotated[str, Meta(min_length=1)]
    detail: str | None = None


class ImagePart(msgspec.Struct, frozen=True, tag_field="type", tag="image_url"):
    """An image."""

    image_url: ImageUrl


class RefusalPart(msgspec.Struct, frozen=True, tag_field="type", tag="refusal"):
    """The text of an assistant's refusal."""

    refusal: str


# ------------------------------------------------------------------------------------------------ messages


class SystemMessage(msgspec.Struct, frozen=True, tag_field="role", tag="system"):
    """Instructions."""

    content: str | list[TextPart]
    name: str | None = None


class DeveloperMessage(msgspec.Struct, frozen=True, tag_field="role", tag="developer"):
    """Instructions, under the role that newer clients use."""

    content: str | list[TextPart]
    name: str | None = None


class UserMessage(msgspec.Struct, frozen=True, tag_field="role", tag="user"):
    """A user's text and images."""

    content: str | list[TextPart | ImagePart]
    name: str | None = None


class CalledFunction(msgspec.Struct, frozen=True):
    """The function that was called. `arguments` is a JSON string; TGI's clients send the object itself."""

    name: str
    arguments: str | dict[str, Any] | None = None


class MadeToolCall(msgspec.Struct, frozen=True):
    """A call that an assistant made in an earlier answer."""

    function: CalledFunction
    id: str = ""
    type: Literal["function"] = "function"


class AssistantMessage(msgspec.Struct, frozen=True, tag_field="role", tag="assistant"):
    """An earlier answer, or the beginning of the one that is asked for."""

    content: str | list[TextPart | RefusalPart] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[MadeToolCall] | None = None
    function_call: CalledFunction | None = None


class ToolMessage(msgspec.Struct, frozen=True, tag_field="role", tag="tool"):
    """A tool's answer. TGI's messages have no `tool_call_id`."""

    content: str | list[TextPart]
    tool_call_id: str | None = None
    name: str | None = None


class FunctionMessage(msgspec.Struct, frozen=True, tag_field="role", tag="function"):
    """The answer of the function `name`: OpenAI's form before `tool`."""

    name: str
    content: str | list[TextPart] | None = None


class OtherMessage(msgspec.Struct, frozen=True, tag_field="role", tag=OTHER_TAG):
    """A message of a role that the model's chat template knows: `document`, say."""

    content: str | list[TextPart]
    name: str | None = None


Message = (
    SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage | FunctionMessage | OtherMessage
)
_ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
Messages = Annotated[list[Message], Meta(min_length=1, max_length=budgets.MESSAGES.most)]


def with_other_roles(body: dict[str, Any]) -> dict[str, Any]:
    """The body of a chat, in which messages of roles that have no type are `OtherMessage`s.

    Raises:
        PayloadError: such a role is too long.
    """
    messages = body.get("messages")
    if not isinstance(messages, list):
        return body
    tagged: list[Any] = list(messages)
    for i, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if isinstance(role, str) and role and role not in _ROLES:
            if wrong := budgets.ROLE_CHARS.excess(len(role)):
                raise PayloadError(f"messages[{i}].role: {wrong}", f"messages[{i}].role")
            tagged[i] = {**message, "role": OTHER_TAG}
    return {**body, "messages": tagged}


def template_messages(
    messages: Sequence[Message], roles: Sequence[str], *, takes_images: bool
) -> tuple[dict[str, Any], ...]:
    """The messages in the form of `types.Chat`.

    Content without images becomes one string, its parts concatenated: most templates read nothing else. Image parts
    lose their URLs, which `image_sources` lists. A `function_call` becomes a tool call, which the next message of role
    `function` answers.

    Args:
        roles: the messages' roles as the client named them.

    Raises:
        PayloadError: too many parts, an image for a model that takes none, or an assistant's message without content
            and tool calls.
    """
    parts = sum([len(message.content) for message in messages if isinstance(message.content, list)])
    if wrong := budgets.PARTS.excess(parts):
        raise PayloadError(f"messages: {wrong}", "messages")
    shapes: list[dict[str, Any]] = []
    call_id = ""
    for i, (message, role) in enumerate(zip(messages, roles, strict=True)):
        shape = _message(message, f"messages[{i}]", takes_images) | {"role": role}
        if isinstance(message, AssistantMessage) and message.function_call is not None:
            call_id = f"call{i:05}"  # nine characters, as Mistral's templates want
            shape["tool_calls"] = [made_call(message.function_call, call_id, f"messages[{i}].function_call.arguments")]
        elif isinstance(message, FunctionMessage):
            shape["tool_call_id"] = call_id
        shapes.append(shape)
    return tuple(shapes)


def image_sources(messages: Sequence[Message]) -> tuple[ImageSource, ...]:
    """The images of a chat, in order."""
    return tuple(ImageSource(image.url, f"{path}.url") for path, image in _images(messages))


def asks_for_detail(messages: Sequence[Message]) -> bool:
    """Whether an image has a `detail` other than "auto"."""
    return any(image.detail not in (None, "auto") for _, image in _images(messages))


def _images(messages: Sequence[Message]) -> Iterator[tuple[str, ImageUrl]]:
    for i, message in enumerate(messages):
        if not isinstance(message, UserMessage) or isinstance(message.content, str):
            continue
        for j, part in enumerate(message.content):
            if isinstance(part, ImagePart):
                yield f"messages[{i}].content[{j}].image_url", part.image_url


def _message(message: Message, path: str, takes_images: bool) -> dict[str, Any]:
    match message:
        case UserMessage():
            shape: dict[str, Any] = {"content": _user_content(message.content, f"{path}.content", takes_images)}
        case AssistantMessage():
            shape = _assistant(message, path)
        case _:
            shape = {"content": _text(message.content or "")}
    if isinstance(message, ToolMessage) and message.tool_call_id is not None:
        shape["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        shape["name"] = message.name
    return shape


def _assistant(message: AssistantMessage, path: str) -> dict[str, Any]:
    content = message.content if message.content is not None else message.refusal
    reasoning = message.reasoning_content if message.reasoning_content is not None else message.reasoning
    if content is None and reasoning is None and not message.tool_calls and message.function_call is None:
        raise PayloadError(f"{path}.content: required where there are no tool_calls", f"{path}.content")
    shape: dict[str, Any] = {"content": _text(content or "")}
    if reasoning is not None:
        shape["reasoning_content"] = reasoning
    if message.tool_calls:
        shape["tool_calls"] = [
            made_call(call.function, call.id, f"{path}.tool_calls[{i}].function.arguments")
            for i, call in enumerate(message.tool_calls)
        ]
    return shape


def made_call(function: CalledFunction, call_id: str, path: str) -> dict[str, Any]:
    """A call of an earlier answer, in the form of `types.Chat`.

    Args:
        path: the field that has the arguments, for errors.

    Raises:
        PayloadError: the arguments are nested too deeply.
    """
    arguments = function.arguments
    if not isinstance(arguments, str):
        try:
            arguments = encode_json(arguments or {}).decode()
        except RecursionError as exc:
            raise PayloadError(f"{path}: nested too deeply", path) from exc
    return {"id": call_id, "type": "function", "function": {"name": function.name, "arguments": arguments}}


def _text(content: str | Sequence[TextPart | RefusalPart]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)


def _user_content(
    content: str | list[TextPart | ImagePart], path: str, takes_images: bool
) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    texts = [part for part in content if isinstance(part, TextPart)]
    if len(texts) == len(content):
        return _text(texts)
    if not takes_images:
        at = next(i for i, part in enumerate(content) if isinstance(part, ImagePart))
        raise PayloadError(f"{path}[{at}]: this model does not take images, expected text", f"{path}[{at}]")
    return [msgspec.to_builtins(part) if isinstance(part, TextPart) else {"type": "image"} for part in content]
