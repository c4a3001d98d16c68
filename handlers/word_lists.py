"""What a request's lists of words become: an automaton that finds stop sequences, ids that are banned.

Runs in the worker's event loop; what takes long is done in a thread.
"""

from __future__ import annotations

import asyncio
from typing import Final

from djl_python.text.stop import StopSequences
from djl_python.text.tokenizer import Tokenizer

#: Of longer lists an automaton is made in a thread: at about a million characters a second this is 2 ms of the loop's
#: time.
_LONG_CHARS: Final = 2_000


class WordLists:
    """The lists of one client's request. Each is read once, however many prompts and sequences have it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stops: dict[tuple[str, ...], StopSequences] = {}
        self._banned: dict[tuple[str, ...], tuple[tuple[int, ...], ...]] = {}

    async def stops(self, words: tuple[str, ...]) -> StopSequences | None:
        """What finds these stop sequences; None where there are none."""
        if not words:
            return None
        if words not in self._stops:
            long = sum(map(len, words)) > _LONG_CHARS
            self._stops[words] = await asyncio.to_thread(StopSequences, words) if long else StopSequences(words)
        return self._stops[words]

    async def banned(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """The ids of each of these words, in every spelling."""
        if not words:
            return ()
        if words not in self._banned:
            self._banned[words] = await asyncio.to_thread(self._tokenizer.bad_words, words)
        return self._banned[words]
