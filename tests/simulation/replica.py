"""A simulated replica: continuous batching with chunked prefill, and a prefix cache that evicts what was used least
recently.

A step takes `step_s`, and more for each sequence that decodes and each prompt token that is computed: three constants
that any engine has, and that can be measured. That long contexts make decoding slower is left out.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Final

from djl_python.server.models.routing.trail import Trail
from tests.simulation.chats import BYTES_PER_TOKEN, Chat

NEVER: Final = math.inf


@dataclass(frozen=True)
class Engine:
    """What a replica can do. By default about what a model with 8 billion weights does on a GPU of a data centre.

    Attributes:
        step_s: a step's time, however many sequences there are.
        decode_s: more of it for each sequence that decodes.
        prefill_s: more of it for each token of a prompt that is computed.
        prefill_tokens: of prompts, in a step.
        at_once: sequences that run at once.
        cache_tokens: that the KV cache has room for.
    """

    step_s: float = 0.015
    decode_s: float = 0.00006
    prefill_s: float = 0.0001
    prefill_tokens: int = 1024
    at_once: int = 64
    cache_tokens: int = 300_000


@dataclass
class Turn:
    """A request: the turn of a chat, on its way.

    Attributes:
        cached: tokens of its prompt that its replica had, once it has begun.
        first_s: when its first token came.
    """

    chat: Chat
    trail: Trail
    prompt_tokens: int
    answer_tokens: int
    arrived_s: float
    cached: int = 0
    first_s: float = NEVER
    left: int = 0  # tokens of the prompt that are to be computed

    def __lt__(self, other: Turn) -> bool:
        return self.arrived_s < other.arrived_s


class PrefixCache:
    """Beginnings of prompts whose keys and values are there, by the same hashes as the router's."""

    def __init__(self, tokens: int) -> None:
        self._room = tokens
        self._used = 0
        self._pieces: OrderedDict[int, int] = OrderedDict()  # hash of a beginning -> tokens of its last piece

    def known(self, trail: Trail) -> int:
        """How many tokens of a prompt are there."""
        size = 0
        for each, bytes_ in zip(trail.hashes, trail.sizes, strict=True):
            if each not in self._pieces:
                break
            size = bytes_
        return size // BYTES_PER_TOKEN

    def add(self, trail: Trail, running: int) -> None:
        """Keep a prompt, beside so many tokens of running sequences. Its longest beginnings are evicted first."""
        sizes = [size // BYTES_PER_TOKEN for size in trail.sizes]
        for each, size, before in zip(reversed(trail.hashes), reversed(sizes), [*reversed(sizes[:-1]), 0], strict=True):
            if each not in self._pieces:
                self._pieces[each] = size - before
                self._used += size - before
            self._pieces.move_to_end(each)
        while self._pieces and self._used + running > self._room:
            self._used -= self._pieces.popitem(last=False)[1]


class Replica:
    """One replica. Is a `routing.router.Candidate`.

    Attributes:
        due_s: when its step, or the last of the equal steps that it is in, ends.
        busy_s: how long it has computed.
    """

    spare = False
    shares_prefixes = True

    def __init__(self, name: str, engine: Engine) -> None:
        self.name = name
        self.due_s = NEVER
        self.busy_s = 0.0
        self._engine = engine
        self._cache = PrefixCache(engine.cache_tokens)
        self._waiting = deque[Turn]()
        self._prefilling = deque[Turn]()
        self._decoding: list[tuple[int, Turn]] = []  # a heap: (number of its last step, turn)
        self._steps = 0  # that are done
        self._began_s = 0.0  # of the step that is being done, or of the first of several
        self._each_s = 0.0  # how long one of these takes
        self._count = 0  # how many of them there are
        self._chunk = 0  # prompt tokens in it
        self._running_tokens = 0

    @property
    def at_once(self) -> int:
        return self._engine.at_once

    @property
    def taken(self) -> int:
        """Requests that it has."""
        return len(self._waiting) + len(self._prefilling) + len(self._decoding)

    @property
    def has_room(self) -> bool:
        """As the built-in handler: as many may wait in it as run."""
        return self.taken < 2 * self.at_once

    @property
    def turns(self) -> list[Turn]:
        """All that it has."""
        return [*self._waiting, *self._prefilling, *(turn for _, turn in self._decoding)]

    def take(self, turn: Turn, now_s: float) -> None:
        """Take a request. Steps without prompt tokens that have not begun yet are planned anew."""
        self._waiting.append(turn)
        if self.due_s is NEVER:
            self._plan(now_s)
        elif not self._chunk and self._count > 1:
            self._count = max(1, math.ceil((now_s - self._began_s) / self._each_s))
            self.due_s = self._began_s + self._count * self._each_s

    def step(self) -> list[Turn]:
        """Do the steps that end now; the turns that are complete."""
        now_s = self.due_s
        self.busy_s += self._count * self._each_s
        self._steps += self._count
        self._compute_prompts(now_s)
        ended = []
        while self._decoding and self._decoding[0][0] <= self._steps:
            _, turn = heapq.heappop(self._decoding)
            self._running_tokens -= turn.prompt_tokens + turn.answer_tokens
            ended.append(turn)
        self._plan(now_s)
        return ended

    def keep(self, trail: Trail) -> None:
        """Keep a chat up to its answer."""
        self._cache.add(trail, self._running_tokens)

    def _compute_prompts(self, now_s: float) -> None:
        left = self._chunk
        while left and self._prefilling:
            turn = self._prefilling[0]
            part = min(left, turn.left)
            turn.left -= part
            left -= part
            if not turn.left:
                self._prefilling.popleft()
                turn.first_s = now_s
                self._cache.add(turn.trail, self._running_tokens)
                heapq.heappush(self._decoding, (self._steps + turn.answer_tokens - 1, turn))

    def _plan(self, now_s: float) -> None:
        while self._waiting and len(self._prefilling) + len(self._decoding) < self.at_once:
            turn = self._waiting.popleft()
            turn.cached = min(self._cache.known(turn.trail), turn.prompt_tokens - 1)
            turn.left = turn.prompt_tokens - turn.cached
            self._running_tokens += turn.prompt_tokens + turn.answer_tokens
            self._prefilling.append(turn)
        engine = self._engine
        self._began_s = now_s
        self._chunk = min(engine.prefill_tokens, sum(turn.left for turn in self._prefilling))
        self._each_s = engine.step_s + engine.decode_s * len(self._decoding) + engine.prefill_s * self._chunk
        if self._chunk:
            self._count = 1
        elif self._decoding:
            self._count = max(1, self._decoding[0][0] - self._steps)
        else:
            self.due_s = NEVER
            return
        self.due_s = now_s + self._count * self._each_s
