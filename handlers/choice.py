"""One sequence of an answer: the engine's events in, deltas out. Runs in the worker's event loop."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from djl_python.core.types import Delta, GenerateRequest, Token, TokenEvent, ToolCallDelta
from djl_python.text.reasoning import ReasoningParser, SplitText
from djl_python.text.stream import TextStream

from .preparation import Prepared


class Choice:
    """Turns a sequence's ids into text, and parses its reasoning and its tool calls.

    Args:
        number: the sequence's number in the answer.
        request: `prepared.request`, or the same with another seed.
        prefill: the prompt's tokens, if another sequence of the same prompt has them already.
    """

    def __init__(
        self, prepared: Prepared, number: int, request: GenerateRequest, prefill: tuple[Token, ...] = ()
    ) -> None:
        self._number = number
        self._stream = TextStream(prepared.tokenizer, request, prepared.stops, prepared.ids, prepared.text, prefill)
        self._prompt = prepared.text
        self._begun = False
        self._parser = None if prepared.new_parser is None else prepared.new_parser()
        self._reasoning = None if prepared.new_reasoning is None else prepared.new_reasoning()
        self._reasoning_tokens = 0

    @property
    def prefill(self) -> tuple[Token, ...]:
        """The prompt's tokens, once the first event has brought them."""
        return self._stream.prefill

    @property
    def reasons(self) -> bool:
        """Whether there is no content yet, because this is reasoning."""
        return self._reasoning is not None and self._reasoning.reasons

    def push(self, event: TokenEvent) -> Delta | None:
        """The delta that this event releases; None: nothing yet."""
        tokens, finish = self._stream.push(event)
        if not tokens and finish is None:
            return None
        text = tokens[0].text if len(tokens) == 1 else "".join(token.text for token in tokens)
        prompt, prefill = ("", ()) if self._begun else (self._prompt, self._stream.prefill)
        self._begun = True
        reasoning, calls = "", tuple[ToolCallDelta, ...]()
        if self._reasoning is not None:
            reasoning, text = self._split(self._reasoning, tokens, ended=finish is not None)
            if finish is not None:
                spent = self._reasoning_tokens if self._reasoning.reasoned else 0
                finish = msgspec.structs.replace(finish, reasoning_tokens=spent)
        if self._parser is not None:
            text, calls = self._parser.feed(text)
            if finish is not None:
                rest = self._parser.finish(finish.reason)
                text, calls = text + rest.content, calls + rest.calls
        return Delta(
            choice=self._number,
            prompt=prompt,
            prefill=prefill,
            tokens=tuple(tokens),
            text=text,
            reasoning=reasoning,
            tool_calls=calls,
            finish=finish,
        )

    def _split(self, parser: ReasoningParser, tokens: Sequence[Token], *, ended: bool) -> SplitText:
        """The reasoning and the content of further tokens."""
        parts: list[SplitText] = []
        for token in tokens:
            self._reasoning_tokens += parser.reasons
            parts.append(parser.feed(token.text))
        if ended:
            parts.append(parser.finish())
        return SplitText("".join(part.reasoning for part in parts), "".join(part.content for part in parts))
