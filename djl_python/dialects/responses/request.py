"""The body of a request for a response, and its translation to a GenerateRequest. Runs in the worker.

Source: OpenAI's API reference (create a response).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from ...config import ModelConfig
from ...core import budgets
from ...core.errors import ParameterError, PayloadError
from ...core.types import Chat, GenerateRequest, Grammar, ToolUse
from ..shared.adapters import adapter_of_model
from ..shared.chat.thinking import ThinkingFields
from ..shared.fields.generation import (
    UNBOUNDED,
    Alternatives,
    OneOrMore,
    Penalty,
    Priority,
    Salt,
    check_fields,
    sampling_params,
    text_options,
    without_effect,
)
from ..shared.fields.structured_output import Text, schema_grammar
from ..shared.typed_body import read_body, unknown_fields
from .errors import PREVIOUS, UnsupportedError
from .items import Items, typed, with_types
from .messages import TemplateMessages
from .shapes import ReasoningConfig, TextConfig, TextFormatObject, TextFormatSchema
from .tools import ResponseToolChoice, ResponseTools, chosen_tools, left_out

LOGPROBS: Final = "message.output_text.logprobs"
SEALED: Final = "reasoning.encrypted_content"
#: Fields for features that OpenAI's own servers run, and what there is instead.
_REFUSED: Final = {
    "conversation": "previous_response_id, or the items themselves in input, go on with a conversation",
    "prompt": "there are no prompt templates here: instructions and input have the prompt",
    "moderation": "nothing here moderates",
    "context_management": "nothing here compacts a conversation: the client does",
}
_FORMAT: Final = "text.format"
_KEPT_NOWHERE: Final = "no response is kept for this request"

Included = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class ResponseStreamOptions(msgspec.Struct, frozen=True):
    """Options of a stream. `include_obfuscation` has no effect."""

    include_obfuscation: bool | None = None


class ResponsesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a request for a response. None: not given, or given as null."""

    model: (
        Annotated[
            str,
            Meta(description="Which of several loaded models, or which LoRA adapter; other names mean the only model."),
        ]
        | None
    ) = None
    input: Annotated[str | Items, Meta(description="A text of the user's, or items. The answer follows.")]
    instructions: Annotated[str, Meta(description="What the model is told before everything else.")] | None = None
    previous_response_id: Annotated[str, Meta(description="A kept response, which this one goes on with.")] | None = (
        None
    )
    store: Annotated[bool, Meta(description="Whether to keep the response; true if absent.")] | None = None
    background: Annotated[bool, Meta(description="Answer at once, and generate afterwards.")] | None = None
    stream: Annotated[bool, Meta(description="Send the response in pieces, as events.")] | None = None
    stream_options: ResponseStreamOptions | None = None
    max_output_tokens: (
        Annotated[OneOrMore, Meta(description="Tokens to generate at most; fewer if the context ends.")] | None
    ) = None
    temperature: (
        Annotated[float, Meta(ge=0, le=2, description="0: greedy. Unset: the checkpoint's, else 1.")] | None
    ) = None
    top_p: Annotated[float, Meta(ge=0, le=1, description="Draw from the most likely tokens of this mass.")] | None = (
        None
    )
    top_logprobs: (
        Annotated[Alternatives, Meta(description=f"Alternatives to report with each token; include has {LOGPROBS}.")]
        | None
    ) = None
    include: Annotated[list[Included], Meta(description=f"What to add: {LOGPROBS}, {SEALED}.")] | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    tools: ResponseTools | None = None
    tool_choice: ResponseToolChoice | None = None
    parallel_tool_calls: Annotated[bool, Meta(description="false: one call at most.")] | None = None
    truncation: (
        Annotated[Literal["auto", "disabled"], Meta(description="No prompt is shortened: auto has no effect.")] | None
    ) = None
    metadata: (
        Annotated[
            dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
            Meta(max_length=16, description="The client's own labels, which the response shows."),
        ]
        | None
    ) = None

    # Labels, and hints about the speed of OpenAI's service: without effect on the answer.
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Any = None
    prompt_cache_options: Any = None
    service_tier: Any = None
    max_tool_calls: Annotated[Any, Meta(description="Of tools that OpenAI's servers run: without effect.")] = None

    # Extensions, as in chats.
    top_k: Annotated[int, Meta(ge=-1, description="-1 and 0: off.")] | None = None
    min_p: (
        Annotated[
            float, Meta(ge=0, le=1, description="Draw from tokens this likely, relative to the likeliest; 0: off.")
        ]
        | None
    ) = None
    seed: Annotated[int, Meta(description="Of the random numbers, 64 bits; drawn if absent.")] | None = None
    stop: Annotated[Text | list[Text], Meta(description="The text ends before such a text.")] | None = None
    presence_penalty: Annotated[Penalty, Meta(description="Lowers logits of generated tokens.")] | None = None
    frequency_penalty: Annotated[Penalty, Meta(description="The same, times the token's count.")] | None = None
    repetition_penalty: (
        Annotated[float, Meta(gt=0, description="Above 1, makes tokens of the prompt and the answer less likely.")]
        | None
    ) = None
    priority: Priority | None = None
    cache_salt: Salt | None = None
    chat_template_kwargs: (
        Annotated[
            dict[str, Any],
            Meta(max_length=budgets.TEMPLATE_VARIABLES.most, description="Variables of the chat template."),
        ]
        | None
    ) = None

    @property
    def included(self) -> frozenset[str]:
        """What `include` adds."""
        return frozenset(self.include or ())


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """What the front end knows of a request, where it keeps the response.

    Attributes:
        id: of the response.
        kept: whether the response will be kept.
        previous: the items of the responses that this one goes on with, the oldest first.
    """

    id: str = ""
    kept: bool = False
    previous: list[Any] = []


@dataclass(frozen=True)
class ParsedResponse:
    """A request as received, and as a GenerateRequest."""

    fields: ResponsesRequest
    request: GenerateRequest
    context: Context


def read_response(body: dict[str, Any], context: Context | None, model: ModelConfig) -> ParsedResponse:
    """Check and translate a request for a response.

    Args:
        context: the front end's; None: it has none.

    Raises:
        PayloadError, ParameterError: with the field's path and what was expected.
    """
    for name, instead in _REFUSED.items():
        if body.get(name):
            raise UnsupportedError(f"{name}: not served: {instead}", name)
    body = with_types(body)
    fields = read_body(body, ResponsesRequest, ("input",))
    ignored = unknown_fields(body, ResponsesRequest, model)
    _check(fields, context)
    known = context or Context()
    common = ThinkingFields(
        temperature=fields.temperature,
        top_p=fields.top_p,
        top_k=fields.top_k,
        min_p=fields.min_p,
        seed=fields.seed,
        stop=fields.stop,
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        repetition_penalty=fields.repetition_penalty,
        service_tier=fields.service_tier,
        prompt_cache_key=fields.prompt_cache_key,
        prompt_cache_retention=fields.prompt_cache_retention,
    )
    most = fields.max_output_tokens or UNBOUNDED
    check_fields(common, most)
    use = chosen_tools(fields.tools or (), fields.tool_choice, fields.parallel_tool_calls)
    ignored += left_out(fields.tools or ())
    grammar = _grammar(fields)
    if grammar is not None and use is not None and use.forced:
        ignored.append(_FORMAT)  # the answer is a call, which follows the tool's own schema
        grammar = None
    messages = _messages(fields, known, model)
    shows_logprobs = LOGPROBS in fields.included
    request = GenerateRequest(
        prompt=_chat(fields, messages, use),
        sampling=sampling_params(
            common,
            model,
            max_new_tokens=most,
            grammar=grammar,
            top_logprobs=(fields.top_logprobs or 0) if shows_logprobs else 0,
        ),
        text=text_options(common),
        add_special_tokens=False,
        splits_reasoning=True,
        adapter=adapter_of_model(fields.model, model),
        priority=fields.priority,
        cache_salt=fields.cache_salt or "",
        ignored=tuple(sorted({*ignored, *without_effect(common, model), *_ignored(fields, messages)})),
    )
    return ParsedResponse(fields, request, known)


def _check(fields: ResponsesRequest, context: Context | None) -> None:
    if fields.stream_options is not None and not fields.stream:
        raise ParameterError("stream_options: only with stream=true", "stream_options")
    if fields.previous_response_id is not None and context is None:
        raise UnsupportedError(f"{PREVIOUS}: {_KEPT_NOWHERE}", PREVIOUS)
    if not fields.background:
        return
    if fields.store is False:
        raise ParameterError("background: only where the response is kept, and store is false", "background")
    if context is None:
        raise UnsupportedError(f"background: {_KEPT_NOWHERE}", "background")


def _grammar(fields: ResponsesRequest) -> Grammar | None:
    match None if fields.text is None else fields.text.format:
        case TextFormatSchema(schema=schema):
            return schema_grammar(schema, f"{_FORMAT}.schema")
        case TextFormatObject():
            return Grammar("json_object")
    return None


def _messages(fields: ResponsesRequest, context: Context, model: ModelConfig) -> TemplateMessages:
    made = TemplateMessages(fields.instructions or "", takes_images=model.checkpoint.takes_images)
    try:
        previous = msgspec.convert(typed(context.previous), Items)
    except msgspec.ValidationError as exc:
        raise ParameterError(
            f"{PREVIOUS}: with the responses before it, it has items of other kinds: {exc}", PREVIOUS
        ) from exc
    made.add(previous, PREVIOUS)
    if isinstance(fields.input, str):
        made.say(fields.input)
    else:
        made.add(fields.input, "input")
    if made.is_empty:
        raise PayloadError("input: expected a non-empty array", "input")
    return made


def _chat(fields: ResponsesRequest, made: TemplateMessages, use: ToolUse | None) -> Chat:
    variables: dict[str, Any] = {}
    sources: dict[str, str] = {}
    if fields.reasoning is not None and fields.reasoning.effort is not None:
        variables["reasoning_effort"] = fields.reasoning.effort
        sources["reasoning_effort"] = "reasoning.effort"
    kwargs = fields.chat_template_kwargs or {}
    return Chat(
        messages=made.messages,
        images=tuple(made.images),
        tool_use=use,
        variables=variables | kwargs,
        variable_fields=sources | {name: f"chat_template_kwargs.{name}" for name in kwargs},
    )


def _ignored(fields: ResponsesRequest, made: TemplateMessages) -> list[str]:
    """The fields that were given and have no effect here, apart from those that chats have too."""
    effects = {
        "detail": not made.asks_for_detail,
        "include": fields.included <= {LOGPROBS, SEALED},
        "max_tool_calls": fields.max_tool_calls is None,
        "prompt_cache_options": fields.prompt_cache_options is None,
        "reasoning.summary": fields.reasoning is None or fields.reasoning.summary is None,
        "text.verbosity": fields.text is None or fields.text.verbosity in (None, "medium"),
        "top_logprobs": not fields.top_logprobs or LOGPROBS in fields.included,
        "truncation": fields.truncation != "auto",
    }
    return [name for name, effect in effects.items() if not effect]
