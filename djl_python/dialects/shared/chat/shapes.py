"""The shapes of a chat's answer, whole or in chunks: OpenAI's objects, of which LMI's chat schema has a part.

Runs in the worker. A token's `bytes` are its own, a part of a character perhaps; joined, they are the answer's, and
those of the token that ended it.
Sources: OpenAI's API reference (chat completions), LMI's chat schema 0.31, TGI 2.3.2's OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ....core.types import Token, ToolCallDelta, TopToken
from ..token_reports import PromptLogprobs, name_of
from .usage import Usage

ROLE: Final = "assistant"


class Alternative(msgspec.Struct, frozen=True):
    """A token and its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, frozen=True):
    """A generated token, and the likeliest tokens at its position."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[Alternative]


class Logprobs(msgspec.Struct, frozen=True):
    """Log-probabilities of the tokens of an answer, or of a piece of one."""

    content: list[TokenLogprob]
    refusal: UnsetType | None = UNSET


class FunctionCall(msgspec.Struct, frozen=True):
    """The function to call. `arguments` is JSON as text; in a stream it comes in pieces, after the name."""

    arguments: str
    name: str | UnsetType = UNSET


class ToolCall(msgspec.Struct, frozen=True):
    """A call that the model wants made. In a stream, `index` says which call a piece belongs to."""

    function: FunctionCall
    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class AnswerMessage(msgspec.Struct, frozen=True):
    """The model's message. `content` is null if it only calls tools, or ends within its reasoning.

    Reasoning is there, or null, if it is split off; clients know it by one of two names.
    """

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | UnsetType | None = UNSET
    reasoning: str | UnsetType | None = UNSET
    refusal: UnsetType | None = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET
    function_call: FunctionCall | UnsetType = UNSET  # where the request has `functions`


class ChatChoice(msgspec.Struct, frozen=True):
    """One of the answers; with return_token_ids, its tokens' ids."""

    index: int
    message: AnswerMessage
    logprobs: Logprobs | None
    finish_reason: str
    token_ids: list[int] | UnsetType = UNSET


class AnswerDelta(msgspec.Struct, frozen=True):
    """A piece of the model's message. Where reasoning is split off, its fields are in every piece, or null."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType | None = UNSET
    reasoning: str | UnsetType | None = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET
    function_call: FunctionCall | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, frozen=True):
    """A piece of one of the answers; the last has the finish_reason. With return_token_ids, its tokens' ids."""

    index: int
    delta: AnswerDelta
    logprobs: Logprobs | None
    finish_reason: str | None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a chat. LMI's has neither `model` nor `system_fingerprint`. `return_token_ids` and
    `prompt_logprobs` add the prompt's tokens.
    """

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One object of a stream. With include_usage, the last has `usage` and no choices; in the others it is null. With
    return_token_ids, the first of each answer has the prompt's."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


def token_logprob(token: Token, by_id: bool) -> TokenLogprob:
    """A generated token's log-probability; `by_id`: with its id for a name."""
    own = token.alternative
    assert own is not None  # only the first prompt token has no log-probability
    likeliest = [_alternative(alternative, by_id) for alternative in token.top]
    return TokenLogprob(name_of(own, by_id), own.logprob, list(own.own_bytes), likeliest)


def _alternative(token: TopToken, by_id: bool) -> Alternative:
    return Alternative(name_of(token, by_id), token.logprob, list(token.own_bytes))


def call_piece(call: ToolCallDelta) -> ToolCall:
    """A piece of a tool call in a stream; the first piece has id and name."""
    return ToolCall(
        index=call.index,
        id=call.id or UNSET,
        type="function" if call.id else UNSET,
        function=FunctionCall(name=call.name or UNSET, arguments=call.arguments),
    )


def whole_call(pieces: Sequence[ToolCallDelta]) -> ToolCall:
    """A whole tool call, from its pieces."""
    return ToolCall(id="".join(piece.id for piece in pieces), type="function", function=function_call(pieces))


def function_call(pieces: Sequence[ToolCallDelta]) -> FunctionCall:
    """The function of a call's pieces; the first piece has its name."""
    return FunctionCall(
        arguments="".join(piece.arguments for piece in pieces),
        name="".join(piece.name for piece in pieces) or UNSET,
    )
