"""Texts too long to be tokenized whole: a lower bound for their number of tokens, and their last tokens.

Runs in the worker. A tokenizer takes 100 to 600 bytes of memory per character, so a body of 64 MiB would take many
gigabytes, only to be refused. Tokenizing it in pieces, one after the other, takes the memory of one piece.
"""

from __future__ import annotations

from typing import Final

from .tokenizer import Tokenizer

#: Characters tokenized at once: about 20 MB of memory, and 50 ms.
PIECE_CHARS: Final = 100_000
#: Texts with more characters than this per allowed token are counted before they are tokenized. Prose that fits is
#: rarely longer; if it is, counting doubles the cost of tokenizing.
_CHARS_PER_TOKEN: Final = 4
#: Most tokens of the two halves of a cut word which, uncut, is too long and becomes one (unknown) token: WordPiece
#: splits words of up to 100 characters.
_CUT_WORD: Final = 200


def is_long(text: str, limit: int) -> bool:
    """Whether a text must be counted, or cut, before it is tokenized, if `limit` tokens are allowed."""
    return len(text) > max(PIECE_CHARS, _CHARS_PER_TOKEN * limit)


def least_tokens(tokenizer: Tokenizer, text: str, limit: int) -> int:
    """A lower bound for the number of tokens of `text`. Counting stops once it exceeds `limit`.

    The bound never exceeds the true number: a cut may split one token into several, so as many are subtracted at each
    cut; and space at a cut is not counted if a token may absorb all the space beside it. Long texts that the tokenizer
    drops, or turns into one unknown token, add nothing.
    """
    of_a_cut = max(tokenizer.longest_token, _CUT_WORD)
    least = start = 0
    while start < len(text) and least <= limit:
        stop = start + PIECE_CHARS
        if stop < len(text):
            # Cut between words, for tokenizers that look at whole words.
            space = text.rfind(" ", start + PIECE_CHARS // 2, stop)
            stop = stop if space < 0 else space
        piece = text[start:stop]
        if tokenizer.takes_spaces:
            piece = piece.strip()
        least += max(0, len(tokenizer.encode(piece, add_special_tokens=False)) - of_a_cut)
        start = stop
    return least


def last_tokens(tokenizer: Tokenizer, text: str, tokens: int, add_special_tokens: bool) -> list[int]:
    """The ids of the end of `text`, at least `tokens` of them if it has so many.

    They equal the whole text's last ids, except perhaps where one word is longer than all of them together.
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
