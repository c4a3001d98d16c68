"""Decides when a model gets another worker, and when a spare one goes; does neither itself.

Runs in the front end's event loop. A model always has its minimum of workers on each device, and spare workers up to
its maximum while calls wait: for a slot, or in every worker, whose batches or KV caches are full of what is in flight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from ....config import ModelConfig, bounds_of, bounds_on, devices_of

#: How long a call waits for a slot before another worker starts.
WAIT_S: Final = 1.0
#: With more calls waiting than so many batches (as in DJL), another worker starts at once.
BATCHES: Final = 2
#: How long a device gets no spare worker after one has failed there.
PAUSE_S: Final = 60.0


@dataclass(frozen=True)
class WorkerLoad:
    """A worker that can answer, or is loading.

    Attributes:
        spare: whether it may be removed when idle.
        ready: whether it can answer.
        idle_since_s: since when it has had nothing to do; None: it is busy, or loading.
        crowded_since_s: since when requests have waited in it for a place in its batch, or for room in its KV cache;
            None: none does, or it has no batch.
    """

    name: str
    device: str
    spare: bool
    ready: bool
    idle_since_s: float | None
    crowded_since_s: float | None = None


@dataclass(frozen=True)
class Decision:
    """The devices that get a worker, and the workers to remove.

    Attributes:
        grow: devices that get a worker each.
        shrink: names of workers that go.
        again_s: when to decide again if nothing else happens; None: then there is nothing to decide.
    """

    grow: Sequence[str] = ()
    shrink: Sequence[str] = ()
    again_s: float | None = None


class Scaling:
    """Decides for one model. All times are in seconds, on one clock.

    Args:
        bounds: for each device the least and the largest number of its workers.
        batch_size: calls that a worker gathers into a batch.
        max_idle_time_s: how long a spare worker may have nothing to do.
    """

    def __init__(self, bounds: Mapping[str, tuple[int, int]], batch_size: int, max_idle_time_s: float) -> None:
        self._bounds = bounds
        self._long_queue = BATCHES * batch_size
        self._max_idle_time_s = max_idle_time_s
        self._paused_until_s: dict[str, float] = {}
        self._ready: dict[str, set[str]] = {}  # names of a device's workers that could answer when it was last decided
        self._came_s: dict[str, float] = {}  # when the last one of a device did so for the first time

    @property
    def fixed(self) -> bool:
        """Whether the number of workers never changes."""
        return all(least == most for least, most in self._bounds.values())

    def failed(self, device: str, now_s: float) -> None:
        """A spare worker has not loaded, or has died: the next one may fail too, and loading it slows others down."""
        self._paused_until_s[device] = now_s + PAUSE_S

    def decide(
        self, now_s: float, waiting: int, waiting_since_s: float | None, workers: Sequence[WorkerLoad]
    ) -> Decision:
        """Decide what to do.

        Args:
            waiting: how many calls wait for a slot.
            waiting_since_s: since when the first of them has; None: none waits.
        """
        grow, shrink, again = [], [], []
        for device, (least, most) in self._bounds.items():
            here = [worker for worker in workers if worker.device == device]
            ready = {worker.name for worker in here if worker.ready}
            if ready - self._ready.get(device, set()):
                self._came_s[device] = now_s
            self._ready[device] = ready
            pressed_since_s = _earliest(waiting_since_s, _all_crowded_since(here))
            # One at a time, which then has a moment to take calls: only that shows whether another is needed.
            if (
                pressed_since_s is not None
                and sum(worker.spare for worker in here) < most - least
                and len(ready) == len(here)
            ):
                long_s = max(pressed_since_s, self._came_s.get(device, 0.0)) + WAIT_S
                due_s = now_s if waiting > self._long_queue else long_s
                due_s = max(due_s, self._paused_until_s.get(device, now_s))
                if due_s <= now_s:
                    grow.append(device)
                else:
                    again.append(due_s)
            going, due_s = self._idle(now_s, here, least) if waiting_since_s is None else ([], now_s + WAIT_S)
            shrink += going
            if any(worker.spare and worker.name not in going for worker in here):
                again.append(due_s)
        return Decision(grow, shrink, min(again, default=None))

    def _idle(self, now_s: float, here: Sequence[WorkerLoad], least: int) -> tuple[list[str], float]:
        """Names of the spare workers of a device that go now, and when the next may."""
        going: list[str] = []
        next_s = now_s + self._max_idle_time_s
        more = sum(worker.ready for worker in here) - least  # one that is loading does not stand in for another yet
        for worker in here:
            if not worker.spare or worker.idle_since_s is None:
                continue
            due_s = worker.idle_since_s + self._max_idle_time_s
            if due_s > now_s:
                next_s = min(next_s, due_s)
            elif len(going) < more:
                going.append(worker.name)
        return going, next_s


def _all_crowded_since(workers: Sequence[WorkerLoad]) -> float | None:
    """Since when each of these workers has had requests that wait in it; None: one has none, or there is no worker."""
    since = [worker.crowded_since_s for worker in workers]
    return max((at for at in since if at is not None), default=None) if None not in since else None


def _earliest(*times: float | None) -> float | None:
    return min((at for at in times if at is not None), default=None)


def worker_configs(config: ModelConfig) -> list[ModelConfig]:
    """One configuration for each worker that always runs."""
    return [on_device(config, device) for device in devices_of(config) for _ in range(bounds_on(config, device)[0])]


def on_device(config: ModelConfig, device: str) -> ModelConfig:
    """The configuration of a worker on this device."""
    return msgspec.structs.replace(config, option=msgspec.structs.replace(config.option, device=device))


def with_workers(config: ModelConfig, least: int, most: int) -> ModelConfig:
    """The configuration with so many workers on each device."""
    special = dict.fromkeys(("cpu_min_workers", "cpu_max_workers", "gpu_min_workers", "gpu_max_workers"))
    serving = msgspec.structs.replace(config.serving, min_workers=least, max_workers=most, **special)
    return msgspec.structs.replace(config, serving=serving)


def scaling_of(config: ModelConfig) -> Scaling:
    """The scaling of a model with this configuration."""
    return Scaling(bounds_of(config), config.serving.batch_size, config.serving.max_idle_time_s)
