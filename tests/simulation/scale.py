"""The tables of djl_python/docs/scale.md: what routing gives with 2, 16 and 128 replicas, and what a loss costs.

    python -m tests.simulation.scale                           all of it: minutes of processor time
    python -m tests.simulation.scale --replicas 2,16           seconds

Everything is computed from a seed: the same table comes out each time. Each row is of the second half of the simulated
time, when chats come and go in a steady state.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from tests.simulation.chats import Traffic
from tests.simulation.cluster import POLICIES, Loss, simulate

REPLICAS: Final = (2, 16, 128)
#: Chats that begin, per second and replica; of six turns each, on average.
LOADS: Final = {"moderate": 0.25, "high": 0.6}
#: A replica comes back when its machine has started and loaded the model.
LOST_FOR_S: Final = 60.0

_ROUTING: Final = (
    "| replicas | load | routing | requests | hit rate | TTFT p50 | TTFT p99 |\n|---:|---|---|---:|---:|---:|---:|"
)
_LOSSES: Final = (
    "| replicas | asked again | more tokens computed in the minute after | TTFT p99 then | without the loss |\n"
    "|---:|---:|---:|---:|---:|"
)


def until_s(replicas: int) -> float:
    """How long is simulated; with few replicas for longer, so that there are thousands of requests."""
    return 120.0 if replicas > 64 else 200.0 if replicas > 8 else 1600.0


def routing_rows(replicas: int, load: str, policies: Sequence[str] = POLICIES) -> Iterator[str]:
    """What each routing gives, a row of Markdown each."""
    for policy in policies:
        traffic = replace(Traffic(), chats_per_s=LOADS[load])
        end_s = until_s(replicas)
        seen = simulate(policy, replicas, until_s=end_s, traffic=traffic).between(end_s / 2, end_s)
        yield (
            f"| {replicas} | {load} | {policy} | {len(seen.turns):,} | {seen.hit_rate:.0%} "
            f"| {1000 * seen.ttft_s(0.5):.0f} ms | {1000 * seen.ttft_s(0.99):,.0f} ms |"
        )


def loss_row(replicas: int) -> str:
    """What the loss of one replica costs, with routing by prefixes at high load."""
    traffic = replace(Traffic(), chats_per_s=LOADS["high"])
    end_s = until_s(replicas)
    loss = Loss(end_s / 2, LOST_FOR_S)
    without, lost = (
        simulate("prefix", replicas, until_s=end_s, traffic=traffic, losses=losses) for losses in ((), (loss,))
    )
    minute = (loss.at_s, loss.at_s + 60)
    computed = [run.between(*minute).computed_tokens for run in (without, lost)]
    more = computed[1] / computed[0] - 1
    return (
        f"| {replicas} | {lost.asked_again} | {more:+.1%} | {1000 * lost.between(*minute).ttft_s(0.99):,.0f} ms "
        f"| {1000 * without.between(*minute).ttft_s(0.99):,.0f} ms |"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", default=",".join(map(str, REPLICAS)), help="how many (default: %(default)s)")
    counts = [int(count) for count in parser.parse_args(argv).replicas.split(",")]
    print(_ROUTING)
    for replicas in counts:
        for load in LOADS:
            for row in routing_rows(replicas, load):
                print(row, flush=True)
    print(f"\n{_LOSSES}")
    for replicas in counts:
        print(loss_row(replicas), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
