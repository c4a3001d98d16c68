"""The answer to a chat, whole or as a stream of chunks: OpenAI's objects, of which LMI's chat schema has a part.

Runs in the worker. A token's `bytes` are its own, a part of a character perhaps; joined, they are the answer's, and
those of the token that ended it.
Sources: OpenAI's API reference (chat completions), LMI's chat schema 0.31, TGI 2.3.2's OpenAPI document.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ....core.types import Delta, Finish, FinishReason, Token, ToolCallDelta, TopToken
from ..framing import DoneFormatter, around

ROLE: Final = "assistant"


# ------------------------------------------------------------------------------------------------ shapes


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


class ChatChoice(msgspec.Struct, frozen=True):
    """One of the answers."""

    index: int
    message: AnswerMessage
    logprobs: Logprobs | None
    finish_reason: str


class AnswerDelta(msgspec.Struct, frozen=True):
    """A piece of the model's message."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, frozen=True):
    """A piece of one of the answers; the last has the finish_reason."""

    index: int
    delta: AnswerDelta
    logprobs: Logprobs | None
    finish_reason: str | None


class CompletionDetails(msgspec.Struct, frozen=True):
    """Which of the completion's tokens were reasoning, the marks around it included."""

    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Token counts. There are details if the model's reasoning is split off."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: CompletionDetails | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a chat. LMI's has neither `model` nor `system_fingerprint`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET
    choices: list[ChatChoice]
    usage: Usage


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One object of a stream. With include_usage, the last has `usage` and no choices; in the others it is null."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET


class UsageCount:
    """Counts the tokens of an answer: each prompt once, however many sequences it has."""

    def __init__(self, sequences_per_prompt: int = 1) -> None:
        self._sequences_per_prompt = sequences_per_prompt
        self._prompts: dict[int, int] = {}
        self._completion_tokens = 0
        self._reasoning_tokens: int | None = None

    def add(self, choice: int, finish: Finish) -> None:
        """Count a sequence that has ended."""
        self._prompts[choice // self._sequences_per_prompt] = finish.prompt_tokens
        self._completion_tokens += finish.generated_tokens
        if finish.reasoning_tokens is not None:
            self._reasoning_tokens = (self._reasoning_tokens or 0) + finish.reasoning_tokens

    def usage(self) -> Usage:
        """The token counts of the sequences that have ended."""
        prompt_tokens = sum(self._prompts.values())
        details = UNSET if self._reasoning_tokens is None else CompletionDetails(self._reasoning_tokens)
        return Usage(prompt_tokens, self._completion_tokens, prompt_tokens + self._completion_tokens, details)


# ------------------------------------------------------------------------------------------------ the formatter


@dataclass(frozen=True)
class ChatStyle:
    """How the APIs' answers differ.

    Attributes:
        finish_reasons: the API's names of the reasons.
        tool_calls_reason: the reason to report if the model called tools; None: the same as without tools.
        model, system_fingerprint: put into every object if set.
        role_always: whether every delta has role and content (TGI), instead of the role in the first only.
        refusals: whether to write `refusal` where OpenAI has it.
    """

    finish_reasons: Mapping[FinishReason, str]
    tool_calls_reason: str | None = None
    model: str | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET
    role_always: bool = False
    refusals: bool = False


@dataclass(slots=True)
class _Sequence:
    """One answer so far. Texts and tokens are kept only if they are not streamed.

    Attributes:
        chunk: encodes a chunk from its text alone; set once a stream without logprobs has begun, and used for all
            chunks but the last and those with reasoning or tool calls.
    """

    chunk: Callable[[str], bytes] | None = None
    begun: bool = False
    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    calls: dict[int, list[ToolCallDelta]] = field(default_factory=dict)
    finish: Finish | None = None


class ChatFormatter(DoneFormatter):
    """The answer to one chat; a subclass says what an error looks like in a stream.

    Args:
        framing: json, jsonlines or sse; the last two stream.
        logprobs: whether the client asked for them.
        include_usage: whether a stream ends with the usage.
        headers: further response headers.

    Attributes:
        id: the answer's id, in each of its objects.
    """

    def __init__(
        self,
        framing: str,
        style: ChatStyle,
        *,
        logprobs: bool = False,
        include_usage: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(framing, headers)
        self._style = style
        self.shows_logprobs = logprobs
        self._include_usage = include_usage
        self.id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._sequences: defaultdict[int, _Sequence] = defaultdict(_Sequence)
        self._count = UsageCount()
        self._refusal: UnsetType | None = None if style.refusals else UNSET

    def push(self, delta: Delta) -> bytes:
        sequence = self._sequences[delta.choice]
        if sequence.chunk is not None and delta.finish is None and not (delta.tool_calls or delta.reasoning):
            return sequence.chunk(delta.text) if delta.text else b""
        for call in delta.tool_calls:
            sequence.calls.setdefault(call.index, []).append(call)
        if delta.finish is not None:
            self._count.add(0, delta.finish)
            sequence.finish = delta.finish
        if self.stream:
            return self._piece(sequence, delta)
        sequence.texts.append(delta.text)
        sequence.reasoning.append(delta.reasoning)
        if self.shows_logprobs:
            sequence.tokens += delta.tokens
        return b""

    def end(self) -> bytes:
        if not self.stream:
            return self._encode(self._whole())
        if not self._include_usage:
            return self._done
        return self._encode(self._chunk([], self._count.usage())) + self._done

    def _piece(self, sequence: _Sequence, delta: Delta) -> bytes:
        """A chunk; b"" if the step has nothing to report (half a character, say)."""
        said = delta.text or delta.reasoning or delta.tool_calls
        if not (said or delta.finish is not None or (self.shows_logprobs and delta.tokens)):
            return b""
        chunk = self._piece_of(sequence, delta)
        if sequence.chunk is None and not self.shows_logprobs and sequence.finish is None:
            sequence.chunk = around(lambda text: self._piece_of(sequence, Delta(choice=delta.choice, text=text)))
        return chunk

    def _piece_of(self, sequence: _Sequence, delta: Delta) -> bytes:
        choice = ChunkChoice(
            index=delta.choice,
            delta=self._delta(sequence, delta),
            logprobs=self._logprobs_of(delta.tokens),
            finish_reason=None if delta.finish is None else self._reason(sequence),
        )
        return self._encode(self._chunk([choice], None if self._include_usage else UNSET))

    def _delta(self, sequence: _Sequence, delta: Delta) -> AnswerDelta:
        named = self._style.role_always or not sequence.begun
        sequence.begun = True
        # Reasoning and tool calls come without content, and so does a last delta without text.
        other = delta.reasoning or delta.tool_calls
        wordless = not delta.text and (other or not (named or (self.shows_logprobs and delta.tokens)))
        return AnswerDelta(
            role=ROLE if named else UNSET,
            content=UNSET if wordless else delta.text,
            reasoning_content=delta.reasoning or UNSET,
            reasoning=delta.reasoning or UNSET,
            tool_calls=[_call_piece(call) for call in delta.tool_calls] or UNSET,
        )

    def _chunk(self, choices: list[ChunkChoice], usage: Usage | UnsetType | None) -> ChatChunk:
        return ChatChunk(
            id=self.id,
            created=self._created,
            model=self._style.model,
            system_fingerprint=self._style.system_fingerprint,
            choices=choices,
            usage=usage,
        )

    def _whole(self) -> ChatCompletion:
        return ChatCompletion(
            id=self.id,
            created=self._created,
            model=self._style.model,
            system_fingerprint=self._style.system_fingerprint,
            choices=[
                ChatChoice(
                    index=index,
                    message=self._message(sequence),
                    logprobs=self._logprobs_of(sequence.tokens),
                    finish_reason=self._reason(sequence),
                )
                for index, sequence in sorted(self._sequences.items())
            ],
            usage=self._count.usage(),
        )

    def _message(self, sequence: _Sequence) -> AnswerMessage:
        text, reasoning = "".join(sequence.texts), "".join(sequence.reasoning)
        split = sequence.finish is not None and sequence.finish.reasoning_tokens is not None
        shown = (reasoning or None) if split else UNSET
        return AnswerMessage(
            role=ROLE,
            content=None if (sequence.calls or reasoning) and not text else text,
            reasoning_content=shown,
            reasoning=shown,
            refusal=self._refusal,
            tool_calls=[_call(pieces) for _, pieces in sorted(sequence.calls.items())] or UNSET,
        )

    def _reason(self, sequence: _Sequence) -> str:
        assert sequence.finish is not None
        reason = sequence.finish.reason
        called = self._style.tool_calls_reason
        if called is not None and sequence.calls and not _is_cut(sequence.calls, reason):
            return called
        return self._style.finish_reasons[reason]

    def _logprobs_of(self, tokens: Sequence[Token]) -> Logprobs | None:
        if not self.shows_logprobs:
            return None
        return Logprobs([_token_logprob(token) for token in tokens], self._refusal)


def _token_logprob(token: Token) -> TokenLogprob:
    own = token.alternative
    assert own is not None  # only the first prompt token has no log-probability
    return TokenLogprob(own.text, own.logprob, list(own.own_bytes), [_alternative(one) for one in token.top])


def _alternative(token: TopToken) -> Alternative:
    return Alternative(token.text, token.logprob, list(token.own_bytes))


def _is_cut(calls: Mapping[int, Sequence[ToolCallDelta]], reason: FinishReason) -> bool:
    """Whether a limit has cut off the calls, or a stop sequence the last: what is left of its arguments is no JSON."""
    if reason is not FinishReason.STOP:
        return reason is FinishReason.LENGTH
    try:
        json.loads("".join(piece.arguments for piece in calls[max(calls)]))
    except (ValueError, RecursionError):
        return True
    return False


def _call_piece(call: ToolCallDelta) -> ToolCall:
    """A piece of a tool call in a stream; the first piece has id and name."""
    return ToolCall(
        index=call.index,
        id=call.id or UNSET,
        type="function" if call.id else UNSET,
        function=FunctionCall(name=call.name or UNSET, arguments=call.arguments),
    )


def _call(pieces: Sequence[ToolCallDelta]) -> ToolCall:
    """A whole tool call, from its pieces."""
    return ToolCall(
        id="".join(piece.id for piece in pieces),
        type="function",
        function=FunctionCall(
            name="".join(piece.name for piece in pieces), arguments="".join(piece.arguments for piece in pieces)
        ),
    )
