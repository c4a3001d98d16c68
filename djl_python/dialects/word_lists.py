"""How much a request may ask to be looked for in its answer: stop sequences, words that are banned, single tokens.

Runs in the worker. Each is looked for with every token, and what looks is made before the first one, or sent to the
engine with each sequence, so that a list without a limit would cost the other requests their time.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

#: Of one list, together.
MAX_CHARS: Final = 32_768
MAX_WORDS: Final = 1_024
MAX_TOKEN_IDS: Final = 1_024


def excess(words: Collection[str]) -> str:
    """What was expected of such a list, and what came; "" where it is not too long."""
    if len(words) > MAX_WORDS:
        return f"expected at most {MAX_WORDS} texts, got {len(words)}"
    if (chars := sum(map(len, words))) > MAX_CHARS:
        return f"expected at most {MAX_CHARS} characters together, got {chars}"
    return ""


def excess_ids(token_ids: Collection[int]) -> str:
    """The same for a list of token ids."""
    count = len(token_ids)
    return f"expected at most {MAX_TOKEN_IDS} token ids, got {count}" if count > MAX_TOKEN_IDS else ""
