"""Limits on the texts that are searched for in an answer: stop sequences and banned words.

Runs in the worker. Every text is searched for at every token, and the matchers are built before the first token, so
that lists without a limit would take time from other requests.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

#: Limits of one list: characters of all its texts, and number of texts.
MAX_CHARS: Final = 32_768
MAX_WORDS: Final = 1_024


def excess(words: Collection[str]) -> str:
    """What was expected and what came, if such a list is too long; "" if it is not."""
    if len(words) > MAX_WORDS:
        return f"expected at most {MAX_WORDS} texts, got {len(words)}"
    if (chars := sum(map(len, words))) > MAX_CHARS:
        return f"expected at most {MAX_CHARS} characters together, got {chars}"
    return ""
