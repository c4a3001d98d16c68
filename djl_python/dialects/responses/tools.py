"""The tools of a response, and the choice among them. Runs in the worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from ...core import budgets
from ...core.errors import ParameterError
from ...core.types import ToolUse
from ..shared.chat.tools import FunctionId, FunctionName, FunctionSpec, ToolFields, tool_use
from ..shared.request_body import shown
from .errors import UnsupportedError

FUNCTION: Final = "function"
_FIELDS: Final = ToolFields("tools[{}]", "tool_choice", "tool_choice.name", "tools")


class ResponseTool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the client runs. Tools of other types, which OpenAI's own servers run or its models are trained
    for, are left out beside functions, and refused where there are none."""

    type: str
    name: FunctionId | None = None
    description: str | None = None
    parameters: Annotated[dict[str, Any], Meta(description="A JSON schema of an object.")] | None = None
    strict: bool | None = None


class ChosenFunction(msgspec.Struct, frozen=True, tag_field="type", tag="function"):
    """The function that has to be called."""

    name: FunctionId


class AllowedFunction(msgspec.Struct, frozen=True, tag_field="type", tag="function"):
    """One of the functions that may be called."""

    name: FunctionId


class AllowedTools(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="allowed_tools"):
    """The functions that may be called, a part of `tools`. "required": the answer has to call one."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedFunction], Meta(min_length=1, max_length=budgets.TOOLS.most)]


ResponseTools = Annotated[
    list[ResponseTool], Meta(max_length=budgets.TOOLS.most, description="Functions that the model may call.")
]
ResponseToolChoice = Literal["auto", "none", "required"] | ChosenFunction | AllowedTools


def chosen_tools(
    tools: Sequence[ResponseTool], choice: ResponseToolChoice | None, parallel: bool | None
) -> ToolUse | None:
    """The tools of a response; None without any.

    Raises:
        ParameterError: no tool is a function, one is incomplete, or the choice is not among the tools.
    """
    if tools and not any(tool.type == FUNCTION for tool in tools):
        raise UnsupportedError(
            f'tools[0].type: expected "{FUNCTION}", a tool that the client runs, got {shown(tools[0].type)}',
            "tools[0].type",
            "unsupported_value",
        )
    places = [i for i, tool in enumerate(tools) if tool.type == FUNCTION]
    functions = [_function(tools[i], f"tools[{i}]") for i in places]
    if isinstance(choice, AllowedTools):
        tool_use(functions, "auto", parallel, _FIELDS, places)  # refuses a wrong one by its place among all
        return tool_use(_allowed(functions, choice), choice.mode, parallel, _FIELDS)
    chosen = FunctionName(choice.name) if isinstance(choice, ChosenFunction) else choice
    return tool_use(functions, chosen, parallel, _FIELDS, places)


def left_out(tools: Sequence[ResponseTool]) -> list[str]:
    """Names, for the header of what has no effect, of tools that are no functions: agents offer them beside theirs."""
    return [f"tools.{tool.type}" for tool in tools if tool.type != FUNCTION]


def _allowed(functions: Sequence[FunctionSpec], choice: AllowedTools) -> list[FunctionSpec]:
    known = {function.name: function for function in functions}
    for i, tool in enumerate(choice.tools):
        if tool.name not in known:
            field = f"tool_choice.tools[{i}].name"
            among = ", ".join(known) or "none"
            raise ParameterError(f"{field}: expected one of the tools ({among}), got {shown(tool.name)}", field)
    return [known[name] for name in dict.fromkeys(tool.name for tool in choice.tools)]


def _function(tool: ResponseTool, path: str) -> FunctionSpec:
    if tool.name is None:
        raise ParameterError(f"{path}.name: required, expected a string", f"{path}.name")
    return FunctionSpec(tool.name, tool.description, tool.parameters, strict=tool.strict)
