"""The bodies of Ollama's chats and prompts, and their translation to a GenerateRequest. Runs in the worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from ...config import ModelConfig
from ...core import budgets
from ...core.errors import ParameterError, PayloadError
from ...core.types import Chat, GenerateRequest, Grammar, ImageSource, ToolUse
from ..shared.adapters import adapter_of_model
from ..shared.chat.messages import CalledFunction, made_call
from ..shared.chat.thinking import SWITCHES
from ..shared.chat.tools import Tools, tool_use
from ..shared.fields.generation import (
    UNBOUNDED,
    GenerationFields,
    Penalty,
    Share,
    check_fields,
    sampling_params,
    text_options,
    without_effect,
)
from ..shared.fields.structured_output import Text, schema_grammar
from ..shared.typed_body import read_body, unknown_fields
from .keep_alive import KeepAlive
from .names import bare_name

_JSON: Final = "json"
#: Values of num_predict that mean "until the context ends".
_ENDLESS: Final = (-1, -2)

Images = Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(description="Images in base64.")]


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to generate. Options about Ollama's own runner (num_ctx, num_gpu, mirostat ...) have no effect here."""

    num_predict: Annotated[int, Meta(ge=-2, description="Tokens at most; below 0: as many as fit.")] | None = None
    temperature: Annotated[float, Meta(ge=0, description="0: greedy.")] | None = None
    top_k: Annotated[int, Meta(ge=-1, description="-1 and 0: off.")] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    typical_p: Share | None = None
    repeat_penalty: Annotated[float, Meta(gt=0)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: int | None = None
    stop: Text | list[Text] | None = None


class OllamaFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that chats and prompts share."""

    model: Annotated[str, Meta(description="The model's name, with or without `:latest`.")]
    stream: Annotated[bool, Meta(description="Send a line for each piece; true if absent.")] | None = None
    format: (
        Annotated[dict[str, Any] | Literal["json", ""], Meta(description='"json", or a JSON schema of the answer.')]
        | None
    ) = None
    options: ModelOptions | None = None
    think: (
        Annotated[bool | Literal["low", "medium", "high"], Meta(description="Whether, or how much, to reason.")] | None
    ) = None
    keep_alive: KeepAlive | None = None


class OllamaFunction(msgspec.Struct, frozen=True):
    """A call's function, with its arguments."""

    name: str
    arguments: dict[str, Any] = {}


class OllamaCall(msgspec.Struct, frozen=True):
    """A call that an earlier answer made."""

    function: OllamaFunction
    id: str = ""


class OllamaMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a chat."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    images: Images | None = None
    thinking: str | None = None
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaChatRequest(OllamaFields, frozen=True, kw_only=True):
    """The body of a chat."""

    messages: Annotated[
        list[OllamaMessage],
        Meta(max_length=budgets.MESSAGES.most, description="The chat so far; none: only load the model."),
    ]
    tools: Tools | None = None


class OllamaGenerateRequest(OllamaFields, frozen=True, kw_only=True):
    """The body of a prompt, which becomes a chat of one message unless it is `raw`."""

    prompt: Annotated[str, Meta(description='"": only load the model.')] = ""
    system: Annotated[str, Meta(description="Instructions.")] | None = None
    images: Images | None = None
    raw: Annotated[bool, Meta(description="Give the model the prompt as it is.")] | None = None
    suffix: (
        Annotated[
            str,
            Meta(description="Text after the answer, of models with tokens for that; `prompt` is what is before it."),
        ]
        | None
    ) = None
    template: Annotated[str, Meta(description="Another chat template: not served.")] | None = None
    context: Annotated[Any, Meta(description="Without effect: an earlier answer's tokens.")] = None


FieldsT = TypeVar("FieldsT", bound=OllamaFields)


@dataclass(frozen=True)
class ParsedOllama:
    """A request as received, and as GenerateRequests: none where the model is only to be loaded."""

    fields: OllamaFields
    requests: tuple[GenerateRequest, ...]
    ignored: tuple[str, ...]


def read_chat(body: dict[str, Any], model: ModelConfig) -> ParsedOllama:
    """Check and translate a chat.

    Raises:
        PayloadError, ParameterError: with the field's path and what was expected.
    """
    fields, ignored = _read(body, OllamaChatRequest, "messages", model)
    if not fields.messages:
        return ParsedOllama(fields, (), tuple(ignored))
    messages, images = _messages(fields.messages, model)
    tools = tool_use([tool.function for tool in fields.tools or ()], None, None)
    return _parsed(fields, _chat(messages, images, tools, fields.think), model, ignored)


def read_generate(body: dict[str, Any], model: ModelConfig) -> ParsedOllama:
    """Check and translate a prompt.

    Raises:
        PayloadError, ParameterError: with the field's path and what was expected.
    """
    fields, ignored = _read(body, OllamaGenerateRequest, "prompt", model)
    if fields.template:
        raise ParameterError("template: not served: the prompt is what the model's own chat template makes", "template")
    if fields.context:
        ignored.append("context")
    if not (fields.prompt or fields.suffix):
        return ParsedOllama(fields, (), tuple(ignored))
    if fields.suffix:
        if fields.images:
            raise ParameterError("images: not together with suffix", "images")
        if fields.system:
            ignored.append("system")
        return _parsed(fields, _infilling(fields.prompt, fields.suffix, fields.model, model), model, ignored)
    if fields.raw:
        if fields.images:
            raise ParameterError("images: not together with raw=true", "images")
        if fields.system:
            ignored.append("system")
        return _parsed(fields, fields.prompt, model, ignored)
    message = OllamaMessage(role="user", content=fields.prompt, images=fields.images)
    messages, images = _messages([message], model, path="")
    if fields.system:
        messages.insert(0, {"role": "system", "content": fields.system})
    return _parsed(fields, _chat(messages, images, None, fields.think), model, ignored)


def _infilling(before: str, after: str, name: str, model: ModelConfig) -> str:
    """The prompt that asks for what is between two texts; the error where the model can't is Ollama's own."""
    if model.checkpoint.infill_tokens is None:
        raise ParameterError(f"{name} does not support insert", "suffix")
    first, second, third = model.checkpoint.infill_tokens
    return f"{first}{before}{second}{after}{third}"


def _read(body: dict[str, Any], into: type[FieldsT], payload: str, model: ModelConfig) -> tuple[FieldsT, list[str]]:
    fields = read_body(body, into, (payload,))
    return fields, unknown_fields(body, into, model)


def _parsed(fields: OllamaFields, prompt: str | Chat, model: ModelConfig, ignored: list[str]) -> ParsedOllama:
    options = fields.options or ModelOptions()
    common = GenerationFields(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        typical_p=options.typical_p,
        repetition_penalty=options.repeat_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        seed=options.seed,
        stop=options.stop,
    )
    limit = options.num_predict
    if limit == 0:
        raise ParameterError("options.num_predict: expected an integer >= 1, -1 or -2, got 0", "options.num_predict")
    most = UNBOUNDED if limit is None or limit in _ENDLESS else limit
    check_fields(common, most, "options.{}".format)
    raw = isinstance(prompt, str)
    request = GenerateRequest(
        prompt=prompt,
        sampling=sampling_params(common, model, max_new_tokens=most, grammar=_grammar(fields.format)),
        text=text_options(common),
        add_special_tokens=raw,
        splits_reasoning=not raw,
        adapter=adapter_of_model(bare_name(fields.model), model),
        ignored=tuple(sorted({*ignored, *(f"options.{name}" for name in without_effect(common, model))})),
    )
    return ParsedOllama(fields, (request,), request.ignored)


def _grammar(format_: dict[str, Any] | str | None) -> Grammar | None:
    if isinstance(format_, dict):
        return schema_grammar(format_, "format")
    return Grammar("json_object", field="format") if format_ == _JSON else None


def _chat(
    messages: Sequence[dict[str, Any]], images: Sequence[ImageSource], tools: ToolUse | None, think: bool | str | None
) -> Chat:
    variables: dict[str, Any] = {}
    if isinstance(think, str):
        variables = dict.fromkeys(SWITCHES, True) | {"reasoning_effort": think}
    elif think is not None:
        variables = dict.fromkeys(SWITCHES, think)
    continues = messages[-1]["role"] == "assistant"
    return Chat(
        messages=tuple(messages),
        images=tuple(images),
        tool_use=tools,
        continue_final=continues,
        add_generation_prompt=not continues,
        variables=variables,
        variable_fields=dict.fromkeys(variables, "think"),
    )


def _messages(
    messages: Sequence[OllamaMessage], model: ModelConfig, path: str | None = None
) -> tuple[list[dict[str, Any]], list[ImageSource]]:
    """(The messages for a chat template, the sources of their images); `path` is the message's, if it is only one."""
    made: list[dict[str, Any]] = []
    sources: list[ImageSource] = []
    for i, message in enumerate(messages):
        at = f"messages[{i}]." if path is None else path
        shape: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.images:
            if not model.checkpoint.takes_images:
                raise PayloadError(f"{at}images: this model does not take images, expected text", f"{at}images")
            shape["content"] = [{"type": "image"}] * len(message.images) + [{"type": "text", "text": message.content}]
            sources += [
                ImageSource(f"data:image/png;base64,{data}", f"{at}images[{j}]")
                for j, data in enumerate(message.images)
            ]
        if message.thinking is not None:
            shape["reasoning_content"] = message.thinking
        if message.tool_calls:
            shape["tool_calls"] = [
                made_call(
                    CalledFunction(call.function.name, call.function.arguments),
                    call.id,
                    f"{at}tool_calls[{j}].function.arguments",
                )
                for j, call in enumerate(message.tool_calls)
            ]
        if message.tool_name is not None:
            shape["name"] = message.tool_name
        if message.tool_call_id is not None:
            shape["tool_call_id"] = message.tool_call_id
        made.append(shape)
    return made, sources
