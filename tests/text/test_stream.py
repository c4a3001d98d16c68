"""One generation's text: whatever the stop sequences and the pieces, the tokens' texts are the generated text."""

from __future__ import annotations

import random
from typing import Any

import pytest

from djl_python.core.types import Finish, FinishReason, GenerateRequest, SamplingParams, TextOptions, Token, TokenEvent
from djl_python.text.stop import StopSequences
from djl_python.text.stream import PromptRead, TextStream
from djl_python.text.tokens.tokenizer import Tokenizer


def run(
    tokenizer: Tokenizer,
    ids: list[int],
    *,
    end: FinishReason = FinishReason.LENGTH,
    prompt: str = "prompt",
    min_new_tokens: int = 0,
    do_sample: bool = False,
    **options: Any,
) -> tuple[list[Token], Finish, list[str]]:
    """Feed ids as the engine would; (tokens, finish, text known to the client after each event)."""
    request = GenerateRequest(
        prompt=prompt,
        sampling=SamplingParams(max_new_tokens=len(ids), min_new_tokens=min_new_tokens, do_sample=do_sample, seed=7),
        text=TextOptions(**options),
    )
    stops = StopSequences(request.text.stop_sequences) if request.text.stop_sequences else None
    stream = TextStream(tokenizer, request, stops, tokenizer.encode(prompt), prompt)
    tokens: list[Token] = []
    seen: list[str] = []
    for position, token_id in enumerate(ids, 1):
        released, finish = stream.push(
            TokenEvent(1, token_id, logprob=-0.5, finish=end if position == len(ids) else None)
        )
        tokens += released
        seen.append("".join(token.text for token in tokens))
        if finish is not None:
            assert finish.text == seen[-1]
            assert finish.generated_tokens == len(tokens) == position
            return tokens, finish, seen
    raise AssertionError("no finish")


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


@pytest.fixture
def plain(loaded: dict[str, Tokenizer]) -> Tokenizer:
    return loaded["byte-level"]


def test_every_token_leaves_at_once_without_stop_sequences(plain: Tokenizer) -> None:
    ids = encode(plain, "hello world, 👍 yes")
    tokens, finish, _ = run(plain, ids)
    assert [token.id for token in tokens] == ids
    assert finish.text == "hello world, 👍 yes"
    assert (finish.reason, finish.prompt, finish.prompt_tokens) == ("length", "prompt", len(plain.encode("prompt")))
    assert finish.seed is None


def test_seed_is_told_where_it_had_an_effect(plain: Tokenizer) -> None:
    assert run(plain, encode(plain, "a"), do_sample=True)[1].seed == 7


@pytest.mark.parametrize(
    ("text", "stops", "expected", "with_stop"),
    [
        ("hello world and more", ["world"], "hello ", "hello world"),
        ("hello world and more", ["o w"], "hell", "hello w"),
        ("hello world and more", ["nowhere"], None, None),
        ("hello world", ["world", "wor"], "hello ", "hello wor"),
        ("a<stop", ["<stop>"], None, None),
        ("x👍y👎z", ["👎"], "x👍y", "x👍y👎"),
        ("one\n\ntwo", ["\n\n"], "one", "one\n\n"),
        ("abcabcabd", ["abcabd"], "abc", "abcabcabd"),
        ("hello", ["hello"], "", "hello"),
    ],
)
def test_a_text_ends_at_its_stop_sequence(
    plain: Tokenizer, text: str, stops: list[str], expected: str | None, with_stop: str
) -> None:
    for kept in (False, True):
        tokens, finish, seen = run(
            plain, encode(plain, text), stop_sequences=tuple(stops), include_stop_str_in_output=kept
        )
        if expected is None:
            assert (finish.reason, finish.stop, finish.text) == ("length", None, text)
        else:
            assert (finish.reason, finish.text) == ("stop_sequence", with_stop if kept else expected)
        # What the client has seen was never taken back.
        assert all(finish.text.startswith(part) for part in seen)
        assert [token.id for token in tokens] == encode(plain, text)[: len(tokens)]


@pytest.mark.parametrize("seed", range(30))
def test_random_stop_sequences_end_texts_of_every_tokenizer(kind: str, tokenizer: Tokenizer, seed: int) -> None:
    draw = random.Random(seed)
    words = ["hello", "world", "größe", "👍🏽", "日本", "and", "more", ",", "\n", "  "]
    text = " ".join(draw.choices(words, k=12))
    ids = encode(tokenizer, text)
    whole = run(tokenizer, ids)[1].text
    at = draw.randrange(max(len(whole) - 4, 1))
    stop = whole[at : at + draw.randint(1, 4)] or "x"
    stops = (stop, "never here", whole[:1] + "zz")
    _, finish, _ = run(tokenizer, ids, stop_sequences=stops)
    assert (finish.reason, finish.stop) == ("stop_sequence", stop)
    assert finish.text == whole[: whole.index(stop)]
    assert stop not in finish.text


def test_stop_sequences_wait_for_min_new_tokens(plain: Tokenizer) -> None:
    ids = encode(plain, "a.b.c.d")
    assert run(plain, ids, stop_sequences=(".",))[1].text == "a"
    _, finish, _ = run(plain, ids, stop_sequences=(".",), min_new_tokens=3)
    assert finish.text == "a.b"
    assert finish.generated_tokens == 4
    assert run(plain, ids, stop_sequences=(".",), min_new_tokens=2)[1].text == "a"


@pytest.mark.parametrize("reason", [FinishReason.EOS, FinishReason.STOP])
def test_the_token_that_ends_has_no_text(plain: Tokenizer, reason: FinishReason) -> None:
    eos = plain.token_to_id("<|end|>")
    assert eos is not None
    tokens, finish, _ = run(plain, [*encode(plain, "hi"), eos], end=reason)
    assert (tokens[-1].id, tokens[-1].text, tokens[-1].special) == (eos, "", True)
    assert (finish.text, finish.reason, finish.generated_tokens) == ("hi", reason, len(tokens))


def test_an_ordinary_token_may_be_the_eos(plain: Tokenizer) -> None:
    for kept in (False, True):
        tokens, finish, _ = run(plain, encode(plain, "ab"), end=FinishReason.EOS, include_stop_str_in_output=kept)
        assert (finish.text, tokens[-1].special) == ("a", True)


def test_a_special_token_is_said_to_be_one(plain: Tokenizer) -> None:
    ids = encode(plain, "a<|end|>b<|end|>")
    for skip in (True, False):
        tokens, _, _ = run(plain, ids, skip_special_tokens=skip)
        assert [token.special for token in tokens] == [False, True, False, True]


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("special", [True, False])
def test_a_stop_token_shows_if_stop_texts_do(plain: Tokenizer, skip: bool, special: bool) -> None:
    """Whether special tokens show has nothing to do with it, but for a stop token that is a special one itself."""
    stop = plain.token_to_id("<|end|>") if special else encode(plain, "!")[0]
    assert stop is not None
    ids = [*encode(plain, "hi"), stop]
    left_out = run(plain, ids, end=FinishReason.STOP, skip_special_tokens=skip)[1]
    assert left_out.text == "hi"
    kept = run(plain, ids, end=FinishReason.STOP, skip_special_tokens=skip, include_stop_str_in_output=True)[1]
    assert kept.text == ("hi" if skip and special else "hi<|end|>" if special else "hi!")


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("included", [True, False])
def test_a_special_token_may_be_a_stop_sequence(plain: Tokenizer, skip: bool, included: bool) -> None:
    """Where special tokens are left out of the text, the engine ends it at the token (`hidden_stops`)."""
    stop = plain.token_to_id("<|end|>")
    assert stop is not None
    ended = run(
        plain,
        [*encode(plain, "hi"), stop],
        end=FinishReason.STOP,
        skip_special_tokens=skip,
        include_stop_str_in_output=included,
        stop_sequences=("<|end|>", "?"),
    )[1]
    assert (ended.reason, ended.stop, ended.text) == (FinishReason.STOP, "<|end|>", "hi<|end|>" if included else "hi")


def test_a_token_has_one_name_wherever_it_stands(plain: Tokenizer) -> None:
    """Half a character, the end of a text, and what a stop sequence cuts off are called as they are elsewhere."""
    eos = plain.token_to_id("<|end|>")
    assert eos is not None
    ids = [*encode(plain, "a👍 stop"), eos]
    for stops in ((), ("st",)):
        request = GenerateRequest(
            prompt="x", sampling=SamplingParams(max_new_tokens=99), text=TextOptions(stop_sequences=stops)
        )
        stream = TextStream(plain, request, StopSequences(stops) if stops else None, [3], "x")
        told: list[Token] = []
        for token_id in ids:
            finish = FinishReason.EOS if token_id == eos else None
            event = TokenEvent(1, token_id, logprob=-0.5, finish=finish, top=((token_id, -0.5), (3, -1.0)))
            tokens, ended = stream.push(event)
            told += tokens
            if ended is not None:
                break
        assert all(token.alternative == token.top[0] for token in told)
        own = b"".join(token.top[0].own_bytes for token in told)
        assert own.decode().startswith("a👍 st")
        assert not told[-1].text
    assert told[1].alternative is not None and not told[1].text


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("kept", [True, False])
def test_an_end_of_text_shows_only_if_stop_texts_do(plain: Tokenizer, skip: bool, kept: bool) -> None:
    eos = plain.token_to_id("<|end|>")
    assert eos is not None
    ids = [*encode(plain, "hi"), eos]
    _, finish, _ = run(plain, ids, end=FinishReason.EOS, skip_special_tokens=skip, include_stop_str_in_output=kept)
    assert finish.text == ("hi<|end|>" if kept and not skip else "hi")


def test_an_ordinary_stop_token_shows_if_asked(plain: Tokenizer) -> None:
    ids = encode(plain, "hi!")
    assert run(plain, ids, end=FinishReason.STOP)[1].text == "hi"
    assert run(plain, ids, end=FinishReason.STOP, include_stop_str_in_output=True)[1].text == "hi!"


def test_an_end_lets_go_what_was_held(plain: Tokenizer) -> None:
    eos = plain.token_to_id("<|end|>")
    assert eos is not None
    _, finish, seen = run(plain, [*encode(plain, "a<st"), eos], end=FinishReason.EOS, stop_sequences=("<stop>",))
    assert finish.text == "a<st"
    assert finish.reason == "eos_token"
    assert seen[-2] == "a"


def test_a_character_that_is_cut_off_at_the_end_is_left_out(plain: Tokenizer) -> None:
    ids = encode(plain, "a👍")[:-1]
    assert run(plain, ids)[1].text == "a"
    eos = plain.token_to_id("<|end|>")
    assert eos is not None
    assert run(plain, [*ids, eos], end=FinishReason.EOS)[1].text == "a"


def test_alternatives_and_prompt_tokens_have_their_texts(loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded["llama3"]
    prompt = "hello wörld"
    ids = tokenizer.encode(prompt)
    request = GenerateRequest(prompt=prompt, sampling=SamplingParams(max_new_tokens=1))
    stream = TextStream(tokenizer, request, None, ids, prompt)
    end = tokenizer.token_to_id("<|end|>")
    assert end is not None
    event = TokenEvent(
        1,
        ids[1],
        logprob=-0.25,
        finish=FinishReason.LENGTH,
        top=((ids[1], -0.25), (end, -2.0)),
        prompt=((None, ()), *((-1.5, ((end, -0.5),)) for _ in ids[1:])),
    )
    (token,), finish = stream.push(event)
    assert [(top.id, top.logprob, top.special) for top in token.top] == [(ids[1], -0.25, False), (end, -2.0, True)]
    assert finish is not None
    assert [t.id for t in finish.prefill] == ids
    assert [t.logprob for t in finish.prefill] == [None] + [-1.5] * (len(ids) - 1)
    assert finish.prefill[0].special and not finish.prefill[1].special
    assert "".join(t.text for t in finish.prefill) == "<|begin|>hello wörld"
    assert finish.prefill[1].top[0].text == "<|end|>"


def test_logprobs_add_up_with_those_of_held_tokens(plain: Tokenizer) -> None:
    ids = encode(plain, "one two STOP more")
    _, finish, _ = run(plain, ids, stop_sequences=("STOP",))
    assert finish.cumulative_logprob == pytest.approx(-0.5 * finish.generated_tokens)


def test_prompt_tokens_of_a_sibling_are_used_again(plain: Tokenizer) -> None:
    known = PromptRead((Token(1, "x", None),), 1)
    request = GenerateRequest(prompt="x", sampling=SamplingParams(max_new_tokens=1))
    stream = TextStream(plain, request, None, plain.encode("x"), "x", known)
    event = TokenEvent(1, plain.encode("a")[0], finish=FinishReason.LENGTH, cached_tokens=0)
    _, finish = stream.push(event)
    assert finish is not None and (finish.prefill, finish.cached_tokens) == known
