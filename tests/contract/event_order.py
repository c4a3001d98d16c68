"""The grammar of each dialect's stream: which events there are, in which order, how often, and what ends it.

A dialect is a row of `GRAMMARS`. `order` is a regular expression over the kinds of events, as `kind` names them: "start
(block delta* stop)* end". `broken` is the same for a stream that is not at its end, and `failed` what an error adds to
it. `Grammar.check` also reads the framing, and runs the row's `rules`, about what an order of kinds can't say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

DONE = "[DONE]"
Kind = Callable[[Any], str]
Rule = Callable[[list[Any]], None]


@dataclass(frozen=True)
class Grammar:
    """A stream's grammar.

    Attributes:
        read: the events' data of a stream's bytes; refuses what the framing does not allow.
        kind: an event's kind. Events of kind "" may be anywhere, and are left out (a sign of life).
        order: the kinds of a complete stream.
        broken: the kinds of one that is cut off anywhere.
        failed: what follows in a stream that fails.
        rules: further checks of a stream's events, complete or not.
        ends: further checks of a complete stream.
        text: what the events say.
        reasons: why each sequence ended, in the API's words.
    """

    read: Callable[[str], list[Any]]
    kind: Kind
    order: str
    broken: str
    failed: str
    text: Callable[[list[Any]], str]
    reasons: Callable[[list[Any]], list[str]]
    rules: Sequence[Rule] = ()
    ends: Sequence[Rule] = field(default=())

    def check(self, text: str) -> list[Any]:
        """The events of a complete stream.

        Raises:
            AssertionError: it is none.
        """
        events = self._checked(text, self.order)
        for rule in self.ends:
            rule(events)
        return events

    def check_failed(self, text: str) -> list[Any]:
        """The events of a stream that ends with an error."""
        return self._checked(text, f"{self.broken} {self.failed}")

    def check_cut(self, text: str) -> list[Any]:
        """The events of a stream whose rest nobody has read."""
        return self._checked(text, self.broken)

    def _checked(self, text: str, order: str) -> list[Any]:
        events = [event for event in self.read(text) if self.kind(event)]
        kinds = [self.kind(event) for event in events]
        assert in_order(kinds, order), f"expected {order}, got {' '.join(kinds)}"
        for rule in self.rules:
            rule(events)
        return events


def in_order(kinds: Sequence[str], order: str) -> bool:
    """Whether kinds of events are in an order: a regular expression whose words are kinds."""
    pattern = re.sub(r"\w+", lambda word: f"(?:{word[0]},)", order).replace(" ", "")
    return re.fullmatch(pattern, "".join(f"{kind}," for kind in kinds)) is not None


# ------------------------------------------------------------------------------------------------ framings


def events_of(text: str) -> list[Any]:
    """Server-sent events of one line of data each, without names."""
    blocks = _blocks(text)
    assert not any(name for name, _ in blocks), text
    return [data for _, data in blocks]


def named_events(text: str) -> list[Any]:
    """Server-sent events whose names are in their data too."""
    blocks = _blocks(text)
    assert all(name == data["type"] for name, data in blocks), text
    return [data for _, data in blocks]


def lines_of(text: str) -> list[Any]:
    """A JSON object on each line."""
    assert not text or text.endswith("\n"), f"a line is cut off: {text[-100:]}"
    return [json.loads(line) for line in text.splitlines()]


def _blocks(text: str) -> list[tuple[str, Any]]:
    assert not text or text.endswith("\n\n"), f"an event is cut off: {text[-100:]}"
    blocks: list[tuple[str, Any]] = []
    for block in text.split("\n\n")[:-1]:
        if block.startswith(":"):  # a comment, which shows that the connection is alive
            continue
        name, _, data = block.rpartition("\n")
        assert data.startswith("data:") and (not name or name.startswith("event: ")), block
        value = data.removeprefix("data:").strip()
        blocks.append((name.removeprefix("event: "), value if value == DONE else json.loads(value)))
    return blocks


# ------------------------------------------------------------------------------------------------ choices


def chunk_kind(event: Any) -> str:
    """The kind of an event of chats and completions."""
    if event == DONE:
        return "done"
    if "error" in event:
        return "error"
    return "chunk" if event["choices"] else "usage"


def choices_of(events: list[Any]) -> dict[int, list[Any]]:
    """The choices' pieces, by index; a chunk has one of them."""
    by_index: dict[int, list[Any]] = {}
    for event in events:
        if chunk_kind(event) == "chunk":
            (choice,) = event["choices"]
            by_index.setdefault(choice["index"], []).append(choice)
    return by_index


def choices_end_once(unfinished: Any) -> Rule:
    """A choice has a reason in its last piece alone; before, `unfinished` stands in its place."""

    def rule(events: list[Any]) -> None:
        for pieces in choices_of(events).values():
            assert all(piece["finish_reason"] == unfinished for piece in pieces[:-1]), pieces

    return rule


def choices_have_ended(events: list[Any]) -> None:
    by_index = choices_of(events)
    assert sorted(by_index) == list(range(len(by_index)))
    assert all(pieces[-1]["finish_reason"] for pieces in by_index.values())


def one_answer(events: list[Any]) -> None:
    """All chunks are of one answer."""
    chunks = [event for event in events if chunk_kind(event) in ("chunk", "usage")]
    for name in ("id", "created", "model", "object"):
        assert len({chunk.get(name) for chunk in chunks}) <= 1, name


def usage_comes_last(events: list[Any]) -> None:
    """Usage was asked for: the chunks before it have null in its place."""
    for event in events:
        if chunk_kind(event) == "chunk":
            assert event["usage"] is None
        elif chunk_kind(event) == "usage":
            usage = event["usage"]
            assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def deltas_begin_with_a_role(events: list[Any]) -> None:
    """The first delta of a choice has the role, and no other: clients join what deltas repeat."""
    for pieces in choices_of(events).values():
        roles = [piece["delta"].get("role") for piece in pieces]
        assert roles == ["assistant", *[None] * (len(roles) - 1)]


def deltas_all_have_roles(events: list[Any]) -> None:
    """TGI's deltas."""
    assert all(piece["delta"]["role"] == "assistant" for pieces in choices_of(events).values() for piece in pieces)


def delta_parts_in_order(events: list[Any]) -> None:
    """Reasoning, then content and calls; a call's first piece has its id and name, its index is the next one."""
    for pieces in choices_of(events).values():
        spoken, last = False, -1
        for delta in (piece["delta"] for piece in pieces):
            spoken = spoken or bool(delta.get("content") or delta.get("tool_calls"))
            assert not (spoken and delta.get("reasoning_content")), pieces
            for call in delta.get("tool_calls") or ():
                new = call["index"] != last
                assert call["index"] in (last, last + 1), pieces
                assert bool(call.get("id")) == bool(call["function"].get("name")) == ("type" in call) == new, pieces
                last = call["index"]


def spoken(events: list[Any]) -> str:
    """The first choice's text."""
    pieces = choices_of(events).get(0, [])
    return "".join(piece.get("text") or piece.get("delta", {}).get("content") or "" for piece in pieces)


def choices_reasons(events: list[Any]) -> list[str]:
    return [pieces[-1]["finish_reason"] for _, pieces in sorted(choices_of(events).items())]


def choices(*rules: Rule, order: str, failed: str, read: Callable[[str], list[Any]] = events_of) -> Grammar:
    """A stream of chunks that have choices."""
    return Grammar(read, chunk_kind, order, "chunk*", failed, spoken, choices_reasons, rules, (choices_have_ended,))


# ------------------------------------------------------------------------------------------------ Anthropic's

_DELTAS = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"}


def message_kind(event: Any) -> str:
    return "" if event["type"] == "ping" else str(event["type"])


def blocks_in_turn(events: list[Any]) -> None:
    """Blocks are numbered from 0, begin empty, and have the deltas of their kind."""
    at, kind = -1, ""
    for event in events:
        match event["type"]:
            case "content_block_start":
                at, block = at + 1, dict(event["content_block"])
                kind = block.pop("type")
                if kind == "tool_use":
                    assert block.pop("id") and block.pop("name")
                assert event["index"] == at and not any(block.values()), event
            case "content_block_delta":
                assert event["index"] == at and event["delta"]["type"] == _DELTAS[kind], event
            case "content_block_stop":
                assert event["index"] == at, event


def message_counts(events: list[Any]) -> None:
    """The message begins without content and reason; the tokens are counted where it begins and where it ends."""
    for event in events:
        if event["type"] == "message_start":
            message = event["message"]
            assert (message["content"], message["stop_reason"], message["usage"]["output_tokens"]) == ([], None, 0)
            assert message["usage"]["input_tokens"] > 0
        elif event["type"] == "message_delta":
            assert event["usage"]["output_tokens"] > 0
            assert (event["delta"]["stop_sequence"] is None) == (event["delta"]["stop_reason"] != "stop_sequence")


def message_text(events: list[Any]) -> str:
    return "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")


_BLOCK = "content_block_start content_block_delta*"
MESSAGES = Grammar(
    read=named_events,
    kind=message_kind,
    order=f"message_start ({_BLOCK} content_block_stop)* message_delta message_stop",
    broken=f"(message_start ({_BLOCK} content_block_stop)* ({_BLOCK})?)?",
    failed="error",
    text=message_text,
    reasons=lambda events: [event["delta"]["stop_reason"] for event in events if event["type"] == "message_delta"],
    rules=(blocks_in_turn, message_counts),
)

# ------------------------------------------------------------------------------------------------ responses


def response_kind(event: Any) -> str:
    return str(event["type"]).removeprefix("response.").replace(".", "_")


def events_are_numbered(events: list[Any]) -> None:
    """From 0; an error that the front end adds comes after all others."""
    numbers = [event["sequence_number"] for event in events]
    counted = numbers[:-1] if events and response_kind(events[-1]) == "error" else numbers
    assert counted == list(range(len(counted))) and numbers == sorted(numbers)


def items_in_turn(events: list[Any]) -> None:
    """Items are numbered from 0, and what is added to one names it; an item's end has what its pieces said."""
    at, item_id, said = -1, "", ""
    for event in events:
        match response_kind(event):
            case "output_item_added":
                at, item_id, said = at + 1, event["item"]["id"], ""
                assert event["output_index"] == at, event
            case "output_text_delta" | "reasoning_text_delta" | "function_call_arguments_delta":
                said += event["delta"]
                assert (event["output_index"], event["item_id"]) == (at, item_id), event
            case "output_text_done" | "reasoning_text_done":
                assert (event["text"], event["item_id"]) == (said, item_id), event
            case "function_call_arguments_done":
                assert (event["arguments"], event["item_id"]) == (said, item_id), event
            case "output_item_done":
                assert (event["output_index"], event["item"]["id"]) == (at, item_id), event


def response_has_all_items(events: list[Any]) -> None:
    """The response at the end has the items that were streamed, and counts its tokens."""
    response = events[-1]["response"]
    assert response["output"] == [event["item"] for event in events if response_kind(event) == "output_item_done"]
    usage = response["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def response_text(events: list[Any]) -> str:
    return "".join(event["delta"] for event in events if response_kind(event) == "output_text_delta")


def response_reasons(events: list[Any]) -> list[str]:
    response = events[-1]["response"]
    return [(response["incomplete_details"] or {}).get("reason") or response["status"]]


_TEXT_PART = "content_part_added output_text_delta* output_text_done content_part_done"
_REASONING_PART = "content_part_added reasoning_text_delta* reasoning_text_done content_part_done"
_ARGUMENTS = "function_call_arguments_delta* function_call_arguments_done"
_ITEM = f"output_item_added (({_TEXT_PART})*|({_REASONING_PART})*|{_ARGUMENTS}) output_item_done"
_CUT_ITEM = (
    "output_item_added (content_part_added? (output_text_delta*|reasoning_text_delta*)|function_call_arguments_delta*)"
)
RESPONSES = Grammar(
    read=named_events,
    kind=response_kind,
    order=f"created in_progress ({_ITEM})* (completed|incomplete)",
    broken=f"(created in_progress? ({_ITEM})* ({_CUT_ITEM})?)?",
    failed="error failed?",
    text=response_text,
    reasons=response_reasons,
    rules=(events_are_numbered, items_in_turn),
    ends=(response_has_all_items,),
)

# ------------------------------------------------------------------------------------------------ Ollama's

_COUNTS = {"done_reason", "total_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration"}


def ollama_kind(event: Any) -> str:
    return "error" if "error" in event else "last" if event["done"] else "line"


def counts_come_last(events: list[Any]) -> None:
    for event in events:
        if ollama_kind(event) != "error":
            assert event.keys() & _COUNTS == (_COUNTS if event["done"] else set()), event


def thinking_comes_first(events: list[Any]) -> None:
    """Reasoning, then content and whole calls; the last line has neither."""
    said = False
    for event in events:
        if ollama_kind(event) == "error":
            continue
        part = event.get("message", event)
        content = part.get("content") or part.get("response") or part.get("tool_calls")
        assert not (said and part.get("thinking")), events
        assert not (event["done"] and (content or part.get("thinking"))), event
        assert all(isinstance(call["function"]["arguments"], dict) for call in part.get("tool_calls", ()))
        said = said or bool(content)


OLLAMA = Grammar(
    read=lines_of,
    kind=ollama_kind,
    order="line* last",
    broken="line*",
    failed="error",
    text=lambda events: "".join(
        (event.get("message") or {}).get("content", event.get("response", "")) for event in events
    ),
    reasons=lambda events: [event["done_reason"] for event in events if "done_reason" in event],
    rules=(counts_come_last, thinking_comes_first),
)

# ------------------------------------------------------------------------------------------------ a token an event


def token_kind(event: Any) -> str:
    if "error" in event:
        return "error"
    return "last" if event.get("generated_text") is not None else "token"


def texts_join(events: list[Any]) -> None:
    """The tokens' texts, joined, are the generated text."""
    assert "".join(event["token"]["text"] for event in events) == events[-1]["generated_text"]


def details_come_last(events: list[Any]) -> None:
    assert all(not event.get("details") for event in events[:-1])


def numbered(events: list[Any]) -> None:
    """From 1, the error of TGI's shapes on LMI's routes included where its sender has counted."""
    indexes = [event["index"] for event in events if token_kind(event) != "error"]
    assert indexes == list(range(1, len(indexes) + 1))


def tokens(*rules: Rule, read: Callable[[str], list[Any]] = events_of) -> Grammar:
    """A stream with an event for each token."""
    return Grammar(
        read=read,
        kind=token_kind,
        order="token* last",
        broken="token*",
        failed="error",
        text=lambda events: str(events[-1]["generated_text"]),
        reasons=lambda events: [events[-1]["details"]["finish_reason"]],
        rules=(details_come_last, *rules),
        ends=(texts_join,),
    )


# ------------------------------------------------------------------------------------------------ Triton's


def triton_kind(event: Any) -> str:
    return "error" if "error" in event else "piece"


def one_model(events: list[Any]) -> None:
    pieces = [event for event in events if "error" not in event]
    assert len({(piece["model_name"], piece["model_version"]) for piece in pieces}) <= 1


TRITON = Grammar(
    read=events_of,
    kind=triton_kind,
    order="piece+",
    broken="piece*",
    failed="error",
    text=lambda events: "".join(event["text_output"] for event in events),
    reasons=lambda events: [],  # the API has no place for them
    rules=(one_model,),
)

# ------------------------------------------------------------------------------------------------ the table

_CHAT = (choices_end_once(None), one_answer, usage_comes_last, deltas_begin_with_a_role, delta_parts_in_order)
_TGI_CHAT = (choices_end_once(None), one_answer, usage_comes_last, deltas_all_have_roles)
_COMPLETION = (choices_end_once(None), one_answer, usage_comes_last)

#: By the names of the streams in `test_event_order`.
GRAMMARS: Mapping[str, Grammar] = {
    "OpenAI chat": choices(*_CHAT, order="chunk+ usage done", failed="error done"),
    "OpenAI completion": choices(*_COMPLETION, order="chunk+ usage done", failed="error done"),
    "OpenAI chat as TGI": choices(*_TGI_CHAT, order="chunk+ usage done", failed="error done"),
    "OpenAI completion as TGI": choices(choices_end_once(""), one_answer, order="chunk+ done", failed="error done"),
    "LMI chat": choices(*_CHAT, order="chunk+ usage", failed="error", read=lines_of),
    "LMI completion": choices(*_COMPLETION, order="chunk+ usage", failed="error", read=lines_of),
    "Anthropic": MESSAGES,
    "OpenAI responses": RESPONSES,
    "Ollama chat": OLLAMA,
    "Ollama generate": OLLAMA,
    "TGI": tokens(numbered),
    "LMI jsonlines": tokens(read=lines_of),
    "LMI sse": tokens(),
    "LMI as TGI": tokens(numbered),
    "MindIE": tokens(),
    "Triton": TRITON,
}
