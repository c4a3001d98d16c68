"""Compiles a request's lists of words: stop sequences to an automaton and to token ids, banned words to token ids.

Runs in the worker's event loop; long lists are compiled in a thread.
"""

from __future__ import annotations

import asyncio
from typing import Final

from djl_python.core.types import GenerateRequest
from djl_python.text.stop import StopSequences
from djl_python.text.tokens.tokenizer import Tokenizer

#: Longer lists of stop sequences are compiled in a thread: at about a million characters a second, these take the
#: loop 2 ms.
_LONG_CHARS: Final = 2_000


def hidden_stops(request: GenerateRequest, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ids of stop sequences that are special tokens: where these are left out of the text, no search finds them.

    Tokens that end the generation anyway are left out: they still end it, as the end of the sequence.
    """
    if not request.text.skip_special_tokens:
        return ()
    ends = frozenset[int]() if request.sampling.ignore_eos else tokenizer.eos_ids
    ids = (tokenizer.token_to_id(stop) for stop in request.text.stop_sequences)
    return tuple(dict.fromkeys(i for i in ids if i in tokenizer.special_ids and i not in ends and i is not None))


class WordLists:
    """The lists of one client's request. Each is compiled once, however many prompts and sequences have it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stops: dict[tuple[str, ...], StopSequences] = {}
        self._banned: dict[tuple[str, ...], tuple[tuple[int, ...], ...]] = {}

    async def stops(self, words: tuple[str, ...]) -> StopSequences | None:
        """Compile these stop sequences; None if there are none."""
        if not words:
            return None
        if words not in self._stops:
            long = sum(map(len, words)) > _LONG_CHARS
            self._stops[words] = await asyncio.to_thread(StopSequences, words) if long else StopSequences(words)
        return self._stops[words]

    async def banned(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """The token ids of each of these words, in every spelling."""
        if not words:
            return ()
        if words not in self._banned:
            self._banned[words] = await asyncio.to_thread(self._tokenizer.bad_words, words)
        return self._banned[words]
