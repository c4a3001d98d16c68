"""Texts too long to be tokenized whole: whether one surely has too many tokens, and the last tokens of one.

Runs in the worker. A tokenizer takes 100 to 600 bytes of memory for each character it is given, so a body of 64 MiB
would take many gigabytes, to be refused in the end. Pieces of it, one after the other, take what one of them does.
"""

from __future__ import annotations

from typing import Final

from .tokenizer import Tokenizer

#: What is tokenized at once: about 20 MB of memory, and 50 ms.
PIECE_CHARS: Final = 100_000
#: Longer texts than this many characters for each token that there may be are counted before they are tokenized. Prose
#: that fits has rarely more; where it has, counting costs as much again as tokenizing does.
_CHARS_PER_TOKEN: Final = 4
#: Tokens of two halves of a word that is one token, because it is too long to be looked at: WordPiece looks at words of
#: up to 100 characters.
_CUT_WORD: Final = 200


def is_long(text: str, limit: int) -> bool:
    """Whether a text of at most `limit` tokens may have to be counted, or cut, before it is tokenized."""
    return len(text) > max(PIECE_CHARS, _CHARS_PER_TOKEN * limit)


def least_tokens(tokenizer: Tokenizer, text: str, limit: int) -> int:
    """Tokens that `text` surely has. Once they are more than `limit`, nobody counts on.

    A text that has no more than that is never said to have: a cut may make several tokens of one, so as many are taken
    off at each; and space is not counted at a cut where some token takes all the space beside it. Whole texts of what a
    tokenizer leaves out, or makes one unknown token of, count for nothing.
    """
    of_a_cut = max(tokenizer.longest_token, _CUT_WORD)
    least = start = 0
    while start < len(text) and least <= limit:
        stop = start + PIECE_CHARS
        if stop < len(text):
            # Between words, so that a tokenizer which looks at whole ones sees them.
            space = text.rfind(" ", start + PIECE_CHARS // 2, stop)
            stop = stop if space < 0 else space
        piece = text[start:stop]
        if tokenizer.takes_spaces:
            piece = piece.strip()
        least += max(0, len(tokenizer.encode(piece, add_special_tokens=False)) - of_a_cut)
        start = stop
    return least


def last_tokens(tokenizer: Tokenizer, text: str, tokens: int, add_special_tokens: bool) -> list[int]:
    """The ids of the end of `text`, at least `tokens` of them where it has so many.

    They are those of the whole text, but perhaps for a word that is longer than all of them together.
    """
    chars = max(PIECE_CHARS, _CHARS_PER_TOKEN * tokens)
    while chars < len(text):
        start = len(text) - chars
        space = text.find(" ", start, start + chars // 2)
        ids = tokenizer.encode(text[start if space < 0 else space :], add_special_tokens)
        if len(ids) >= tokens + tokenizer.longest_token:
            return ids
        chars *= 2
    return tokenizer.encode(text, add_special_tokens)
