"""Where a call's prompt begins like others: hashes of its beginnings, shortest first.

Runs in the front end's event loop, for each call of a model with several workers, so it has to be cheap: some 100 us
for a chat of 20 KB. The front end does not tokenize: what is hashed is the text as the client sent it. Texts that begin
with the same bytes begin with the same tokens, up to the last few.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import chain, pairwise
from typing import Final, NamedTuple

#: (where in a part, how far apart the beginnings that end there are), in bytes. 256 bytes of English are 60 tokens,
#: four blocks of a KV cache.
_STEPS: Final = ((0, 256), (16 << 10, 1 << 10), (64 << 10, 8 << 10), (1 << 20, 64 << 10))
#: The most beginnings of one prompt. What follows is not compared.
MOST_BEGINNINGS: Final = 512


class Trail(NamedTuple):
    """What is known of a call before it is parsed.

    Attributes:
        hashes: of the beginnings of its prompt, the shortest first. Python's own hashes, whose key is a secret of this
            process: nobody outside can make two texts that have the same.
        sizes: how many bytes each of these beginnings has.
        follows: the session that it is in, or the response that it goes on with; "": none.
        name: what calls that follow this one will call it; "": none will.
    """

    hashes: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    follows: str = ""
    name: str = ""


#: The trail of a call of which nothing is known.
NO_TRAIL: Final = Trail()


def trail_of(parts: Iterable[bytes], root: Hashable = 0, *, follows: str = "", name: str = "") -> Trail:
    """The trail of a prompt in parts, such as the messages of a chat. The end of each part is one of the beginnings.

    Args:
        root: prompts with another root have no beginning in common.

    Example:
        >>> first = trail_of([b"You are a poet.", b"Hello"])
        >>> second = trail_of([b"You are a poet.", b"Hello", b"Hi!", b"Rhyme!"])
        >>> second.hashes[:2] == first.hashes, second.sizes
        (True, (15, 20, 23, 29))
    """
    hashes: list[int] = []
    sizes: list[int] = []
    last, size = hash(root), 0
    for part in parts:
        for start, stop in _cuts(len(part)):
            last = hash((last, part[start:stop]))
            hashes.append(last)
            sizes.append(size + stop)
        size += len(part)
        if len(hashes) >= MOST_BEGINNINGS:
            break
    return Trail(tuple(hashes[:MOST_BEGINNINGS]), tuple(sizes[:MOST_BEGINNINGS]), follows, name)


def _cuts(size: int) -> Iterable[tuple[int, int]]:
    """The pieces of a part of so many bytes."""
    starts: list[Iterable[int]] = []
    for (begin, step), (end, _) in zip(_STEPS, (*_STEPS[1:], (size, 0)), strict=True):
        if begin < size:
            starts.append(range(begin, min(end, size), step))
    points = [*chain.from_iterable(starts), size]
    return pairwise(points)
