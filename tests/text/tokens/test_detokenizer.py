"""Ids to text one at a time: whole characters, the same text as decoding everything at once."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from djl_python.core.types import TextOptions
from djl_python.text.tokens.detokenizer import (
    MAX_PENDING_TOKENS,
    REPLACEMENT,
    ByteDetokenizer,
    WindowDetokenizer,
    detokenizer,
)
from djl_python.text.tokens.tokenizer import Tokenizer
from tests.text.conftest import TEXTS

SKIP_SPECIAL = TextOptions()
SHOW_SPECIAL = TextOptions(skip_special_tokens=False)


def pieces(tokenizer: Tokenizer, ids: list[int], prompt: list[int], options: TextOptions = SKIP_SPECIAL) -> list[str]:
    detok = detokenizer(tokenizer, prompt, options)
    return [*map(detok.push, ids), detok.flush()]


def is_whole(text: str) -> bool:
    return REPLACEMENT not in text


@pytest.mark.parametrize("options", [TextOptions(), SHOW_SPECIAL], ids=["skip", "show"])
def test_a_text_continues_its_prompt_wherever_that_ends(kind: str, tokenizer: Tokenizer, options: TextOptions) -> None:
    for text in TEXTS:
        ids = tokenizer.encode(f"A prompt.{text}")
        whole = tokenizer.decode(ids, options.skip_special_tokens)
        for cut in range(1, len(ids)):
            before = tokenizer.decode(ids[:cut], options.skip_special_tokens)
            if not is_whole(before):
                continue  # the prompt ends within a character
            generated = "".join(pieces(tokenizer, ids[cut:], ids[:cut], options))
            if kind == "word-piece" and not whole.startswith(before):
                continue  # its clean-up changes text that has been read already
            assert before + generated == whole


def test_without_a_prompt_a_text_equals_decode(kind: str, tokenizer: Tokenizer) -> None:
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        for start in range(len(ids)):
            if is_whole(whole := tokenizer.decode(ids[start:])):
                assert "".join(pieces(tokenizer, ids[start:], [])) == whole


def test_a_character_never_splits(loaded: dict[str, Tokenizer]) -> None:
    for kind in ("byte-level", "qwen2", "llama2", "gemma"):
        tokenizer = loaded[kind]
        text = "👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 日本語 한국어 é ñ"
        ids = tokenizer.encode(text, add_special_tokens=False)
        got = pieces(tokenizer, ids, tokenizer.encode("x"))
        assert all(is_whole(piece) for piece in got)
        assert "".join(got).strip() == text
        assert "" in got  # some tokens are unfinished bytes


def test_a_prompt_that_ends_within_a_character_is_completed(loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded["byte-level"]
    ids = tokenizer.encode("👍!", add_special_tokens=False)
    assert len(ids) >= 5
    assert "".join(pieces(tokenizer, ids[2:], ids[:2])) == "👍!"


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_equal_decode_and_never_stall(loaded: dict[str, Tokenizer], seed: int) -> None:
    tokenizer = loaded["byte-level"]
    draw = random.Random(seed)
    ids = [draw.randrange(tokenizer.vocab_size) for _ in range(300)] + tokenizer.encode("z", add_special_tokens=False)
    got = pieces(tokenizer, ids, [])
    assert "".join(got) == tokenizer.decode(ids)
    # No more than three bytes are ever held.
    produced = 0
    for position, piece in enumerate(got, 1):
        produced += len(piece.encode())
        at_least = len(tokenizer.decode(ids[:position]).encode())
        assert at_least - produced <= 3 * len(REPLACEMENT.encode())


def test_invalid_byte_tokens_come_out_at_once(loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded["llama2"]
    lone = tokenizer.token_to_id("<0x80>")
    assert lone is not None
    got = pieces(tokenizer, [lone] * 20, tokenizer.encode("x"))
    assert got == [REPLACEMENT] * 20 + [""]


@pytest.mark.parametrize("kind", [ByteDetokenizer, WindowDetokenizer])
def test_a_character_that_is_cut_off_at_the_end_is_left_out(
    loaded: dict[str, Tokenizer], kind: type[ByteDetokenizer | WindowDetokenizer]
) -> None:
    tokenizer = loaded["byte-level"]
    ids = tokenizer.encode("a👍", add_special_tokens=False)[:-1]
    detok = kind(tokenizer, [], TextOptions())
    assert "".join([*map(detok.push, ids), detok.flush()]) == "a"


@pytest.mark.parametrize("kind", [ByteDetokenizer, WindowDetokenizer])
@pytest.mark.parametrize("name", ["byte-level", "llama2", "gemma"])
def test_a_replacement_character_that_the_model_writes_stays(
    loaded: dict[str, Tokenizer], name: str, kind: type[ByteDetokenizer | WindowDetokenizer]
) -> None:
    tokenizer = loaded[name]
    prompt = tokenizer.encode("x")
    for written in (REPLACEMENT, f"a{REPLACEMENT}{REPLACEMENT}"):
        ids = tokenizer.encode(f"x{written}")[len(prompt) :]
        detok = kind(tokenizer, prompt, TextOptions())
        assert "".join([*map(detok.push, ids), detok.flush()]) == written


def test_window_decoding_is_bounded_too(loaded: dict[str, Tokenizer]) -> None:
    """The way of tokenizers that decode whole sequences only, on one whose right answer is known."""
    tokenizer = loaded["byte-level"]
    for text in TEXTS:
        ids = tokenizer.encode(text)
        detok = WindowDetokenizer(tokenizer, tokenizer.encode("prompt "), TextOptions())
        assert "".join([*map(detok.push, ids), detok.flush()]) == tokenizer.decode(ids)
    lone = tokenizer.encode("👍", add_special_tokens=False)[-1]
    detok = WindowDetokenizer(tokenizer, [], TextOptions())
    got = [detok.push(lone) for _ in range(3 * MAX_PENDING_TOKENS)]
    assert "".join(got)
    assert got.index(next(filter(None, got))) <= MAX_PENDING_TOKENS


@pytest.mark.parametrize("kind", [ByteDetokenizer, WindowDetokenizer])
def test_a_fork_goes_on_from_the_same_text_without_the_other(
    loaded: dict[str, Tokenizer], kind: type[ByteDetokenizer | WindowDetokenizer]
) -> None:
    tokenizer = loaded["byte-level"]
    ids = tokenizer.encode("👍", add_special_tokens=False)
    (other,) = tokenizer.encode("b", add_special_tokens=False)
    detok = kind(tokenizer, [], TextOptions())
    assert "".join(map(detok.push, ids[:-1])) == ""
    fork = detok.fork()
    assert fork.push(other) == f"{REPLACEMENT}b"
    assert fork.fork().push(other) == "b"
    assert detok.push(ids[-1]) == "👍"


def test_special_tokens_show_only_if_asked(loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded["byte-level"]
    ids = tokenizer.encode("a<|end|>b")
    assert pieces(tokenizer, ids, []) == ["a", "", "b", ""]
    assert "".join(pieces(tokenizer, ids, [], SHOW_SPECIAL)) == "a<|end|>b"


def test_special_tokens_that_a_tool_parser_reads_show(loaded: dict[str, Tokenizer]) -> None:
    for kind, end in (("byte-level", "<|end|>"), ("word-piece", "[SEP]")):
        ids = loaded[kind].encode(f"hello{end}hello")
        assert "".join(pieces(loaded[kind].showing([end]), ids, [])).replace(" ", "") == f"hello{end}hello"


def test_ids_without_a_token_have_no_text(loaded: dict[str, Tokenizer]) -> None:
    for tokenizer in (loaded["byte-level"], loaded["llama2"], loaded["word-piece"]):
        assert pieces(tokenizer, [tokenizer.vocab_size + 7], tokenizer.encode("a b")) == ["", ""]


def test_a_token_costs_microseconds(loaded: dict[str, Tokenizer]) -> None:
    for kind in ("byte-level", "llama2"):
        tokenizer = loaded[kind]
        ids = tokenizer.encode("Deep learning is machine learning, isn't it? 👍 " * 200)
        detok = detokenizer(tokenizer, [], TextOptions())
        best = min(timed(detok.push, ids) for _ in range(3))
        assert best / len(ids) < 20e-6  # a tenth of this on an idle machine


def timed(push: Callable[[int], str], ids: list[int]) -> float:
    start = time.perf_counter()
    for token_id in ids:
        push(token_id)
    return time.perf_counter() - start
