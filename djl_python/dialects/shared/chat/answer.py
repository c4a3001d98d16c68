"""The answer to a chat, whole or as a stream of chunks, in the shapes of `shapes`. Runs in the worker."""

from __future__ import annotations

import json
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType

from ....core.types import Delta, Finish, FinishReason, Token, ToolCallDelta
from ..framing import DoneFormatter, around
from ..token_reports import PromptLogprobs, prompt_logprobs
from .request import ChatRequest
from .shapes import (
    ROLE,
    AnswerDelta,
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChunkChoice,
    FunctionCall,
    Logprobs,
    ToolCall,
    call_piece,
    function_call,
    token_logprob,
    whole_call,
)
from .usage import Usage, UsageCount


@dataclass(frozen=True)
class ChatStyle:
    """The differences between APIs' answers.

    Attributes:
        finish_reasons: the API's names of the reasons.
        tool_calls_reason: the finish reason after tool calls; None: the usual one.
        model, system_fingerprint: put into every object if set.
        role_always: whether every delta has role and content, or tool calls (TGI); else the first alone has the role.
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
    generated: int = 0
    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    calls: dict[int, list[ToolCallDelta]] = field(default_factory=dict)
    finish: Finish | None = None


class ChatFormatter(DoneFormatter):
    """The answer to one chat; a subclass says what an error looks like in a stream.

    Args:
        framing: json, jsonlines or sse; the last two stream.
        fields: the request, which selects the parts of the answer.
        headers: further response headers.

    Attributes:
        id: the answer's id, in each of its objects.
    """

    def __init__(
        self,
        framing: str,
        style: ChatStyle,
        fields: ChatRequest,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(framing, headers)
        self._style = style
        self._fields = fields
        self.shows_logprobs = bool(fields.logprobs)
        self._shows_ids = bool(fields.return_token_ids)
        self._calls_functions = bool(fields.functions)  # as before there were tools
        self._prompt_ids: list[int] = []
        self.id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._sequences: defaultdict[int, _Sequence] = defaultdict(_Sequence)
        self._count = UsageCount()
        self._refusal: UnsetType | None = None if style.refusals else UNSET
        self._no_reasoning: UnsetType | None = UNSET  # a placeholder in pieces without reasoning

    def prepared(self, prompt_ids: Sequence[list[int]], *, splits_reasoning: bool) -> None:
        self._no_reasoning = None if splits_reasoning else UNSET
        self._prompt_ids = [token_id for ids in prompt_ids for token_id in ids]

    def push(self, delta: Delta) -> bytes:
        sequence = self._sequences[delta.choice]
        if sequence.chunk is not None and delta.finish is None and not (delta.tool_calls or delta.reasoning):
            return sequence.chunk(delta.text) if delta.text else b""
        sequence.generated += len(delta.tokens)
        for call in delta.tool_calls:
            sequence.calls.setdefault(call.index, []).append(call)
        if delta.finish is not None:
            self._count.add(0, delta.finish)
            sequence.finish = delta.finish
        if self.stream:
            return self._piece(sequence, delta)
        sequence.texts.append(delta.text)
        sequence.reasoning.append(delta.reasoning)
        if self.shows_logprobs or self._shows_ids:
            sequence.tokens += delta.tokens
        return b""

    def end(self) -> bytes:
        if not self.stream:
            return self._encode(self._whole())
        if not self._fields.include_usage:
            return self._done
        return self._encode(self._chunk([], self._count.usage())) + self._done

    def _piece(self, sequence: _Sequence, delta: Delta) -> bytes:
        """A chunk; b"" if the step has nothing to report (half a character, say)."""
        content = delta.text or delta.reasoning or delta.tool_calls
        if not (content or delta.finish is not None or (self._reports_tokens and delta.tokens)):
            return b""
        chunk = self._piece_of(sequence, delta)
        alike = not (self._reports_tokens or self._fields.continuous_usage)
        if sequence.chunk is None and alike and sequence.finish is None:
            sequence.chunk = around(lambda text: self._piece_of(sequence, Delta(choice=delta.choice, text=text)))
        return chunk

    def _piece_of(self, sequence: _Sequence, delta: Delta) -> bytes:
        first = not sequence.begun
        choice = ChunkChoice(
            index=delta.choice,
            delta=self._delta(sequence, delta),
            logprobs=self._logprobs_of(delta.tokens),
            finish_reason=None if delta.finish is None else self._reason(sequence),
            token_ids=self._ids_of(delta.tokens),
        )
        prompt_ids = self._prompt_ids if first and self._shows_ids else UNSET
        return self._encode(self._chunk([choice], self._usage_so_far(sequence), prompt_ids))

    def _usage_so_far(self, sequence: _Sequence) -> Usage | UnsetType | None:
        if not self._fields.continuous_usage:
            return None if self._fields.include_usage else UNSET
        done, prompt_tokens = sequence.finish, len(self._prompt_ids)
        generated = sequence.generated if done is None else done.generated_tokens
        return Usage(prompt_tokens, generated, prompt_tokens + generated)

    @property
    def _reports_tokens(self) -> bool:
        """Whether the answer reports tokens that have no text yet."""
        return self.shows_logprobs or self._shows_ids

    def _delta(self, sequence: _Sequence, delta: Delta) -> AnswerDelta:
        named = self._style.role_always or not sequence.begun
        sequence.begun = True
        # Reasoning and tool calls come without content, and so does a last delta without text.
        calls = [call_piece(call) for call in delta.tool_calls]
        if self._style.role_always and delta.finish is not None and sequence.calls and not (calls or delta.text):
            calls = [ToolCall(index=max(sequence.calls), function=FunctionCall(arguments=""))]
        other = delta.reasoning or calls
        wordless = not delta.text and (other or not (named or (self._reports_tokens and delta.tokens)))
        return AnswerDelta(
            role=ROLE if named else UNSET,
            content=UNSET if wordless else delta.text,
            reasoning_content=delta.reasoning or self._no_reasoning,
            reasoning=delta.reasoning or self._no_reasoning,
            tool_calls=UNSET if self._calls_functions else calls or UNSET,
            function_call=function_call(delta.tool_calls) if self._calls_functions and calls else UNSET,
        )

    def _chunk(
        self,
        choices: list[ChunkChoice],
        usage: Usage | UnsetType | None,
        prompt_ids: list[int] | UnsetType = UNSET,
    ) -> ChatChunk:
        return ChatChunk(
            id=self.id,
            created=self._created,
            model=self._style.model,
            system_fingerprint=self._style.system_fingerprint,
            choices=choices,
            usage=usage,
            prompt_token_ids=prompt_ids,
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
                    token_ids=self._ids_of(sequence.tokens),
                )
                for index, sequence in sorted(self._sequences.items())
            ],
            usage=self._count.usage(),
            prompt_token_ids=self._prompt_ids if self._shows_ids else UNSET,
            prompt_logprobs=self._prompt_logprobs(),
        )

    def _prompt_logprobs(self) -> PromptLogprobs | UnsetType:
        alternatives = self._fields.reported_prompt_logprobs
        finishes = [sequence.finish for sequence in self._sequences.values() if sequence.finish is not None]
        if alternatives is None or not finishes:
            return UNSET
        return prompt_logprobs(finishes[0].prefill, alternatives)

    def _message(self, sequence: _Sequence) -> AnswerMessage:
        text, reasoning = "".join(sequence.texts), "".join(sequence.reasoning)
        split = sequence.finish is not None and sequence.finish.reasoning_tokens is not None
        shown = (reasoning or None) if split else UNSET
        calls = [whole_call(pieces) for _, pieces in sorted(sequence.calls.items())]
        return AnswerMessage(
            role=ROLE,
            content=None if (sequence.calls or reasoning) and not text else text,
            reasoning_content=shown,
            reasoning=shown,
            refusal=self._refusal,
            tool_calls=UNSET if self._calls_functions else calls or UNSET,
            function_call=calls[0].function if self._calls_functions and calls else UNSET,
        )

    def _reason(self, sequence: _Sequence) -> str:
        assert sequence.finish is not None
        reason = sequence.finish.reason
        if (
            (called := self._style.tool_calls_reason) is not None
            and sequence.calls
            and not _is_cut(sequence.calls, reason)
        ):
            return "function_call" if self._calls_functions else called
        return self._style.finish_reasons[reason]

    def _logprobs_of(self, tokens: Sequence[Token]) -> Logprobs | None:
        if not self.shows_logprobs:
            return None
        by_id = bool(self._fields.return_tokens_as_token_ids)
        return Logprobs([token_logprob(token, by_id) for token in tokens], self._refusal)

    def _ids_of(self, tokens: Sequence[Token]) -> list[int] | UnsetType:
        return [token.id for token in tokens] if self._shows_ids else UNSET


def _is_cut(calls: Mapping[int, Sequence[ToolCallDelta]], reason: FinishReason) -> bool:
    """Whether a limit or a stop sequence has cut off the last call, whose arguments are no JSON then."""
    if reason is not FinishReason.STOP:
        return reason is FinishReason.LENGTH
    try:
        json.loads("".join(piece.arguments for piece in calls[max(calls)]))
    except (ValueError, RecursionError):
        return True
    return False
