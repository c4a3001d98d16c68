"""The tools of a chat, in OpenAI's form: their types, and which of them may be called.

Runs in the worker; for every API that takes chats. Sources: OpenAI's API reference (chat completions), TGI 2.3.2's
OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from ....core import budgets
from ....core.errors import ParameterError
from ....core.types import ToolUse
from ....formats.json_schema import check
from ....formats.json_size import SchemaSize
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


Tools = Annotated[
    Annotated[list[Tool], Meta(max_length=budgets.TOOLS.most)], Meta(description="Functions that the model may call.")
]


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


class ToolFields(NamedTuple):
    """The names of a request's fields.

    Attributes:
        function: of a function, with its index to fill in.
        choice, name: of the choice, and of the name in it.
        among: of all functions.
        parameters: of a function's schema, in the function.
    """

    function: str
    choice: str
    name: str
    among: str
    parameters: str = "parameters"


TOOLS: Final = ToolFields("tools[{}].function", "tool_choice", "tool_choice.function.name", "tools")
#: OpenAI's fields before those.
FUNCTIONS: Final = ToolFields("functions[{}]", "function_call", "function_call.name", "functions")
_MODE_OR_NAME: Final = '"auto", "none", "required", a tool\'s name (as TGI\'s clients send it)'
ToolChoice = Annotated[str, Meta(description=_MODE_OR_NAME, extra={"expected": _MODE_OR_NAME})] | NamedTool


Functions = Annotated[
    list[FunctionSpec],
    Meta(
        max_length=budgets.TOOLS.most,
        description="OpenAI's form before `tools`: functions, one of which may be called.",
    ),
]
FunctionChoice = Annotated[
    Literal["auto", "none"] | FunctionName,
    Meta(description='`tool_choice` for `functions`: "auto", "none" or a function.'),
]


def tool_use(
    functions: Sequence[FunctionSpec] | None,
    choice: str | FunctionName | None,
    parallel: bool | None,
    fields: ToolFields = TOOLS,
    places: Sequence[int] | None = None,
) -> ToolUse | None:
    """The tools of a chat; None without any.

    Args:
        choice: how to choose among them, or the chosen one's name.
        parallel: whether several may be called at once; None: they may.
        fields: where they are in the request.
        places: of the functions in the request's list, where it has something else too.

    Raises:
        ParameterError: the choice is not among the tools, or a tool's parameters are not the schema of an object, or
            are too large together.
    """
    choice = "auto" if choice is None else choice
    mode = None if isinstance(choice, FunctionName) else _MODES.get(choice)
    forced = mode not in ("auto", "none")
    if not functions:
        if forced:
            raise ParameterError(f"{fields.choice}: only where there are {fields.among}", fields.choice)
        return None
    size = SchemaSize()
    numbered = enumerate(functions) if places is None else zip(places, functions, strict=True)
    shapes = tuple(_tool(function, i, fields, forced, size) for i, function in numbered)
    parallel = parallel is not False
    if mode is not None:
        return ToolUse(tools=shapes, choice=mode, parallel=parallel)
    if isinstance(choice, FunctionName):
        field, expected, name = fields.name, "", choice.name
    else:
        field, expected, name = fields.choice, '"auto", "none", "required" or ', choice
    if name not in (names := [function.name for function in functions]):
        raise ParameterError(
            f"{field}: expected {expected}one of the {fields.among} ({', '.join(names)}), got {shown(name)}", field
        )
    return ToolUse(tools=shapes, choice="named", name=name, parallel=parallel)


def whole_arguments(text: str) -> dict[str, Any] | None:
    """The arguments of a call as the model wrote them; None: they are cut off, or are no JSON object."""
    try:
        arguments = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None


def _tool(function: FunctionSpec, index: int, fields: ToolFields, forced: bool, size: SchemaSize) -> dict[str, Any]:
    shape: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        shape["description"] = function.description
    shape["parameters"] = schema = function.parameters or function.arguments or _NO_PARAMETERS
    field = f"{fields.function.format(index)}.{fields.parameters if function.parameters else 'arguments'}"
    if forced:
        check(schema, field, size)
    else:
        size.add(schema, field)
    kinds = schema.get("type", "object")
    if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        raise ParameterError(f'{field}.type: expected "object", got {shown(kinds)}', f"{field}.type")
    return {"type": "function", "function": shape}
