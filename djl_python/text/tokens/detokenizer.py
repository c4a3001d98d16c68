"""Incremental detokenizing: ids to text, one at a time.

Runs in the worker, once per generated token. A character is never split: the token that completes it has the whole
character, the tokens before it have "". Invalid bytes become U+FFFD after at most three more tokens (`ByteDetokenizer`)
or MAX_PENDING_TOKENS (`WindowDetokenizer`); a stream is never held up for longer.
"""

from __future__ import annotations

import abc
import codecs
import copy
from collections.abc import Sequence, Set
from itertools import islice
from typing import Self

from ...core.types import TextOptions
from .tokenizer import Tokenizer

#: Prompt tokens that are decoded before the first generated one; enough to hold any unfinished character.
CONTEXT_TOKENS = 8
MAX_PENDING_TOKENS = 8
REPLACEMENT = "\ufffd"


class Detokenizer(abc.ABC):
    """The text that generated ids add to a prompt: decode(prompt + generated) without decode(prompt)."""

    @abc.abstractmethod
    def push(self, token_id: int) -> str:
        """The text that this token makes certain."""

    @abc.abstractmethod
    def flush(self) -> str:
        """The remaining text. An incomplete last character is left out, so that a text cut by a limit has no broken
        end.
        """

    @abc.abstractmethod
    def fork(self) -> Self:
        """A copy with the text so far; it and the original may go on with different tokens."""


def detokenizer(tokenizer: Tokenizer, prompt_ids: Sequence[int], options: TextOptions) -> Detokenizer:
    """A detokenizer that continues `prompt_ids`."""
    if tokenizer.token_bytes is not None:
        return ByteDetokenizer(tokenizer, prompt_ids, options)
    return WindowDetokenizer(tokenizer, prompt_ids, options)


class ByteDetokenizer(Detokenizer):
    """For tokenizers whose tokens are bytes: a look-up, and an incremental UTF-8 decoder for parts of characters."""

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int], options: TextOptions) -> None:
        assert tokenizer.token_bytes is not None
        self._bytes = tokenizer.token_bytes
        self._skipped = tokenizer.special_ids if options.skip_special_tokens else frozenset[int]()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unfinished = False  # whether the decoder holds the beginning of a character
        # Only the very beginning of a text loses spaces; it is in the prompt, unless that has no visible tokens.
        self._strip = self._bytes.strip if all(i in self._skipped for i in prompt_ids) else 0
        for token_id in _visible_tail(prompt_ids, self._skipped):
            self._decode(token_id)

    def push(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        text = None if self._unfinished else self._bytes.texts[token_id]
        if text is None:
            text = self._decode(token_id)
        return self._stripped(text) if self._strip else text

    def flush(self) -> str:
        return ""

    def fork(self) -> Self:
        forked = copy.copy(self)
        forked._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        forked._decoder.setstate(self._decoder.getstate())
        return forked

    def _decode(self, token_id: int) -> str:
        text = self._decoder.decode(self._bytes[token_id])
        self._unfinished = bool(self._decoder.getstate()[0])
        return text

    def _stripped(self, text: str) -> str:
        while self._strip and text.startswith(" "):
            text, self._strip = text[1:], self._strip - 1
        if text:
            self._strip = 0
        return text


class WindowDetokenizer(Detokenizer):
    """For any tokenizer: decodes a few tokens of context with and without the new ones, and takes the difference."""

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int], options: TextOptions) -> None:
        self._tokenizer = tokenizer
        self._spaces = options.spaces_between_special_tokens
        self._skipped = tokenizer.special_ids if options.skip_special_tokens else frozenset[int]()
        self._context = _visible_tail(prompt_ids, self._skipped)
        self._context_text = self._decode(self._context)
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        self._pending.append(token_id)
        text = self._new_text()
        if text.endswith(REPLACEMENT) and len(self._pending) <= MAX_PENDING_TOKENS:
            return ""
        self._context, self._pending = (self._context + self._pending)[-CONTEXT_TOKENS:], []
        self._context_text = self._decode(self._context)
        return text

    def flush(self) -> str:
        if not self._pending:
            return ""
        text = self._new_text()  # it ends with U+FFFD, or it would not be pending
        # A U+FFFD that the model has written, and not a part of a character, has the ids that its text is encoded to.
        spelled = self._tokenizer.encode(text, add_special_tokens=False)[-len(self._pending) :] == self._pending
        return text if spelled else text.rstrip(REPLACEMENT)

    def fork(self) -> Self:
        forked = copy.copy(self)
        forked._pending = self._pending.copy()
        return forked

    def _new_text(self) -> str:
        return self._decode(self._context + self._pending)[len(self._context_text) :]

    def _decode(self, ids: list[int]) -> str:
        # Skipped tokens are not among them; others may be special too, see `Tokenizer.showing`.
        return self._tokenizer.decode(ids, False, self._spaces)


def _visible_tail(prompt_ids: Sequence[int], skipped: Set[int]) -> list[int]:
    backwards = (token_id for token_id in reversed(prompt_ids) if token_id not in skipped)
    return list(islice(backwards, CONTEXT_TOKENS))[::-1]
