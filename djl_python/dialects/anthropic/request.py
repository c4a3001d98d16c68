"""The body of Anthropic's requests, and their translation to a GenerateRequest. Runs in the worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

from ...config import ModelConfig
from ...core import budgets
from ...core.errors import ParameterError
from ...core.types import Chat, GenerateRequest, ToolUse
from ..shared.adapters import adapter_of_model
from ..shared.chat.thinking import Thinking, ThinkingFields, thinking_budget, thinking_variables
from ..shared.chat.tools import FunctionName, FunctionSpec, ToolFields, tool_use
from ..shared.fields.generation import OneOrMore, check_fields, sampling_params, text_options, without_effect
from ..shared.fields.structured_output import Text, schema_grammar
from ..shared.request_body import shown
from ..shared.typed_body import read_body, unknown_fields
from .blocks import CacheControl, Messages, TemplateMessages, TextBlock

#: Fields for features that the server itself would have to run.
_REFUSED: Final = {
    "mcp_servers": "the client calls MCP servers itself, and lists their tools in `tools`",
    "container": "there is no code execution here",
}
_TOOL_FIELDS: Final = ToolFields("tools[{}]", "tool_choice", "tool_choice.name", "tools", "input_schema")
_CUSTOM: Final = "custom"
#: The fields that chats have under other names.
_CALLED: Final = {"stop": "stop_sequences"}


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool that the client runs. Tools that Anthropic's own servers run have other types."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    input_schema: Annotated[dict[str, Any], Meta(description="A JSON schema of an object.")] | None = None
    description: str | None = None
    type: str | None = None
    strict: bool | None = None
    cache_control: CacheControl = None


class AutoChoice(msgspec.Struct, frozen=True, tag_field="type", tag="auto"):
    """The model decides."""

    disable_parallel_tool_use: bool | None = None


class AnyChoice(msgspec.Struct, frozen=True, tag_field="type", tag="any"):
    """The model has to call a tool."""

    disable_parallel_tool_use: bool | None = None


class OneToolChoice(msgspec.Struct, frozen=True, tag_field="type", tag="tool"):
    """The model has to call this tool."""

    name: str
    disable_parallel_tool_use: bool | None = None


class NoChoice(msgspec.Struct, frozen=True, tag_field="type", tag="none"):
    """The model calls no tool."""


class SchemaFormat(msgspec.Struct, frozen=True, tag_field="type", tag="json_schema"):
    """JSON that is an instance of a schema."""

    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True):
    """The form of the text, and how much the model should think ("low", "high", ...): a variable of its template."""

    format: SchemaFormat | None = None
    effort: str | None = None


class PromptFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of the prompt. None: not given, or given as null."""

    model: Annotated[
        str,
        Meta(description="Which of several loaded models, or which LoRA adapter; other names mean the only model."),
    ]
    messages: Messages
    system: Annotated[str | list[TextBlock], Meta(description="Instructions.")] | None = None
    tools: Annotated[list[ToolSpec], Meta(max_length=budgets.TOOLS.most)] | None = None
    tool_choice: AutoChoice | AnyChoice | OneToolChoice | NoChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: Annotated[SchemaFormat, Meta(description="The older name of output_config.format.")] | None = None
    cache_control: CacheControl = None


class MessagesRequest(PromptFields, frozen=True, kw_only=True):
    """The body of a request for a message."""

    max_tokens: Annotated[OneOrMore, Meta(description="Tokens to generate at most; fewer if the context ends.")]
    stream: Annotated[bool, Meta(description="Send the message in pieces, as events.")] | None = None
    stop_sequences: Annotated[list[Text], Meta(description="The text ends before one of these.")] | None = None
    temperature: (
        Annotated[float, Meta(ge=0, le=1, description="0: greedy. Unset: the checkpoint's, else 1.")] | None
    ) = None
    top_k: Annotated[int, Meta(ge=0, description="0: off.")] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1, description="Draw from the most likely tokens of this mass.")] | None = (
        None
    )

    # For the client's own records, or about Anthropic's service: without effect on the answer.
    metadata: Any = None
    service_tier: Any = None


FieldsT = TypeVar("FieldsT", bound=PromptFields)


@dataclass(frozen=True)
class ParsedMessages:
    """A request as received, and as a GenerateRequest."""

    fields: MessagesRequest
    request: GenerateRequest


def read_messages(body: dict[str, Any], model: ModelConfig) -> ParsedMessages:
    """Check and translate a request for a message.

    Raises:
        PayloadError, ParameterError: with the field's path and what was expected.
    """
    fields, ignored = _read(body, MessagesRequest, model)
    common = ThinkingFields(
        temperature=fields.temperature,
        top_k=fields.top_k,
        top_p=fields.top_p,
        stop=fields.stop_sequences,
        thinking=fields.thinking,
    )
    check_fields(common, fields.max_tokens, lambda name: _CALLED.get(name, name))
    chat = _chat(fields, model)
    format_, path = _format(fields)
    grammar = None if format_ is None else schema_grammar(format_.schema, f"{path}.schema")
    if grammar is not None and chat.tool_use is not None and chat.tool_use.forced:
        # The answer is a call, which follows the tool's own schema.
        ignored.append(path)
        grammar = None
    request = GenerateRequest(
        prompt=chat,
        sampling=sampling_params(common, model, max_new_tokens=fields.max_tokens, grammar=grammar),
        text=text_options(common),
        add_special_tokens=False,
        splits_reasoning=True,
        thinking_budget=thinking_budget(common),
        adapter=adapter_of_model(fields.model, model),
        ignored=tuple(sorted({*ignored, *without_effect(common, model)})),
    )
    return ParsedMessages(fields, request)


def read_prompt(body: dict[str, Any], model: ModelConfig) -> tuple[Chat, list[str]]:
    """(The chat of a request that only counts its tokens, the fields that have no effect).

    Raises:
        PayloadError, ParameterError: with the field's path and what was expected.
    """
    fields, ignored = _read(body, PromptFields, model)
    return _chat(fields, model), ignored


def _read(body: dict[str, Any], into: type[FieldsT], model: ModelConfig) -> tuple[FieldsT, list[str]]:
    for name, why in _REFUSED.items():
        if body.get(name):
            raise ParameterError(f"{name}: not served: {why}", name)
    fields = read_body(body, into, ("messages",))
    return fields, unknown_fields(body, into, model)


def _chat(fields: PromptFields, model: ModelConfig) -> Chat:
    made = TemplateMessages(fields.system, fields.messages, takes_images=model.checkpoint.takes_images)
    variables, sources = thinking_variables(ThinkingFields(thinking=fields.thinking))
    if fields.output_config is not None and fields.output_config.effort is not None:
        variables["reasoning_effort"] = fields.output_config.effort
        sources["reasoning_effort"] = "output_config.effort"
    continues = fields.messages[-1].role == "assistant"
    return Chat(
        messages=tuple(made.messages),
        images=tuple(made.images),
        tool_use=_tool_use(fields.tools or (), fields.tool_choice),
        continue_final=continues,
        add_generation_prompt=not continues,
        variables=variables,
        variable_fields=sources,
    )


def _tool_use(
    tools: Sequence[ToolSpec], choice: AutoChoice | AnyChoice | OneToolChoice | NoChoice | None
) -> ToolUse | None:
    functions = [_function(tool, f"tools[{i}]") for i, tool in enumerate(tools)]
    parallel = not getattr(choice, "disable_parallel_tool_use", False)
    chosen: str | FunctionName
    match choice:
        case OneToolChoice(name=name):
            chosen = FunctionName(name)
        case AnyChoice():
            chosen = "required"
        case NoChoice():
            chosen = "none"
        case _:
            chosen = "auto"
    return tool_use(functions, chosen, parallel, _TOOL_FIELDS)


def _function(tool: ToolSpec, path: str) -> FunctionSpec:
    if tool.type not in (None, _CUSTOM):
        raise ParameterError(
            f'{path}.type: expected "{_CUSTOM}", a tool that the client runs, got {shown(tool.type)}', f"{path}.type"
        )
    if tool.input_schema is None:
        raise ParameterError(f"{path}.input_schema: required, expected an object", f"{path}.input_schema")
    return FunctionSpec(tool.name, tool.description, tool.input_schema, strict=tool.strict)


def _format(fields: PromptFields) -> tuple[SchemaFormat | None, str]:
    """(The form that the text must have, the field that says so)."""
    inner = None if fields.output_config is None else fields.output_config.format
    if inner is not None and fields.output_format is not None:
        raise ParameterError("output_format: not together with output_config.format", "output_format")
    return (fields.output_format, "output_format") if inner is None else (inner, "output_config.format")
