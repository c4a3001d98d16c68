"""One sequence of an answer: the engine's events in, deltas out. Runs in the worker's event loop."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from djl_python.core.types import Delta, Finish, FinishReason, Token, TokenEvent, ToolCallDelta
from djl_python.text.reasoning import ReasoningParser, SplitText
from djl_python.text.stream import PromptRead, TextStream

from ..prepared import Prepared


class Choice:
    """Turns a sequence's ids into text, and parses its reasoning and its tool calls.

    Args:
        number: the sequence's number in the answer.
        prompt_read: the engine's facts about the prompt, from another sequence of it; None: this one is the first.

    Attributes:
        reasoning_tokens: how many tokens the reasoning and its marks have.
    """

    def __init__(self, prepared: Prepared, number: int, prompt_read: PromptRead | None = None) -> None:
        self._number = number
        self._stream = TextStream(
            prepared.tokenizer, prepared.request, prepared.stops, prepared.ids, prepared.text, prompt_read,
            encoder_ids=prepared.encoder_ids,
        )  # fmt: skip
        self._prompt = prepared.text
        self._begun = False
        self._parser = None if prepared.new_parser is None else prepared.new_parser()
        self._reasoning = None if prepared.new_reasoning is None else prepared.new_reasoning()
        self.reasoning_tokens = 0

    @property
    def prompt_read(self) -> PromptRead | None:
        """The facts about the prompt in the first event; None: it has not come."""
        return self._stream.prompt_read

    @property
    def reasons(self) -> bool:
        """Whether the text so far is reasoning."""
        return self._reasoning is not None and self._reasoning.reasons

    @property
    def thinks(self) -> bool:
        """Whether the reasoning has begun and not ended."""
        return self._reasoning is not None and self._reasoning.reasons and self._reasoning.reasoned

    def push(self, event: TokenEvent) -> Delta | None:
        """The delta that this event releases; None: nothing yet."""
        tokens, finish = self._stream.push(event)
        return self._delta(tokens, finish) if tokens or finish is not None else None

    def cut(self) -> Delta:
        """The last delta of a sequence that ends with the tokens so far."""
        return self._delta(*self._stream.cut())

    def _delta(self, tokens: Sequence[Token], finish: Finish | None) -> Delta:
        text = tokens[0].text if len(tokens) == 1 else "".join(token.text for token in tokens)
        prompt, prefill = ("", ()) if self._begun else (self._prompt, (self.prompt_read or PromptRead()).tokens)
        self._begun = True
        reasoning, calls = "", tuple[ToolCallDelta, ...]()
        if self._reasoning is not None:
            reasoning, text = self._split(self._reasoning, tokens, finish)
            if finish is not None:
                spent = self.reasoning_tokens if self._reasoning.reasoned else 0
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

    def _split(self, parser: ReasoningParser, tokens: Sequence[Token], finish: Finish | None) -> SplitText:
        """The reasoning and the content of further tokens."""
        parts: list[SplitText] = []
        for token in tokens:
            self.reasoning_tokens += parser.reasons
            parts.append(parser.feed(token.text))
        if finish is not None:
            parts.append(parser.finish(cut=finish.reason is FinishReason.LENGTH))
        return SplitText("".join(part.reasoning for part in parts), "".join(part.content for part in parts))
