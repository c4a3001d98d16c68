"""The messages and tools of a chat, in OpenAI's form: their types, and their conversion for chat templates.

Runs in the worker; for every API that takes chats. Sources: OpenAI's API reference (chat completions), LMI's chat
schema 0.31, TGI 2.3.2's OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from ....core.errors import ParameterError, PayloadError
from ....core.types import ImageSource, ToolUse
from ....formats.json_framing import encode_json
from ....formats.json_schema import check, check_depth
from ..request_body import shown

#: Names that OpenAI takes, and dots, for tools in namespaces.
FunctionId = Annotated[
    str,
    # In Python, "$" also matches before a final newline.
    Meta(
        pattern=r"^[a-zA-Z0-9_.-]{1,64}$(?!\n)",
        extra={"expected": "a name of 1 to 64 letters, digits, underscores, dots and hyphens"},
    ),
]
_NO_PARAMETERS: Final[dict[str, Any]] = {"type": "object", "properties": {}}


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
    """What a user says or shows."""

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


class ToolMessage(msgspec.Struct, frozen=True, tag_field="role", tag="tool"):
    """What a tool answered. TGI's messages have no `tool_call_id`."""

    content: str | list[TextPart]
    tool_call_id: str | None = None
    name: str | None = None


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage
Messages = Annotated[list[Message], Meta(min_length=1)]


def template_messages(messages: Sequence[Message], *, takes_images: bool) -> tuple[dict[str, Any], ...]:
    """The messages in the form of `types.Chat`.

    Content without images becomes one string, its parts concatenated: most templates read nothing else. Image parts
    lose their URLs, which `image_sources` lists.
    The role `developer` becomes `system`, which templates know.

    Raises:
        PayloadError: an image for a model that takes none, or an assistant's message without content and tool calls.
    """
    return tuple(_message(message, f"messages[{i}]", takes_images) for i, message in enumerate(messages))


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
        case SystemMessage() | DeveloperMessage():
            shape: dict[str, Any] = {"role": "system", "content": _text(message.content)}
        case UserMessage():
            shape = {"role": "user", "content": _user_content(message.content, f"{path}.content", takes_images)}
        case AssistantMessage():
            shape = _assistant(message, path)
        case ToolMessage():
            shape = {"role": "tool", "content": _text(message.content)}
            if message.tool_call_id is not None:
                shape["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        shape["name"] = message.name
    return shape


def _assistant(message: AssistantMessage, path: str) -> dict[str, Any]:
    content = message.content if message.content is not None else message.refusal
    reasoning = message.reasoning_content if message.reasoning_content is not None else message.reasoning
    if content is None and reasoning is None and not message.tool_calls:
        raise PayloadError(f"{path}.content: required where there are no tool_calls", f"{path}.content")
    shape: dict[str, Any] = {"role": "assistant", "content": _text(content or "")}
    if reasoning is not None:
        shape["reasoning_content"] = reasoning
    if message.tool_calls:
        shape["tool_calls"] = [
            _made_call(call, f"{path}.tool_calls[{i}].function.arguments") for i, call in enumerate(message.tool_calls)
        ]
    return shape


def _made_call(call: MadeToolCall, path: str) -> dict[str, Any]:
    arguments = call.function.arguments
    if not isinstance(arguments, str):
        try:
            arguments = encode_json(arguments or {}).decode()
        except RecursionError as exc:
            raise PayloadError(f"{path}: nested too deeply", path) from exc
    return {"id": call.id, "type": call.type, "function": {"name": call.function.name, "arguments": arguments}}


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


# ------------------------------------------------------------------------------------------------ tools


class FunctionSpec(msgspec.Struct, frozen=True):
    """A function. `parameters` is a JSON schema; `arguments` is TGI's name for it."""

    name: FunctionId
    description: str | None = None
    parameters: dict[str, Any] | None = None
    arguments: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True):
    """Something the model may call."""

    function: FunctionSpec
    type: Literal["function"] = "function"


class FunctionName(msgspec.Struct, frozen=True):
    """One of the functions."""

    name: FunctionId


class NamedTool(msgspec.Struct, frozen=True):
    """The tool to call."""

    function: FunctionName
    type: Literal["function"] = "function"


_MODES: Final[Mapping[str, Literal["auto", "none", "required"]]] = {
    "auto": "auto",
    "none": "none",
    "required": "required",
}
_MODE_OR_NAME: Final = '"auto", "none", "required", a tool\'s name (as TGI\'s clients send it)'
ToolChoice = Annotated[str, Meta(description=_MODE_OR_NAME, extra={"expected": _MODE_OR_NAME})] | NamedTool


def tool_use(tools: Sequence[Tool] | None, choice: ToolChoice | None, parallel: bool | None) -> ToolUse | None:
    """The tools of a chat; None without any.

    Raises:
        ParameterError: the choice is not among the tools, or a tool's parameters are not the schema of an object.
    """
    choice = "auto" if choice is None else choice
    mode = None if isinstance(choice, NamedTool) else _MODES.get(choice)
    forced = mode not in ("auto", "none")
    if not tools:
        if forced:
            raise ParameterError("tool_choice: only where there are tools", "tool_choice")
        return None
    shapes = tuple(_tool(tool.function, f"tools[{i}].function", forced) for i, tool in enumerate(tools))
    parallel = parallel is not False
    if mode is not None:
        return ToolUse(tools=shapes, choice=mode, parallel=parallel)
    if isinstance(choice, NamedTool):
        field, expected, name = "tool_choice.function.name", "", choice.function.name
    else:
        field, expected, name = "tool_choice", '"auto", "none", "required" or ', choice
    if name not in (names := [tool.function.name for tool in tools]):
        raise ParameterError(
            f"{field}: expected {expected}one of the tools ({', '.join(names)}), got {shown(name)}", field
        )
    return ToolUse(tools=shapes, choice="named", name=name, parallel=parallel)


def _tool(function: FunctionSpec, path: str, forced: bool) -> dict[str, Any]:
    shape: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        shape["description"] = function.description
    shape["parameters"] = schema = function.parameters or function.arguments or _NO_PARAMETERS
    field = f"{path}.{'parameters' if function.parameters else 'arguments'}"
    (check if forced else check_depth)(schema, field)
    kinds = schema.get("type", "object")
    if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        raise ParameterError(f'{field}.type: expected "object", got {shown(kinds)}', f"{field}.type")
    return {"type": "function", "function": shape}
