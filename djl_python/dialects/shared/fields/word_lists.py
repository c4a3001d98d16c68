"""Limits on the lists that are matched against an answer: stop sequences, banned words, stop and biased token ids.

Runs in the worker. Every entry is searched for at every token, and matchers are built before the first token, or sent
to the engine with each sequence, so that lists without a limit would take time from other requests.
"""

from __future__ import annotations

from collections.abc import Collection

from ....core import budgets


def excess(words: Collection[str]) -> str:
    """The words of a refusal if a list of words is too long; "" if it is not."""
    return budgets.WORDS.excess(len(words)) or budgets.WORD_CHARS.excess(sum(map(len, words)))


def excess_ids(token_ids: Collection[int]) -> str:
    """The words of a refusal if a list of token ids is too long; "" if it is not."""
    return budgets.TOKEN_IDS.excess(len(token_ids))
