"""Stop sequences, against a matcher that is slow and obvious."""

from __future__ import annotations

import random

import pytest

from djl_python.text.stop import StopMatcher, StopSequences


def obvious(text: str, stops: list[str]) -> tuple[int, int] | None:
    """The first to be complete; of those that end together, the longest."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return end - max(map(len, ending)), end
    return None


def obvious_held(text: str, stops: list[str]) -> int:
    return max((length for stop in stops for length in range(1, len(stop)) if text.endswith(stop[:length])), default=0)


@pytest.mark.parametrize("seed", range(200))
def test_random_texts_match_alike_in_random_pieces(seed: int) -> None:
    draw = random.Random(seed)
    stops = ["".join(draw.choices("abc", k=draw.randint(1, 5))) for _ in range(draw.randint(1, 4))]
    text = "".join(draw.choices("abcx", k=40))
    matcher = StopMatcher(StopSequences(stops))
    read = 0
    while read < len(text):
        piece = text[read : read + draw.randint(0, 6)]
        match = matcher.feed(piece)
        if match is not None:
            assert (read + match[0], read + match[1]) == obvious(text, stops)
            return
        read += len(piece)
        assert obvious(text[:read], stops) is None
        assert matcher.held == obvious_held(text[:read], stops)
    assert obvious(text, stops) is None


def test_a_match_that_is_let_pass_can_be_part_of_a_later_one() -> None:
    matcher = StopMatcher(StopSequences(["aa", "aab"]))
    assert matcher.feed("aa", honoured=False) is None
    assert matcher.held == 2  # "aab" may still come
    assert matcher.feed("b") == (-2, 1)


def test_a_leaf_that_is_let_pass_is_not_held() -> None:
    matcher = StopMatcher(StopSequences(["END"]))
    assert matcher.feed("END", honoured=False) is None
    assert matcher.held == 0


def test_many_long_stop_sequences_cost_no_more() -> None:
    stops = ["x" * 999 + str(i) for i in range(100)]
    matcher = StopMatcher(StopSequences(stops))
    assert matcher.feed("x" * 5000) is None
    assert matcher.held == 999
    assert matcher.feed("7") == (-999, 1)


def test_matchers_of_the_same_sequences_are_independent() -> None:
    stops = StopSequences(["END"])
    one, other = StopMatcher(stops), StopMatcher(stops)
    assert one.feed("EN") is None
    assert (one.held, other.held) == (2, 0)
    assert other.feed("D") is None
    assert one.feed("D") == (-2, 1)


def test_a_fork_goes_on_from_the_same_text_without_the_other() -> None:
    matcher = StopMatcher(StopSequences(["END"]))
    assert matcher.feed("EN") is None
    fork = matcher.fork()
    assert fork.feed("x") is None
    assert (matcher.held, fork.held) == (2, 0)
    assert matcher.fork().feed("D") == matcher.feed("D") == (-2, 1)
