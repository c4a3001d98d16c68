"""Limits on what is searched for in an answer: stop sequences, banned words, stop and biased token ids.

Runs in the worker. Every entry is searched for at every token, and matchers are built before the first token, or sent
to the engine with each sequence, so that lists without a limit would take time from other requests.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

#: Limits of one list: characters of all its texts, and number of texts.
MAX_CHARS: Final = 32_768
MAX_WORDS: Final = 1_024
MAX_TOKEN_IDS: Final = 1_024


def excess(words: Collection[str]) -> str:
    """What was expected and what came, if a list of words is too long; "" if it is not."""
    if len(words) > MAX_WORDS:
        return f"expected at most {MAX_WORDS} texts, got {len(words)}"
    if (chars := sum(map(len, words))) > MAX_CHARS:
        return f"expected at most {MAX_CHARS} characters together, got {chars}"
    return ""


def excess_ids(token_ids: Collection[int]) -> str:
    """What was expected and what came, if a list of token ids is too long; "" if it is not."""
    count = len(token_ids)
    return f"expected at most {MAX_TOKEN_IDS} token ids, got {count}" if count > MAX_TOKEN_IDS else ""
