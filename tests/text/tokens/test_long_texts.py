"""What is said of a text without tokenizing it whole is true of the whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import AddedToken

from djl_python.text.tokens import long_texts
from djl_python.text.tokens.long_texts import is_long, last_tokens, least_tokens
from djl_python.text.tokens.tokenizer import FastBackend, Tokenizer
from tests.text.conftest import CORPUS, TEXTS, byte_level

PIECE = 2_500
LONG = {
    "prose": " ".join(CORPUS) * 12,
    "odd": " ".join(TEXTS) * 100,
    "one word": "learning" * 1_500,
    "one letter": "x" * 12_345,
    "space": " " * 12_345,
    "lines": "\n" * 12_345,
    "unknown": "\u16a0\u16a1" * 6_000,
    "special": "<|end|>" * 1_500,
}


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_texts, "PIECE_CHARS", PIECE)


@pytest.fixture(params=LONG)
def text(request: pytest.FixtureRequest) -> str:
    return LONG[request.param]


def test_the_least_is_no_more_than_there_are(tokenizer: Tokenizer, text: str) -> None:
    tokens = len(tokenizer.encode(text, add_special_tokens=False))
    for start in range(0, PIECE, 197):  # cuts elsewhere
        assert least_tokens(tokenizer, text[start:], tokens) <= tokens


def test_a_text_far_too_long_is_recognized_by_its_beginning(tokenizer: Tokenizer) -> None:
    beginning = LONG["prose"][: 5 * PIECE]
    tokens = len(tokenizer.encode(beginning, add_special_tokens=False))
    limit = tokens // 10
    assert limit < least_tokens(tokenizer, LONG["prose"], limit) < tokens
    assert is_long(beginning, limit)
    assert not is_long(beginning, tokens)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("right", [True, False])
def test_space_that_a_token_takes_is_not_counted(left: bool, right: bool) -> None:
    backend = byte_level(["<|end|>"])
    assert not Tokenizer(FastBackend(backend)).takes_spaces
    backend.add_special_tokens([AddedToken("<|taker|>", lstrip=left, rstrip=right)])
    tokenizer = Tokenizer(FastBackend(backend))
    text = " " * 20_000 * left + "<|taker|>" + "\n" * 20_000 * right
    assert len(tokenizer.encode(text)) == 1
    assert least_tokens(tokenizer, text, 1_000) <= 1


def test_the_last_tokens_are_those_of_the_whole(tokenizer: Tokenizer) -> None:
    for name in ("prose", "odd"):
        whole = tokenizer.encode(LONG[name], add_special_tokens=True)
        for tokens in (1, 7, 500):
            ids = last_tokens(tokenizer, LONG[name], tokens, True)
            assert ids[-tokens:] == whole[-tokens:]
            assert len(ids) < len(whole)
        assert last_tokens(tokenizer, LONG[name], len(whole), True) == whole


def test_a_short_text_has_the_tokens_that_it_has(tokenizer: Tokenizer, text: str) -> None:
    ids = last_tokens(tokenizer, text, 50, False)
    assert len(ids) >= min(50, len(tokenizer.encode(text, add_special_tokens=False)))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Characters of what is tokenized."""
    lengths: list[int] = []

    class Counting(FastBackend):
        def encode(self, text: str, add_special_tokens: bool) -> list[int]:
            lengths.append(len(text))
            return super().encode(text, add_special_tokens)

    monkeypatch.setattr("djl_python.text.tokens.tokenizer.FastBackend", Counting)
    yield lengths


def test_no_more_than_a_piece_is_tokenized(counted: list[int], checkpoints: dict[str, Path]) -> None:
    tokenizer = Tokenizer.load(checkpoints["llama3"])
    assert least_tokens(tokenizer, LONG["prose"] * 1_000, 100) > 100
    last_tokens(tokenizer, LONG["prose"] * 1_000, 100, True)
    assert sum(counted) < 10 * PIECE
