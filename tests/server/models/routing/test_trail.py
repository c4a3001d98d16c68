"""Hashes of a prompt's beginnings: which prompts begin alike, and how closely that is seen."""

from __future__ import annotations

import pytest

from djl_python.server.models.routing.trail import Trail, trail_of


def shared(one: Trail, other: Trail) -> int:
    """How many bytes two trails have in common."""
    sizes = [size for size, a, b in zip(one.sizes, one.hashes, other.hashes, strict=False) if a == b]
    return sizes[-1] if sizes else 0


def test_a_chats_next_turn_begins_with_all_that_was_asked_before() -> None:
    first = trail_of([b"system" * 100, b"question"])
    second = trail_of([b"system" * 100, b"question", b"answer", b"next"])
    other = trail_of([b"system" * 100, b"a question of another"])
    assert shared(second, first) == first.sizes[-1] == 608
    assert shared(other, first) == 600


def test_texts_that_go_on_differently_have_their_beginning_in_common() -> None:
    text = bytes(range(256)) * 40
    cut = text[:5000] + b"x" + text[5001:]
    assert 5000 - 256 < shared(trail_of([text]), trail_of([cut])) <= 5000


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 16 << 10, 20_000, (64 << 10) + 1, 3 << 20])
def test_the_last_beginning_is_all_of_it(size: int) -> None:
    trail = trail_of([bytes(size)])
    assert trail.sizes[-1:] == ((size,) if size else ())
    assert len(trail.hashes) == len(trail.sizes) == len(set(trail.sizes))
    assert sorted(trail.sizes) == list(trail.sizes)


def test_prompts_of_other_roots_have_nothing_in_common() -> None:
    assert shared(trail_of([b"text"], root=b"a"), trail_of([b"text"], root=b"b")) == 0


def test_a_trail_is_bounded_however_many_messages_there_are() -> None:
    assert len(trail_of([b"message %d" % number for number in range(5000)]).hashes) == 512
    assert len(trail_of([bytes(100 << 20)]).hashes) == 512
