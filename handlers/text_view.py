"""What queries ask about any model that reads text: its tokens, and the text of token ids.

Runs in the worker, from any of its threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from djl_python.core.errors import ContextLengthError, ParameterError
from djl_python.dialects.shared.views import TokenSpan
from djl_python.text.tokens.long_texts import is_long, least_tokens
from djl_python.text.tokens.tokenizer import Tokenizer

#: Most tokens of a text that are listed, if the model's context is not longer: clients may count the tokens of texts
#: that are too long to generate from.
MOST_LISTED: Final = 100_000


class TextView:
    """The part of a `dialects.shared.views.QueriedModel` that its tokenizer answers.

    Args:
        max_model_len: tokens that the model takes at most.
    """

    def __init__(self, tokenizer: Tokenizer, max_model_len: int) -> None:
        self.max_model_len = max_model_len
        self._tokenizer = tokenizer

    def tokenize(self, text: str, add_special_tokens: bool = True) -> list[TokenSpan]:
        """The tokens of a text, special ones included (with an empty span).

        Raises:
            ContextLengthError: the text has more tokens than the model's context, and more than MOST_LISTED.
        """
        limit = max(self.max_model_len, MOST_LISTED)
        if is_long(text, limit) and (least := least_tokens(self._tokenizer, text, limit)) > limit:
            raise ContextLengthError(least, None, limit + 1, reason="of which a list is given", at_least=True)
        spans = self._tokenizer.spans(text, add_special_tokens)
        if len(spans) > limit:
            raise ContextLengthError(len(spans), None, limit + 1, reason="of which a list is given")
        return [TokenSpan(token_id, text[start:stop], start, stop) for token_id, start, stop in spans]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool, field: str = "ids") -> str:
        """The text of token ids.

        Args:
            field: the request's name of the ids, for the error.

        Raises:
            ParameterError: an id is not in the vocabulary.
        """
        size = self._tokenizer.vocab_size
        if (wrong := next((token_id for token_id in ids if not 0 <= token_id < size), None)) is not None:
            raise ParameterError(f"{field}: expected token ids >= 0 and < {size}, got {wrong}", field)
        return self._tokenizer.decode(ids, skip_special_tokens)

    def entries(self, ids: Sequence[int]) -> list[str]:
        """The vocabulary's entries of token ids, such as "\u0120hello"; "" for an id that has none."""
        return [self._tokenizer.id_to_token(token_id) or "" for token_id in ids]
