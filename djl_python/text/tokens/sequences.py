"""Texts and pairs of them as a model reads them whole: with special tokens, cut where they are too long.

Runs in the worker, from any of its threads. transformers cuts a text before it adds special tokens; here the finished
sequence loses tokens of its texts, which gives the same ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .long_texts import is_long, least_tokens
from .tokenizer import Tokenizer

#: Which text loses tokens first: the longer one, or always one of the two.
Shortened = Literal["longest", "first", "second"]


@dataclass(frozen=True)
class TokenSequence:
    """A text, or two, as a model reads them.

    Attributes:
        ids: all tokens, special ones included.
        type_ids: which of two texts each belongs to, as the tokenizer's template says.
        texts: by token: 0 or 1, the text to which it belongs; None: a special token that the tokenizer has added.
        spans: by token: the characters of its text that it covers, (start, stop).
        words: by token: the number of the word of its text that it is of; None: of none, or nobody knows.
    """

    ids: list[int]
    type_ids: list[int]
    texts: list[int | None]
    spans: list[tuple[int, int]]
    words: list[int | None]

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, places: Sequence[int]) -> TokenSequence:
        """The tokens at these indices, in their order."""
        return TokenSequence(
            [self.ids[at] for at in places],
            [self.type_ids[at] for at in places],
            [self.texts[at] for at in places],
            [self.spans[at] for at in places],
            [self.words[at] for at in places],
        )

    def places(self, text: int) -> list[int]:
        """The indices of the tokens of one of the texts."""
        return [at for at, of in enumerate(self.texts) if of == text]

    def cut(self, most: int, side: Literal["left", "right"], shortened: Shortened = "longest") -> TokenSequence:
        """At most `most` tokens: texts lose some at one end, and special tokens stay, however many they are."""
        if len(self) <= most:
            return self
        places = self.places(0), self.places(1)
        room = max(0, most - (len(self) - len(places[0]) - len(places[1])))
        keeps = _rooms((len(places[0]), len(places[1])), room, shortened)
        kept = {
            at
            for own, count in zip(places, keeps, strict=True)
            for at in (own[:count] if side == "right" else own[len(own) - count :])
        }
        return self.part([at for at, of in enumerate(self.texts) if of is None or at in kept])


def _rooms(lengths: tuple[int, int], room: int, shortened: Shortened) -> tuple[int, int]:
    """How many tokens each of two texts keeps; as transformers shares them out."""
    first, second = lengths
    if shortened == "first":
        return max(0, room - second), min(second, room)
    if shortened == "second":
        return min(first, room), max(0, room - first)
    if min(first, second) <= room // 2:  # the shorter one stays whole
        return (first, min(second, room - first)) if first <= second else (min(first, room - second), second)
    half = room // 2
    return (half, room - half) if first <= second else (room - half, half)


def sequence_of(tokenizer: Tokenizer, text: str, pair: str | None, *, add_special_tokens: bool = True) -> TokenSequence:
    """A text, or two, as a sequence of tokens."""
    return TokenSequence(*tokenizer.encode_texts(text, pair, add_special_tokens))


def fewest_tokens(tokenizer: Tokenizer, texts: Sequence[str], limit: int) -> int:
    """A lower bound for the tokens of texts so long that they should be counted before they are tokenized; else 0."""
    if not any(is_long(text, limit) for text in texts):
        return 0
    return sum(least_tokens(tokenizer, text, limit) for text in texts)
