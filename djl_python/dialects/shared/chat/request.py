"""A chat request: OpenAI's fields, of which LMI's chat schema has a part, and their translation to a GenerateRequest.

Runs in the worker. Sources: OpenAI's API reference (chat completions), LMI's chat schema 0.31, TGI 2.3.2's OpenAPI
document. Under option.tgi_compat a final assistant message is continued, as in TGI.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from ....config import ModelConfig
from ....core import budgets
from ....core.errors import ParameterError
from ....core.types import Branching, Chat, GenerateRequest, ToolUse
from ..adapters import adapter_of_model
from ..fields.generation import (
    UNBOUNDED,
    Alternatives,
    OneOrMore,
    check_fields,
    sampling_params,
    text_options,
    without_effect,
)
from ..fields.structured_output import grammar_of, grammars_of, refuse_restrictions
from ..token_reports import check_reports, reports_without_effect
from ..typed_body import read_body, unknown_fields
from .messages import (
    AssistantMessage,
    Messages,
    asks_for_detail,
    image_sources,
    template_messages,
    with_other_roles,
)
from .thinking import ThinkingFields, thinking_budget, thinking_variables
from .tools import FUNCTIONS, FunctionChoice, Functions, NamedTool, ToolChoice, Tools, tool_use

#: Fields that chat templates may read.
_VARIABLES: Final = ("guideline", "reasoning_effort")


class ChatRequest(ThinkingFields, frozen=True, kw_only=True):
    """The body of a chat request."""

    messages: Annotated[Messages, Meta(description="The chat so far; the answer follows.")]
    max_completion_tokens: Annotated[OneOrMore, Meta(description="The newer name of max_tokens.")] | None = None
    logprobs: Annotated[bool, Meta(description="Report each token's log-probability.")] | None = None
    top_logprobs: (
        Annotated[Alternatives, Meta(description="Alternatives to report with each token; needs logprobs.")] | None
    ) = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    functions: Functions | None = None
    function_call: FunctionChoice | None = None
    parallel_tool_calls: Annotated[bool, Meta(description="false: one call at most.")] | None = None
    modalities: (
        Annotated[
            list[Annotated[str, Meta(extra_json_schema={"const": "text"})]],
            Meta(description="Only text.", extra_json_schema={"minItems": 1, "maxItems": 1}),
        ]
        | None
    ) = None

    # Extensions.
    guideline: Annotated[str, Meta(description="TGI's: a variable of the chat template.")] | None = None
    tool_prompt: (
        Annotated[
            str,
            Meta(
                description="TGI's: introduces the tools of a forced call to a model whose chat template has no place "
                "for tools.",
                examples=["Call one of these functions; answer with its name and arguments in JSON."],
            ),
        ]
        | None
    ) = None
    add_generation_prompt: (
        Annotated[bool, Meta(description="Begin an answer after the messages; true if absent.")] | None
    ) = None
    continue_final_message: Annotated[bool, Meta(description="Go on with the last message.")] | None = None
    chat_template_kwargs: (
        Annotated[
            dict[str, Any],
            Meta(max_length=budgets.TEMPLATE_VARIABLES.most, description="Variables of the chat template."),
        ]
        | None
    ) = None


@dataclass(frozen=True)
class ParsedChat:
    """A chat request as received, and as a GenerateRequest."""

    fields: ChatRequest
    request: GenerateRequest


def read_chat(body: dict[str, Any], model: ModelConfig, *, must_fit: bool) -> ParsedChat:
    """Check and translate a chat request.

    Args:
        must_fit: whether max_tokens beyond the context is an error; otherwise the context ends the answer.

    Raises:
        PayloadError: about the messages.
        ParameterError: about anything else.
    """
    refuse_restrictions(body)
    typed = with_other_roles(body)
    fields = read_body(typed, ChatRequest, payload=("messages",))
    roles = [message["role"] for message in body["messages"]]
    ignored = unknown_fields(typed, ChatRequest, model)
    max_tokens = _max_tokens(fields)
    check_fields(fields, max_tokens or UNBOUNDED)
    check_reports(fields)
    _check(fields)
    tools = _tools(fields)
    if tools is not None and fields.tool_prompt:
        tools = msgspec.structs.replace(tools, prompt=fields.tool_prompt)
    grammar = grammar_of(fields)
    if grammar is not None and fields.tools is not None and model.option.tgi_compat:  # an empty list of them, too
        raise ParameterError("Grammar and tools are mutually exclusive", next(iter(grammars_of(fields))))
    if grammar is not None and tools is not None and tools.forced:
        # The answer is a forced tool call, which follows the tool's own schema instead.
        ignored += grammars_of(fields)
        grammar = None
    if fields.tool_prompt and tools is None:
        ignored.append("tool_prompt")
    n = fields.n or 1
    ignored += without_effect(fields, model) + reports_without_effect(fields, logprobs=bool(fields.logprobs))
    if asks_for_detail(fields.messages):
        ignored.append("detail")
    request = GenerateRequest(
        prompt=_chat(fields, roles, tools, model),
        sampling=sampling_params(
            fields,
            model,
            max_new_tokens=max_tokens or UNBOUNDED,
            grammar=grammar,
            top_logprobs=fields.top_logprobs or 0,
            prompt_logprobs=fields.reported_prompt_logprobs,
        ),
        branching=Branching(n=n, best_of=n),
        text=text_options(fields),
        add_special_tokens=False,
        truncate=fields.truncate_prompt_tokens,
        splits_reasoning=True,
        thinking_budget=thinking_budget(fields),
        must_fit=must_fit and max_tokens is not None,
        bad_sequences=tuple(fields.bad_words or ()),
        adapter=adapter_of_model(fields.model, model),
        priority=fields.priority,
        cache_salt=fields.cache_salt or "",
        ignored=tuple(sorted(set(ignored))),
    )
    return ParsedChat(fields, request)


def _max_tokens(fields: ChatRequest) -> int | None:
    old, new = fields.max_tokens, fields.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise ParameterError("max_completion_tokens: the same as max_tokens, and they differ", "max_completion_tokens")
    if old == 0:
        raise ParameterError("max_tokens: expected an integer >= 1, got 0", "max_tokens")
    return old if new is None else new


def _check(fields: ChatRequest) -> None:
    if fields.top_logprobs and not fields.logprobs:  # 0, vLLM's default, asks for none
        raise ParameterError("top_logprobs: only with logprobs=true", "top_logprobs")
    if fields.modalities is not None and fields.modalities != ["text"]:
        raise ParameterError('modalities: expected ["text"]', "modalities")
    if fields.continue_final_message:
        if fields.add_generation_prompt:
            raise ParameterError(
                "continue_final_message: not together with add_generation_prompt=true", "continue_final_message"
            )
        if not isinstance(fields.messages[-1], AssistantMessage):
            raise ParameterError(
                "continue_final_message: expected a last message of role assistant", "continue_final_message"
            )


def _tools(fields: ChatRequest) -> ToolUse | None:
    """The tools of a chat: `tools`, or `functions`, which are called one at a time."""
    if fields.functions is None and fields.function_call is None:
        choice = fields.tool_choice.function if isinstance(fields.tool_choice, NamedTool) else fields.tool_choice
        functions = None if fields.tools is None else [tool.function for tool in fields.tools]
        return tool_use(functions, choice, fields.parallel_tool_calls)
    for name in ("tools", "tool_choice"):
        if getattr(fields, name) is not None:
            raise ParameterError(f"{name}: not together with functions or function_call", name)
    return tool_use(fields.functions, fields.function_call, False, FUNCTIONS)


def _chat(fields: ChatRequest, roles: Sequence[str], tools: ToolUse | None, model: ModelConfig) -> Chat:
    variables = {name: value for name in _VARIABLES if (value := getattr(fields, name)) is not None}
    wishes, sources = thinking_variables(fields)
    kwargs = fields.chat_template_kwargs or {}
    return Chat(
        messages=template_messages(fields.messages, roles, takes_images=model.checkpoint.takes_images),
        images=image_sources(fields.messages),
        tool_use=tools,
        continue_final=_continues(fields, model),
        add_generation_prompt=fields.add_generation_prompt is not False,
        variables=variables | wishes | kwargs,
        variable_fields=sources | {name: f"chat_template_kwargs.{name}" for name in kwargs},
    )


def _continues(fields: ChatRequest, model: ModelConfig) -> bool:
    if fields.continue_final_message is not None or not model.option.tgi_compat:
        return bool(fields.continue_final_message)
    last = fields.messages[-1]
    return isinstance(last, AssistantMessage) and not last.tool_calls and not fields.add_generation_prompt
