"""When a worker slot gets its next worker, after one has ended or did not load.

Runs in the front end's event loop; starts nothing itself. A slot whose worker has never been ready is given up after
`retry_threshold` failed starts. A slot that has served is retried without end: the missing resource may come back, and
    nothing else would answer its model's requests. Pauses grow up to `BACKOFF_MAX_S`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from ....core.engine_info import EngineInfo

_CPU: Final = "cpu"
#: A restarted worker that was ready for less than this time is restarted only after a delay.
SHORT_LIFE_S = 60.0
BACKOFF_S, BACKOFF_MAX_S = 0.5, 30.0
#: How long a slot lacks something of its machine until only a new container helps.
LOST_AFTER_S = 300.0


@dataclass(frozen=True)
class Life:
    """The life of one worker.

    Attributes:
        ready_s: how long it was ready; None: it never was.
        detail: how it ended, or why it did not load.
        lacking: whether it did not load because the machine lacked something: memory, descriptors, processes, its GPU.
    """

    ready_s: float | None
    detail: str
    lacking: bool = False


class Restarts:
    """The failures of one slot, and the decisions that follow.

    Args:
        retries: failed starts in a row that are tolerated before its first worker is ready.

    Attributes:
        failed: failed starts in a row.
        given_up: whether no further worker is started.
    """

    def __init__(self, retries: int) -> None:
        self.failed = 0
        self.given_up = False
        self._retries = retries
        self._has_served = False
        self._restarts = self._quick_deaths = 0
        self._lacking_since_s: float | None = None  # of an unbroken row of failed starts

    def after(self, life: Life) -> float:
        """Count a life that has ended; returns how many seconds later the next one begins, unless `given_up`."""
        if life.ready_s is None:
            self.failed += 1
            self.given_up = not self._has_served and self.failed > self._retries
            if not life.lacking:
                self._lacking_since_s = None
            elif self._lacking_since_s is None:
                self._lacking_since_s = time.monotonic()
            delay_s = backoff(self.failed)
        else:
            self._has_served, self._lacking_since_s = True, None
            self.failed = 0
            quick = self._restarts > 0 and life.ready_s < SHORT_LIFE_S
            self._quick_deaths = self._quick_deaths + 1 if quick else 0
            delay_s = backoff(self._quick_deaths)
        self._restarts += 1
        return delay_s

    def succeeded(self) -> None:
        """Note that the present worker is ready."""
        self.failed, self._lacking_since_s = 0, None

    @property
    def attempt(self) -> str:
        """Which attempt has just failed, as in "attempt 2 of 3"."""
        return f"attempt {self.failed}" if self._has_served else f"attempt {self.failed} of {self._retries + 1}"

    @property
    def lost(self) -> bool:
        """Whether a slot that has served has lacked a resource of its machine for so long that only a new machine
        helps.
        """
        since_s = self._lacking_since_s
        return self._has_served and since_s is not None and time.monotonic() - since_s >= LOST_AFTER_S


def left_gpu(before: EngineInfo | None, now: EngineInfo | None) -> bool:
    """Whether a slot's model ran on a GPU and its next worker runs it on the CPU, as `option.device=auto` allows."""
    return before is not None and now is not None and before.device not in ("", _CPU) and now.device == _CPU


def backoff(times: int) -> float:
    """Seconds to wait after so many failures in a row."""
    # No larger exponents: a float would overflow after a night of restarts.
    return min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** min(times - 1, 100)) if times else 0.0
