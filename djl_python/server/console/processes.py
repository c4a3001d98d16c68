"""The processor time and memory of the server's processes. Runs in the front end.

Read from the system when somebody asks, in a thread, and at most twice a second however many ask. What a worker has
started, such as its engine, counts as the worker. To find these processes takes a look at every process of the machine,
so they are looked for less often.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec
import psutil

from ...core.cpu_limit import available_cpus

#: As long as this, in seconds, what was read holds.
HOLDS_S: Final = 0.5
#: Processes are looked for again after this, in seconds, or when there are other workers.
LOOKED_FOR_S: Final = 10.0
#: The owner of processes that belong to no model: the front end, and its other children.
FRONT_END: Final = ("", "")

#: A model's name and version.
Owner = tuple[str, str]


class ProcessUsage(msgspec.Struct, frozen=True):
    """The processor time and memory of some processes.

    Attributes:
        cpu_s: seconds of processors, only growing; those of processes that have ended are in it.
        memory_bytes: resident now. What processes share counts for each of them.
    """

    cpu_s: float
    memory_bytes: int


class ModelUsage(ProcessUsage, frozen=True, kw_only=True):
    """The usage of the workers of a version of a model."""

    name: str
    version: str


class Processes(msgspec.Struct, frozen=True):
    """The usage of the server, which may use `cpus` processors."""

    cpus: int
    front_end: ProcessUsage
    models: list[ModelUsage]


class ProcessMeter:
    """Measures this process and those below it.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._turn = asyncio.Lock()
        self._read_s = -HOLDS_S
        self._latest: Mapping[Owner, ProcessUsage] = {}
        self._workers: Mapping[int, Owner] = {}
        self._tree: list[tuple[psutil.Process, Owner]] = []
        self._looked_s = -LOOKED_FOR_S
        self._cpu_s: dict[tuple[int, float], float] = {}  # by process: its number and when it began
        self._totals: defaultdict[Owner, float] = defaultdict(float)

    async def processes(self, workers: Mapping[int, Owner]) -> Processes:
        """The server's usage now.

        Args:
            workers: the model of each process that is a worker.
        """
        async with self._turn:
            now_s = self._clock()
            if now_s - self._read_s >= HOLDS_S:
                self._latest = await asyncio.to_thread(self.measure, workers)
                self._read_s = now_s
            latest = self._latest
        models = [
            ModelUsage(name=name, version=version, cpu_s=usage.cpu_s, memory_bytes=usage.memory_bytes)
            for (name, version), usage in latest.items()
            if (name, version) != FRONT_END
        ]
        return Processes(available_cpus(), latest[FRONT_END], models)

    def measure(self, workers: Mapping[int, Owner]) -> Mapping[Owner, ProcessUsage]:
        """The usage of each model, and of the front end. Blocks; one call at a time."""
        now_s = self._clock()
        if workers != self._workers or now_s - self._looked_s >= LOOKED_FOR_S:
            self._workers, self._looked_s, self._tree = workers, now_s, list(_tree(workers))
        owners = {FRONT_END, *workers.values()}
        memory: Counter[Owner] = Counter()
        before, self._cpu_s = self._cpu_s, {}
        for process, owner in self._tree:
            try:
                with process.oneshot():
                    key = (process.pid, process.create_time())
                    times = process.cpu_times()
                    memory[owner] += process.memory_info().rss
            except psutil.Error:  # it has just ended
                continue
            self._cpu_s[key] = times.user + times.system
            self._totals[owner] += self._cpu_s[key] - before.get(key, 0.0)
        for gone in self._totals.keys() - owners:
            del self._totals[gone]
        return {owner: ProcessUsage(self._totals[owner], memory[owner]) for owner in sorted(owners)}


def _tree(workers: Mapping[int, Owner]) -> Iterator[tuple[psutil.Process, Owner]]:
    """This process and all below it, each with its owner: its own model, or its parent's owner."""
    root = psutil.Process()
    owners = {root.pid: FRONT_END}
    yield root, FRONT_END
    for process in root.children(recursive=True):  # parents first
        try:
            owner = workers.get(process.pid) or owners.get(process.ppid(), FRONT_END)
        except psutil.Error:
            continue
        owners[process.pid] = owner
        yield process, owner
