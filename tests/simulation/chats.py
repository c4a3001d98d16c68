"""Chats of several turns, whose prompts have heavy-tailed lengths and begin with shared system prompts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from djl_python.server.models.routing.trail import Trail, trail_of

BYTES_PER_TOKEN: Final = 4


@dataclass(frozen=True)
class Traffic:
    """What the clients do. Lengths are in tokens and log-normal, (median, sigma); times are in seconds.

    Attributes:
        chats_per_s: that begin, per replica; at random times (a Poisson process).
        turns: how many a chat has, on average (geometric).
        pause: between an answer's end and the next question, (median, sigma).
        assistants: how many system prompts there are; the k-th most frequent is as frequent as 1 / k (Zipf).
    """

    chats_per_s: float = 0.3
    turns: float = 6.0
    pause: tuple[float, float] = (8.0, 0.8)
    assistants: int = 40
    system: tuple[float, float] = (900, 0.8)
    question: tuple[float, float] = (60, 1.6)
    answer: tuple[float, float] = (150, 0.7)
    longest: int = 12_000


@dataclass
class Chat:
    """A conversation.

    Attributes:
        messages: its texts, which are made of a number instead of words: equal texts are equal, and no others.
        left: turns that are still to come, the present one included.
    """

    messages: list[bytes]
    left: int
    rng: random.Random = field(repr=False)

    def ask(self, traffic: Traffic) -> None:
        """Add a question."""
        self.messages.append(self._text(traffic, traffic.question))

    def answered(self, tokens: int) -> None:
        """Add an answer of so many tokens."""
        self.messages.append(_text_of(self.rng.getrandbits(64), tokens))

    @property
    def trail(self) -> Trail:
        """What the router sees of it."""
        return trail_of(self.messages)

    def answer_tokens(self, traffic: Traffic) -> int:
        """How long the next answer will be."""
        return _length(self.rng, traffic.answer, 2_000)

    def _text(self, traffic: Traffic, length: tuple[float, float]) -> bytes:
        return _text_of(self.rng.getrandbits(64), _length(self.rng, length, traffic.longest))


def chats(traffic: Traffic, replicas: int, seed: int) -> Iterator[tuple[float, Chat]]:
    """Chats without end, with the times at which they begin."""
    rng = random.Random(seed)
    systems = [_text_of(rng.getrandbits(64), _length(rng, traffic.system, 8_000)) for _ in range(traffic.assistants)]
    weights = [1 / rank for rank in range(1, traffic.assistants + 1)]
    now_s = 0.0
    while True:
        now_s += rng.expovariate(traffic.chats_per_s * replicas)
        (system,) = rng.choices(systems, weights)
        turns = 1
        while rng.random() > 1 / traffic.turns:
            turns += 1
        yield now_s, Chat([system], turns, random.Random(rng.getrandbits(64)))


def _length(rng: random.Random, length: tuple[float, float], most: int) -> int:
    median, sigma = length
    drawn = median * rng.lognormvariate(0, sigma)
    return max(1, min(most, int(drawn)))


def _text_of(number: int, tokens: int) -> bytes:
    return number.to_bytes(8, "big") * (tokens * BYTES_PER_TOKEN // 8 + 1)
