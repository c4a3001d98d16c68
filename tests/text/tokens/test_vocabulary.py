"""Every tokenizer's tokens as bytes: joined, they are the text that a client sees."""

from __future__ import annotations

from transformers import ByT5Tokenizer

from djl_python.core.types import TextOptions
from djl_python.text.tokens.detokenizer import detokenizer
from djl_python.text.tokens.tokenizer import SlowBackend, Tokenizer
from djl_python.text.tokens.vocabulary import vocabulary_of
from tests.text.conftest import TEXTS


def streamed(tokenizer: Tokenizer, ids: list[int]) -> str:
    """The text of these tokens behind another one."""
    reader = detokenizer(tokenizer, tokenizer.encode("a", add_special_tokens=False), TextOptions())
    return "".join(map(reader.push, ids)) + reader.flush()


def test_the_bytes_of_a_texts_tokens_are_the_text(tokenizer: Tokenizer) -> None:
    vocabulary = vocabulary_of(tokenizer)
    assert len(vocabulary.tokens) == tokenizer.vocab_size
    for text in TEXTS:
        ids = [i for i in tokenizer.encode(text, add_special_tokens=False) if i not in tokenizer.special_ids]
        assert b"".join(vocabulary.tokens[i] for i in ids).decode() == streamed(tokenizer, ids), text


def test_special_tokens_and_ends_are_named(kind: str, tokenizer: Tokenizer) -> None:
    vocabulary = vocabulary_of(tokenizer)
    assert set(vocabulary.special) == tokenizer.special_ids
    assert vocabulary.ends and set(vocabulary.ends) == tokenizer.eos_ids
    assert vocabulary.definition.startswith("{")


def test_a_tokenizer_in_python_has_a_vocabulary_too() -> None:
    tokenizer = Tokenizer(SlowBackend(ByT5Tokenizer()), eos_ids=[1])
    vocabulary = vocabulary_of(tokenizer)
    ids = tokenizer.encode('{"a": [1, "b c"]}', add_special_tokens=False)
    assert b"".join(vocabulary.tokens[i] for i in ids) == b'{"a": [1, "b c"]}'
    assert vocabulary.definition == "" and 1 in vocabulary.special
