"""Replicas behind one front end, by simulated time: who asks when, which replica answers, and what the clients see."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from djl_python.server.models.routing.router import Router, Routing
from djl_python.server.models.routing.trail import Trail
from tests.simulation.chats import BYTES_PER_TOKEN, Chat, Traffic, chats
from tests.simulation.replica import NEVER, Engine, Replica, Turn

#: How a replica is chosen: by the server's router, or by chance.
POLICIES: Final = ("random", "least_busy", "prefix")


@dataclass(frozen=True)
class Loss:
    """A replica is lost at a time, and comes back, empty, after another; in seconds."""

    at_s: float
    for_s: float


@dataclass
class Result:
    """The turns that were answered, in the order of their first tokens, and how often one had to be asked again since
    its replica was lost.
    """

    turns: list[Turn] = field(default_factory=list)
    asked_again: int = 0
    busy_share: float = 0.0

    def between(self, begin_s: float, end_s: float) -> Result:
        """The part of it that arrived in this time."""
        return Result([turn for turn in self.turns if begin_s <= turn.arrived_s < end_s], self.asked_again)

    @property
    def hit_rate(self) -> float:
        """Tokens of prompts that were in the replica's cache, of all."""
        return sum(turn.cached for turn in self.turns) / sum(turn.prompt_tokens for turn in self.turns)

    @property
    def computed_tokens(self) -> int:
        """Tokens of prompts that had to be computed."""
        return sum(turn.prompt_tokens - turn.cached for turn in self.turns)

    def ttft_s(self, share: float) -> float:
        """The time to the first token that this share of the turns does not exceed."""
        times = sorted(turn.first_s - turn.arrived_s for turn in self.turns)
        return times[min(len(times) - 1, int(share * len(times)))]


class Cluster:
    """One simulation.

    Args:
        policy: one of `POLICIES`.
    """

    def __init__(self, policy: str, replicas: int, traffic: Traffic, engine: Engine, seed: int = 1) -> None:
        self._choose = self._by_chance if policy == "random" else self._by_router
        self._router = Router(Routing.LEAST_BUSY if policy == "random" else Routing(policy))
        self._rng = random.Random(seed)
        self._traffic = traffic
        self._engine = engine
        self._replicas = {str(number): Replica(str(number), engine) for number in range(replicas)}
        self._begins = chats(traffic, replicas, seed)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = itertools.count()
        self._queue = deque[Turn]()  # that no replica has room for
        self._result = Result()

    def run(self, until_s: float, losses: Sequence[Loss] = ()) -> Result:
        """What the clients saw until this time."""
        self._next_chat()
        for loss in losses:
            self._at(loss.at_s, lambda now_s, loss=loss: self._lose(now_s, loss))  # type: ignore[misc]
        while self._events and self._events[0][0] < until_s:
            now_s, _, happen = heapq.heappop(self._events)
            happen(now_s)
        busy_s = sum(replica.busy_s for replica in self._replicas.values())
        self._result.busy_share = busy_s / until_s / len(self._replicas)
        return self._result

    def _at(self, when_s: float, happen: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (when_s, next(self._numbers), happen))

    def _next_chat(self) -> None:
        when_s, chat = next(self._begins)

        def begin(now_s: float) -> None:
            self._ask(chat, now_s)
            self._next_chat()

        self._at(when_s, begin)

    def _ask(self, chat: Chat, now_s: float) -> None:
        chat.ask(self._traffic)
        trail = chat.trail
        self._submit(Turn(chat, trail, _tokens(trail), chat.answer_tokens(self._traffic), now_s), now_s)

    def _submit(self, turn: Turn, now_s: float) -> None:
        replica = self._choose(turn.trail, [replica for replica in self._replicas.values() if replica.has_room])
        if replica is None:
            self._queue.append(turn)
            return
        self._send(turn, replica, now_s)

    def _send(self, turn: Turn, replica: Replica, now_s: float) -> None:
        self._router.sent(turn.trail, replica)
        due_s = replica.due_s
        replica.take(turn, now_s)
        if replica.due_s != due_s:
            self._await(replica)

    def _by_router(self, trail: Trail, replicas: Sequence[Replica]) -> Replica | None:
        return self._router.choose(trail, replicas)

    def _by_chance(self, trail: Trail, replicas: Sequence[Replica]) -> Replica | None:
        return self._rng.choice(replicas) if replicas else None

    def _await(self, replica: Replica) -> None:
        due_s = replica.due_s
        if due_s is not NEVER:
            self._at(due_s, lambda now_s: self._stepped(replica, due_s))

    def _stepped(self, replica: Replica, due_s: float) -> None:
        if replica.due_s != due_s or self._replicas.get(replica.name) is not replica:
            return  # it was planned anew, or is lost
        before = [turn for turn in replica.turns if turn.first_s is NEVER]
        for turn in replica.step():
            self._answered(turn, replica, due_s)
        self._result.turns += [turn for turn in before if turn.first_s is not NEVER]
        self._await(replica)
        while self._queue and replica.has_room:
            self._send(self._queue.popleft(), replica, due_s)

    def _answered(self, turn: Turn, replica: Replica, now_s: float) -> None:
        chat = turn.chat
        chat.answered(turn.answer_tokens)
        replica.keep(chat.trail)
        chat.left -= 1
        if chat.left:
            median, sigma = self._traffic.pause
            self._at(now_s + median * chat.rng.lognormvariate(0, sigma), lambda then_s: self._ask(chat, then_s))

    def _lose(self, now_s: float, loss: Loss) -> None:
        name = next(iter(self._replicas))
        lost = self._replicas.pop(name)
        self._router.forget(name)
        for turn in lost.turns:
            self._result.asked_again += 1
            again = Turn(turn.chat, turn.trail, turn.prompt_tokens, turn.answer_tokens, turn.arrived_s)
            self._submit(again, now_s)

        def come_back(then_s: float) -> None:
            replica = self._replicas[name] = Replica(name, self._engine)
            while self._queue and replica.has_room:
                self._send(self._queue.popleft(), replica, then_s)

        self._at(now_s + loss.for_s, come_back)


def _tokens(trail: Trail) -> int:
    return max(1, trail.sizes[-1] // BYTES_PER_TOKEN)


def simulate(
    policy: str,
    replicas: int,
    *,
    until_s: float,
    traffic: Traffic | None = None,
    engine: Engine | None = None,
    losses: Iterable[Loss] = (),
    seed: int = 1,
) -> Result:
    """What the clients of so many replicas see, until this time."""
    return Cluster(policy, replicas, traffic or Traffic(), engine or Engine(), seed).run(until_s, tuple(losses))
