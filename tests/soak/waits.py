"""The victim: a client with a small request every 50 ms, and how long it waited in each phase.

Runs in the soak's event loop. Requests are not sent one after another but at their times, so a server that stops for a
second is seen by 20 of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from tests.soak.ledger import Ledger
from tests.soak.traffic import VICTIM

EVERY_S: Final = 0.05
#: Fewer requests than connections that the operating system lets one wait for.
_AT_ONCE: Final = 200


@dataclass
class Victim:
    """Sends until it is cancelled. A wait is entered under the `phase` in which it began."""

    session: aiohttp.ClientSession
    ledger: Ledger
    phase: str = "warm-up"
    waits_s: dict[str, list[float]] = field(default_factory=dict)

    async def run(self) -> None:
        """Send requests for as long as this is awaited; what is under way at the end is waited for."""
        async with asyncio.TaskGroup() as group:
            under_way: set[asyncio.Task[None]] = set()
            try:
                while True:
                    if len(under_way) < _AT_ONCE:
                        task = group.create_task(self._ask())
                        under_way.add(task)
                        task.add_done_callback(under_way.discard)
                    await asyncio.sleep(EVERY_S)
            except asyncio.CancelledError:
                await asyncio.gather(*under_way)

    async def _ask(self) -> None:
        phase, begun_s = self.phase, time.monotonic()
        await self.ledger.account(VICTIM.name, VICTIM.model, lambda: VICTIM.ask(self.session))
        self.waits_s.setdefault(phase, []).append(time.monotonic() - begun_s)


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share of values lies; of none, 0."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0
