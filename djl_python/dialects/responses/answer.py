"""The answer to a request: the response whole, or as a stream of events. Runs in the worker.

The output is a list of items: reasoning, messages, calls, in the order in which the model writes them. In a stream an
item begins, gets deltas, and is done, before the next one begins.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec import UNSET
from msgspec.structs import replace

from ...core.errors import ServingError
from ...core.types import Delta, Finish, FinishReason, Token
from ...formats.json_framing import JSON, SSE, SSE_KEEP_ALIVE, encode_json
from ..shared.base import Formatter
from ..shared.chat.shapes import TokenLogprob, token_logprob
from ..shared.openai.responses import QUEUED_EVENTS
from .errors import error_event, failure_of
from .events import (
    ArgumentsDelta,
    ArgumentsDone,
    Event,
    ItemAdded,
    ItemDone,
    OutputTextDelta,
    OutputTextDone,
    PartAdded,
    PartDone,
    ReasoningTextDelta,
    ReasoningTextDone,
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    encode_event,
)
from .request import LOGPROBS, SEALED, ParsedResponse
from .sealed import sealed
from .shapes import (
    IncompleteDetails,
    InputDetails,
    ItemStatus,
    OutputDetails,
    OutputItem,
    ReasoningConfig,
    ResponseCall,
    ResponseFailure,
    ResponseMessage,
    ResponseObject,
    ResponseReasoning,
    ResponseReasoningText,
    ResponseText,
    ResponseUsage,
    TextConfig,
    TextFormatText,
)
from .tools import FUNCTION

_REASONING: Final = "reasoning"
_TEXT: Final = "text"
_CALL: Final = "call"
_PREFIXES: Final = {_REASONING: "rs_", _TEXT: "msg_", _CALL: "fc_"}


def new_response_id() -> str:
    """An id for a response."""
    return f"resp_{uuid.uuid4().hex}"


@dataclass(slots=True)
class _Item:
    """An item so far. `key` distinguishes it from the next one: its kind, and the index of its call."""

    key: tuple[str, int]
    id: str
    seals: bool
    call_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Its text, reasoning or arguments."""
        return "".join(self.pieces)

    @property
    def part(self) -> ResponseText | ResponseReasoningText:
        """The part of a message or of reasoning."""
        if self.key[0] == _REASONING:
            return ResponseReasoningText(self.text)
        return ResponseText(text=self.text, logprobs=self.logprobs)

    def made(self, status: ItemStatus) -> OutputItem:
        """The item; while it is in progress, empty."""
        begins = status == "in_progress"
        kind = self.key[0]
        if kind == _CALL:
            arguments = "" if begins else self.text
            return ResponseCall(id=self.id, call_id=self.call_id, name=self.name, arguments=arguments, status=status)
        part = self.part
        if isinstance(part, ResponseReasoningText):
            kept = sealed(part.text) if self.seals and not begins else UNSET
            content = [] if begins else [part]
            return ResponseReasoning(id=self.id, status=status, content=content, encrypted_content=kept)
        return ResponseMessage(id=self.id, status=status, content=[] if begins else [part])


class ResponseFormatter(Formatter):
    """The answer to one request.

    Args:
        parsed: the request, whose settings the response shows.
        model: the model's name in the answer.
        headers: further response headers.
    """

    def __init__(self, parsed: ParsedResponse, *, model: str, headers: Mapping[str, str]) -> None:
        fields = parsed.fields
        self.stream = bool(fields.stream)
        self.headers = {"content-type": f"{SSE}; charset=utf-8" if self.stream else JSON, **headers}
        self.keep_alive = SSE_KEEP_ALIVE if self.stream else b""
        self.shows_logprobs = LOGPROBS in fields.included
        self._seals = SEALED in fields.included
        self._response = _begun(parsed, model)
        self._queued = self.stream and self._response.background
        self._numbers = itertools.count(QUEUED_EVENTS if self._queued else 0)
        self._begun = False
        self._items: list[_Item] = []
        self._unsaid: list[TokenLogprob] = []  # of tokens whose text is yet to come
        self._finish: Finish | None = None

    def queued(self) -> bytes:
        """The response before a worker has it."""
        return encode_json(replace(self._response, status="queued"))

    def push(self, delta: Delta) -> bytes:
        self._finish = delta.finish or self._finish
        events = [] if self._begun else self._beginning()
        self._begun = True
        for kind, index, call_id, name, piece in _pieces(delta):
            if not self._items or self._items[-1].key != (kind, index):
                events += self._next(kind, index, call_id, name)
            item = self._items[-1]
            item.pieces.append(piece)
            logprobs = self._logprobs(item, delta.tokens if kind == _TEXT else ())
            if piece:
                events.append(self._delta(item, piece, logprobs))
        if self.shows_logprobs and not (delta.text or delta.reasoning or delta.tool_calls):
            self._unsaid += map(_logprob, delta.tokens)
        return b"".join(map(encode_event, events)) if self.stream else b""

    def end(self) -> bytes:
        finish = self._finish
        assert finish is not None
        events = [] if self._items else self._next(_TEXT, 0)
        cut = finish.reason is FinishReason.LENGTH
        last: ItemStatus = "incomplete" if cut else "completed"
        if self._items[-1].key[0] == _TEXT:
            self._logprobs(self._items[-1], ())
        events += self._closing(last)
        response = replace(
            self._response,
            status="incomplete" if cut else "completed",
            completed_at=None if cut else int(time.time()),
            incomplete_details=IncompleteDetails("max_output_tokens") if cut else None,
            output=self._output(last),
            usage=_usage(finish),
        )
        if not self.stream:
            return encode_json(response)
        ending = ResponseIncomplete if cut else ResponseCompleted
        events.append(ending(sequence_number=next(self._numbers), response=response))
        return b"".join(map(encode_event, events))

    def error(self, error: ServingError) -> bytes:
        failed = replace(
            self._response,
            status="failed",
            error=ResponseFailure(**failure_of(error)),
            output=self._output("incomplete"),
        )
        told = error_event(error, next(self._numbers))
        return encode_event(told) + encode_event(ResponseFailed(sequence_number=next(self._numbers), response=failed))

    # ------------------------------------------------------------------------------------ events

    def _beginning(self) -> list[Event]:
        created: list[Event] = []
        if not self._queued:  # else the front end has told
            created.append(ResponseCreated(sequence_number=next(self._numbers), response=self._response))
        return [*created, ResponseInProgress(sequence_number=next(self._numbers), response=self._response)]

    def _next(self, kind: str, index: int, call_id: str = "", name: str = "") -> list[Event]:
        """The events that end an item and begin the next one."""
        events = self._closing("completed") if self._items else []
        if kind != _TEXT:
            self._unsaid.clear()
        item = _Item((kind, index), f"{_PREFIXES[kind]}{uuid.uuid4().hex}", self._seals, call_id, name)
        at = len(self._items)
        self._items.append(item)
        added = item.made("in_progress")
        events.append(ItemAdded(sequence_number=next(self._numbers), output_index=at, item=added))
        if kind != _CALL:
            number = next(self._numbers)
            events.append(PartAdded(sequence_number=number, item_id=item.id, output_index=at, part=item.part))
        return events

    def _delta(self, item: _Item, piece: str, logprobs: list[TokenLogprob]) -> Event:
        common: dict[str, Any] = {
            "sequence_number": next(self._numbers),
            "item_id": item.id,
            "output_index": len(self._items) - 1,
            "delta": piece,
        }
        match item.key[0]:
            case "text":
                return OutputTextDelta(**common, logprobs=logprobs)
            case "reasoning":
                return ReasoningTextDelta(**common)
        return ArgumentsDelta(**common)

    def _closing(self, status: ItemStatus) -> list[Event]:
        """The events that end the last item."""
        item, at = self._items[-1], len(self._items) - 1

        def common() -> dict[str, Any]:
            return {"sequence_number": next(self._numbers), "item_id": item.id, "output_index": at}

        events: list[Event]
        match item.key[0]:
            case "text":
                events = [OutputTextDone(**common(), text=item.text, logprobs=item.logprobs)]
            case "reasoning":
                events = [ReasoningTextDone(**common(), text=item.text)]
            case _:
                events = [ArgumentsDone(**common(), name=item.name, arguments=item.text)]
        if item.key[0] != _CALL:
            events.append(PartDone(**common(), part=item.part))
        events.append(ItemDone(sequence_number=next(self._numbers), output_index=at, item=item.made(status)))
        return events

    # ------------------------------------------------------------------------------------ the response

    def _logprobs(self, item: _Item, tokens: Sequence[Token]) -> list[TokenLogprob]:
        """The log-probabilities of a message's next tokens, those without a text of their own included."""
        if not self.shows_logprobs or item.key[0] != _TEXT:
            return []
        logprobs = [*self._unsaid, *map(_logprob, tokens)]
        self._unsaid.clear()
        item.logprobs += logprobs
        return logprobs

    def _output(self, last: ItemStatus) -> list[OutputItem]:
        done = [item.made("completed") for item in self._items[:-1]]
        return [*done, *(item.made(last) for item in self._items[-1:])]


def _begun(parsed: ParsedResponse, model: str) -> ResponseObject:
    """The response without output."""
    fields, sampling = parsed.fields, parsed.request.sampling
    text, reasoning = fields.text or TextConfig(), fields.reasoning or ReasoningConfig()
    return ResponseObject(
        id=parsed.context.id or new_response_id(),
        created_at=int(time.time()),
        status="in_progress",
        background=bool(fields.background),
        instructions=fields.instructions,
        max_output_tokens=fields.max_output_tokens,
        metadata=fields.metadata or {},
        model=model,
        output=[],
        parallel_tool_calls=fields.parallel_tool_calls is not False,
        previous_response_id=fields.previous_response_id,
        prompt_cache_key=fields.prompt_cache_key,
        reasoning=reasoning,
        safety_identifier=fields.safety_identifier,
        store=parsed.context.kept,
        temperature=(sampling.temperature if sampling.do_sample else 0.0)
        if fields.temperature is None
        else fields.temperature,
        text=replace(text, format=text.format or TextFormatText(), verbosity=text.verbosity or "medium"),
        tool_choice=fields.tool_choice or "auto",
        tools=[tool for tool in fields.tools or () if tool.type == FUNCTION],
        top_logprobs=fields.top_logprobs or 0,
        top_p=sampling.top_p if fields.top_p is None else fields.top_p,
        truncation=fields.truncation or "disabled",
        user=fields.user,
    )


def _pieces(delta: Delta) -> Iterator[tuple[str, int, str, str, str]]:
    """(kind of item, index of its call, the call's id, its function, the text that a step adds)"""
    if delta.reasoning:
        yield _REASONING, 0, "", "", delta.reasoning
    if delta.text:
        yield _TEXT, 0, "", "", delta.text
    for call in delta.tool_calls:
        yield _CALL, call.index, call.id, call.name, call.arguments


def _logprob(token: Token) -> TokenLogprob:
    return token_logprob(token, by_id=False)


def _usage(finish: Finish) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=finish.prompt_tokens,
        input_tokens_details=InputDetails(cached_tokens=finish.cached_tokens or 0),
        output_tokens=finish.generated_tokens,
        output_tokens_details=OutputDetails(finish.reasoning_tokens or 0),
        total_tokens=finish.prompt_tokens + finish.generated_tokens,
    )
