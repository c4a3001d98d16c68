"""What a soak found, as Markdown: whether it held, the ledger, the victim's waits, what is in use.

Runs when a soak is over.
"""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from djl_python.bench.report import table
from tests.soak.ledger import Ledger, Outcome
from tests.soak.processes import Growth
from tests.soak.waits import Victim, quantile

#: No attack may have another client wait for longer than this; the aim is a quarter of a second.
HELD_UP_S: Final = 1.0


@dataclass
class Action:
    """An attack or event that was tried: how many seconds it took, what came of it, and what was wrong with that."""

    name: str
    took_s: float
    result: str
    fault: str
    hostile: bool = False


@dataclass
class Found:
    """Everything that a soak found out."""

    command: str
    minutes: float
    ledger: Ledger
    victim: Victim
    actions: list[Action] = field(default_factory=list)
    growths: Sequence[Growth] = ()
    not_tried: Sequence[str] = ()

    @property
    def faults(self) -> list[str]:
        """Why the soak did not hold; empty if it did."""
        grown = [f"{one.name} grew from {one.first:.0f} to {one.last:.0f}" for one in self.growths if not one.is_flat]
        wrong = [f"{one.name}: {one.fault}" for one in self.actions if one.fault]
        return [*self.ledger.faults, *dict.fromkeys(wrong), *self._held_up(), *grown]

    def _held_up(self) -> list[str]:
        attacks = dict.fromkeys(one.name for one in self.actions if one.hostile)
        worst_s = {name: max(self.victim.waits_s.get(name, [0.0])) for name in attacks}
        return [f"{name}: another client waited {s:.1f} s" for name, s in worst_s.items() if s > HELD_UP_S]


def report(results: Found) -> str:
    """The report: a verdict first, then tables."""
    today = datetime.datetime.now(datetime.UTC).date()
    parts = [
        f"### Soak of {results.minutes:g} minutes: {'it held' if not results.faults else 'it did not hold'}",
        f"{today}; {len(os.sched_getaffinity(0))} cores of {platform.machine()}, Python {platform.python_version()}; "
        f"{results.ledger.sent} requests.",
        f"    {results.command}",
    ]
    if results.faults:
        parts += ["\n".join(f"- {fault}" for fault in results.faults)]
    parts += ["The ledger:", _ledger(results.ledger), "The waits of a client with a small request every 50 ms:"]
    parts += [_waits(results.victim)]
    tried = [{"name": a.name, "s": a.took_s, "result": a.result, "fault": a.fault or "-"} for a in results.actions]
    columns = {"name": "what", "s": "took s", "result": "result", "fault": "fault"}
    parts += ["What was done to the server:", table(tried, columns)]
    if results.not_tried:
        parts += ["Not tried, for lack of time: " + ", ".join(results.not_tried) + "."]
    grown = [
        {"n": g.name, "f": g.first, "l": g.last, "s": g.slope_per_hour, "flat": "yes" if g.is_flat else "no"}
        for g in results.growths
    ]
    columns = {"n": "in use", "f": "after the warm-up", "l": "at the end", "s": "per hour", "flat": "flat"}
    parts += ["What was in use:", table(grown, columns)]
    if results.ledger.failures:
        parts += ["The first failures:", "\n".join(f"- `{failure}`" for failure in results.ledger.failures)]
    return "\n\n".join(parts) + "\n"


def _ledger(ledger: Ledger) -> str:
    scenarios = sorted({scenario for scenario, _ in ledger.counts})
    rows = [{"s": one} | {kind.name: ledger.counts[one, kind] for kind in Outcome} for one in scenarios]
    return table(rows, {"s": "requests", **{kind.name: kind.value for kind in Outcome}})


def _waits(victim: Victim) -> str:
    rows = [
        {"p": phase, "n": len(w), "m": quantile(w, 0.5) * 1e3, "p99": quantile(w, 0.99) * 1e3, "w": max(w) * 1e3}
        for phase, w in victim.waits_s.items()
    ]
    return table(rows, {"p": "while", "n": "requests", "m": "median ms", "p99": "p99 ms", "w": "worst ms"})
