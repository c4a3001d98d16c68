"""The ledger: what became of each request, and whether something explains it.

Runs in the soak's event loop. A request that failed is explained by a disturbance (a kill, a freeze, ...) of its model
that was open while the request was, or had ended at most `GRACE_S` before it began (a disturbance lasts until the model
answers again). Nothing explains a wrong answer.
"""

from __future__ import annotations

import contextlib
import enum
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import aiohttp

#: How long after its first answer a disturbed model may still refuse what had waited for it, in seconds.
GRACE_S: Final = 2.0
#: Refusals that clients are told to expect from a busy server.
BUSY: Final = frozenset({429})
_SHOWN: Final = 20


class Refused(Exception):
    """An answer with a status other than 2xx; `status` is that, `body` its beginning."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body[:200]}")
        self.status = status


class Broken(Exception):
    """An answer that began with 200 and did not end as its dialect says, or ended with an error."""


class Outcome(enum.Enum):
    """What became of a request; the last two are failures of the soak."""

    RIGHT = "right"
    REFUSED = "refused as documented"
    CUT = "cut off, explained"
    WRONG = "wrong answer"
    UNEXPLAINED = "unexplained"


FAILURES: Final = (Outcome.WRONG, Outcome.UNEXPLAINED)


@dataclass
class Disturbance:
    """Something that the soak does to a model (or, with an empty name, to all). `ended_s` is infinite until it ends."""

    name: str
    model: str
    begun_s: float
    ended_s: float = float("inf")

    def explains(self, model: str, begun_s: float, ended_s: float) -> bool:
        """Whether a request for `model`, between these times of `time.monotonic`, may have failed because of this."""
        return self.model in ("", model) and self.begun_s <= ended_s and begun_s <= self.ended_s + GRACE_S


@dataclass
class Ledger:
    """Counts of outcomes by scenario, and descriptions of the first failures."""

    counts: Counter[tuple[str, Outcome]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    disturbances: list[Disturbance] = field(default_factory=list)
    sent: int = 0
    expected: dict[str, str] = field(default_factory=dict)

    @contextlib.contextmanager
    def disturb(self, name: str, model: str) -> Iterator[None]:
        """The block disturbs a model, or all (an empty name)."""
        disturbance = Disturbance(name, model, time.monotonic())
        self.disturbances.append(disturbance)
        try:
            yield
        finally:
            disturbance.ended_s = time.monotonic()

    async def account(self, scenario: str, model: str, ask: Callable[[], Awaitable[str]]) -> Outcome:
        """Ask, and enter what became of it; a scenario's first answer is what its later ones are compared with."""
        self.sent += 1
        begun_s = time.monotonic()
        reason = ""
        try:
            answer = await ask()
            outcome = Outcome.RIGHT
            if answer != self.expected.setdefault(scenario, answer):
                outcome, reason = Outcome.WRONG, f"{answer[:200]!r} instead of {self.expected[scenario][:200]!r}"
        except Refused as error:
            outcome, reason = self._explained(model, begun_s), str(error)
            if error.status in BUSY:
                outcome = Outcome.REFUSED
        except (Broken, aiohttp.ClientError, OSError, TimeoutError) as error:
            outcome, reason = self._explained(model, begun_s), f"{type(error).__name__}: {error}"
        self.enter(scenario, outcome, reason)
        return outcome

    def enter(self, scenario: str, outcome: Outcome, reason: str) -> None:
        """Count an outcome; of a failure, keep the reason."""
        self.counts[scenario, outcome] += 1
        if outcome in FAILURES and len(self.failures) < _SHOWN:
            self.failures.append(f"{scenario}: {outcome.value}: {reason}")

    def _explained(self, model: str, begun_s: float) -> Outcome:
        now_s = time.monotonic()
        explained = any(one.explains(model, begun_s, now_s) for one in self.disturbances)
        return Outcome.CUT if explained else Outcome.UNEXPLAINED

    @property
    def faults(self) -> list[str]:
        """Why the ledger does not balance; empty if it does."""
        problems = []
        for outcome in FAILURES:
            count = sum(number for (_, kind), number in self.counts.items() if kind is outcome)
            if count:
                problems.append(f"{count} requests: {outcome.value}")
        entered = sum(self.counts.values())
        if entered != self.sent:
            problems.append(f"{self.sent} requests were sent, {entered} accounted for")
        return problems
