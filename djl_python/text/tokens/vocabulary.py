"""All of a tokenizer's tokens as bytes, for grammars. Runs in the worker, in a thread: it may take a second."""

from __future__ import annotations

from ...core.types import Vocabulary
from .token_bytes import bytes_of_entry
from .tokenizer import Tokenizer

#: A token after which others decode as they do in the middle of a text.
_BEFORE = "a"
_INCOMPLETE = "\ufffd"


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    """The bytes that each token adds to a text, for any tokenizer that can be loaded.

    Where a text is not the concatenation of its tokens' bytes (`Tokenizer.token_bytes` is None), a token's bytes are
    those of the text that it adds after another token; if that is no whole character, its entry in the vocabulary has
    them.
    """
    ids = range(tokenizer.vocab_size)
    known = tokenizer.token_bytes
    tokens = [known.of(token_id) for token_id in ids] if known is not None else _decoded(tokenizer)
    return Vocabulary(tokens, sorted(tokenizer.special_ids), sorted(tokenizer.eos_ids), tokenizer.definition)


def _decoded(tokenizer: Tokenizer) -> list[bytes]:
    before = tokenizer.encode(_BEFORE, add_special_tokens=False)[-1:]
    text_before = tokenizer.decode(before, False, True)
    decoded = []
    for token_id in range(tokenizer.vocab_size):
        entry = tokenizer.id_to_token(token_id)
        text = "" if entry is None else tokenizer.decode([*before, token_id], False, True).removeprefix(text_before)
        decoded.append(bytes_of_entry(entry or "") if _INCOMPLETE in text else text.encode())
    return decoded
