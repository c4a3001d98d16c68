"""What an owner may have of a store that all owners share. No I/O; in the front end and in the worker.

An owner is the name of an API key. It may have as much as is left for others: half of a store that nobody else uses,
a third each of two who take all they can. So there is always room for one more, and no number of keys to set. Without
keys, everything is one owner's, "", who may have it all.
"""

from __future__ import annotations

from collections.abc import Mapping


def rule(owner: str) -> str:
    """Why an owner gets no more, for messages: what follows the name of the limit."""
    return "; a key may have as much as is left for others" if owner else ""


def fits(owner: str, own: int, held: int, most: int, more: int = 1) -> bool:
    """Whether an owner may have so much more.

    Args:
        own: what the owner has.
        held: what all owners have together, this one among them.
        most: what there may be.

    Example:
        >>> fits("a", own=49, held=49, most=100), fits("a", own=50, held=50, most=100), fits("b", 0, 50, 100, more=25)
        (True, False, True)
        >>> fits("", own=99, held=99, most=100), fits("a", own=0, held=0, most=1)
        (True, True)
    """
    left = most - held - more
    return left >= 0 and (not owner or own + more <= left + 1)


def givers(amounts: Mapping[str, int], owner: str, own: int) -> list[str]:
    """The owners who give something up for an owner in need, the one with the most first. No owner gives anything to
    one who would have more; without keys ("") all give, what keys have left behind too.

    Args:
        amounts: what each owner has.
        own: what the owner in need would have.

    Example:
        >>> givers({"a": 3, "b": 1}, "c", 2), givers({"a": 3, "b": 1}, "", 9)
        (['a'], ['a', 'b'])
    """
    having = {**amounts, owner: own}
    if not owner:
        return sorted(amounts, key=having.__getitem__, reverse=True)
    return sorted((name for name in amounts if having[name] >= own), key=having.__getitem__, reverse=True)
