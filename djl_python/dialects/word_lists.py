"""How much text a request may ask to be looked for in its answer: stop sequences, words that are banned.

Runs in the worker. Each is looked for with every token, and what looks is made before the first one, so that a list
without a limit would cost the other requests their time.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

#: Of one list, together.
MAX_CHARS: Final = 32_768
MAX_WORDS: Final = 1_024


def excess(words: Collection[str]) -> str:
    """What was expected of such a list, and what came; "" where it is not too long."""
    if len(words) > MAX_WORDS:
        return f"expected at most {MAX_WORDS} texts, got {len(words)}"
    if (chars := sum(map(len, words))) > MAX_CHARS:
        return f"expected at most {MAX_CHARS} characters together, got {chars}"
    return ""
