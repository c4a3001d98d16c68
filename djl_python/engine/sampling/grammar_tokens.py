"""A model's tokens in llguidance's form. Engine process, in the thread that compiles grammars."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ...core.errors import ParameterError
from ...core.types import Vocabulary

if TYPE_CHECKING:  # imported where it is first needed: most engines never compile a grammar
    from tokenizers import Tokenizer

#: Before a text, so that its tokens are those in the middle of a text, where no space is put before the first word.
_BEFORE: Final = "\n"


class GrammarTokens:
    """A vocabulary in the shape that llguidance's TokenizerWrapper takes: as many tokens as the model has rows.

    Forced text is written in the tokens of `__call__`: the tokenizer's own, which the model knows best, or the longest
        that fit where those stand for other bytes.

    Args:
        rows: rows of the model's embedding, which can be more than the tokenizer has tokens, or fewer.
        eos_ids: tokens that end a text; without any, the tokenizer's own.

    Raises:
        ParameterError: no token ends a text.
    """

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, rows: int, eos_ids: frozenset[int]) -> None:
        known = vocabulary.tokens[:rows]
        self.tokens = known + [b""] * (rows - len(known))
        self.special_token_ids = [token for token in vocabulary.special if token < rows]
        self.eos_token_ids = sorted(token for token in eos_ids or vocabulary.ends if token < rows)
        if not self.eos_token_ids:
            raise ParameterError("grammar: no token of this model ends a text, which structured output needs")
        self.eos_token_id = self.eos_token_ids[0]
        self._left_out = {*self.special_token_ids, *self.eos_token_ids}
        self._ids = {token: i for i, token in reversed([*enumerate(self.tokens)]) if token and i not in self._left_out}
        self._longest = max(map(len, self._ids), default=0)
        self._own = _own_tokenizer(vocabulary.definition)

    def __call__(self, text: bytes) -> list[int]:
        with suppress(UnicodeDecodeError):
            if self._own is not None:
                decoded = text.decode()
                for before in ("", _BEFORE):
                    skipped = len(self._encode(before))
                    ids = self._encode(before + decoded)[skipped:]
                    if self._says(ids, text):
                        return ids
        return self._longest_tokens(text)

    def _encode(self, text: str) -> list[int]:
        assert self._own is not None
        return list(self._own.encode(text, add_special_tokens=False).ids) if text else []

    def _says(self, ids: list[int], text: bytes) -> bool:
        """Whether these tokens spell the text; a special token does not, though its name may be in the text."""
        spell = all(i < len(self.tokens) and i not in self._left_out for i in ids)
        return spell and b"".join(self.tokens[i] for i in ids) == text

    def _longest_tokens(self, text: bytes) -> list[int]:
        """The longest token at the beginning of `text`, and so on; ends where no token fits."""
        ids: list[int] = []
        while text:
            lengths = range(min(self._longest, len(text)), 0, -1)
            length = next((n for n in lengths if text[:n] in self._ids), 0)
            if not length:
                break
            ids.append(self._ids[text[:length]])
            text = text[length:]
        return ids


def _own_tokenizer(definition: str) -> Tokenizer | None:
    from tokenizers import Tokenizer

    return Tokenizer.from_str(definition) if definition else None
