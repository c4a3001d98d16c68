"""The adapters that an engine has, by name, and those that are in memory. Runs in the engine process.

The step loop's thread calls it; files are read in a thread of its own, so that no step waits for them. An adapter has a
number that no other adapter ever gets, not even its replacement: the prefix cache finds keys and values by that number.
A registered adapter takes no memory until a sequence names it. One that is replaced stays until it is removed, since a
call that is answered with it may have further sequences.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ...config.adapters import rank_fault
from ...core.errors import ParameterError
from .peft_files import AdapterPlan, LoraAdapter, plan_adapter
from .targets import Target


@dataclass
class _Entry:
    """An adapter. `uses` counts the sequences that have it; it is `gone` once it has been removed."""

    name: str
    number: int
    plan: AdapterPlan
    uses: int = 0
    gone: bool = False


class AdapterTable:
    """Names, numbers and memory of adapters.

    Args:
        targets: the modules of the model that adapters may change.
        max_rank: the highest rank of one.
        in_memory: how many are kept in memory, those that are kept for good apart.
        on_gone: called with the number of an adapter that nobody has any more.
    """

    def __init__(
        self, targets: Mapping[str, Target], max_rank: int, in_memory: int, on_gone: Callable[[int], None]
    ) -> None:
        self._targets = targets
        self._max_rank = max_rank
        self._in_memory = in_memory
        self._on_gone = on_gone
        self._numbers = itertools.count(1)
        self._by_version: dict[tuple[str, int], _Entry] = {}  # the latest last
        self._by_number: dict[int, _Entry] = {}
        self._memory: OrderedDict[int, LoraAdapter] = OrderedDict()  # the least recently used first
        self._kept: set[int] = set()
        self._reading: dict[int, Future[LoraAdapter]] = {}
        self._reader = ThreadPoolExecutor(1, "adapters")

    @property
    def reading(self) -> tuple[Future[LoraAdapter], ...]:
        """Adapters that are needed, whose files are being read or have been since `take_read`."""
        return tuple(self._reading.values())

    @property
    def bytes(self) -> int:
        """What adapters take in memory here."""
        return sum(adapter.bytes for adapter in self._memory.values())

    @property
    def numbers(self) -> Mapping[str, int]:
        """The names of adapters, with the numbers of their latest versions."""
        return {name: entry.number for (name, _), entry in self._by_version.items()}

    def name(self, number: int) -> str:
        """The name of an adapter that there is, or that a sequence still has."""
        return self._by_number[number].name

    def plan(self, name: str, directory: str) -> AdapterPlan:
        """Check an adapter's files.

        Raises:
            ParameterError: it can't be computed beside this model.
        """
        try:
            plan = plan_adapter(Path(directory), self._targets)
        except ParameterError as exc:
            raise named(name, exc) from exc
        if plan.rank > self._max_rank:
            raise ParameterError(rank_fault(name, plan.rank, self._max_rank), "src")
        return plan

    def planned(self, name: str, directory: str, *, read: bool) -> Future[tuple[AdapterPlan, LoraAdapter | None]]:
        """Check an adapter's files, and read them if asked to, beside the steps; raises what `plan` does."""

        def work() -> tuple[AdapterPlan, LoraAdapter | None]:
            plan = self.plan(name, directory)
            try:
                return plan, plan.read() if read else None
            except ParameterError as exc:
                raise named(name, exc) from exc

        return self._reader.submit(work)

    def put(self, name: str, version: int, plan: AdapterPlan, adapter: LoraAdapter | None = None) -> int:
        """Have an adapter; returns its number. Earlier versions of its name are no longer kept for good.

        Args:
            version: one that no other adapter of this name has had.
            adapter: what has been read of it already.
        """
        if (replaced := self.numbers.get(name)) is not None:
            self._kept.discard(replaced)
        entry = _Entry(name, next(self._numbers), plan)
        self._by_version[name, version] = self._by_number[entry.number] = entry
        if adapter is not None:
            self._remember(entry.number, adapter)
        return entry.number

    def remove(self, name: str, version: int) -> None:
        """Forget an adapter; it goes once its sequences have ended. An unknown one is none."""
        if (entry := self._by_version.pop((name, version), None)) is not None:
            entry.gone = True
            self._kept.discard(entry.number)
            self._end_unused(entry)

    def keep(self, number: int) -> None:
        """Never drop an adapter from memory."""
        self._kept.add(number)

    def use(self, name: str, version: int) -> int:
        """Have a sequence use an adapter, until `release`; returns its number.

        Raises:
            ParameterError: there is none of this name and version.
        """
        if (entry := self._by_version.get((name, version))) is None:
            raise ParameterError(f"adapter {name} has been unregistered", "")
        entry.uses += 1
        return entry.number

    def release(self, number: int) -> None:
        """A sequence that used an adapter has ended."""
        entry = self._by_number[number]
        entry.uses -= 1
        self._end_unused(entry)

    def adapter(self, number: int) -> LoraAdapter | None:
        """An adapter, if it is in memory; else it is being read from now on."""
        if (adapter := self._memory.get(number)) is not None:
            self._memory.move_to_end(number)
            return adapter
        if number not in self._reading:
            self._reading[number] = self._reader.submit(self._by_number[number].plan.read)
        return None

    def take_read(self) -> dict[int, Exception]:
        """Take what has been read since the last call; what could not be, by number, with the reason."""
        failed: dict[int, Exception] = {}
        for number, future in [(n, f) for n, f in self._reading.items() if f.done()]:
            del self._reading[number]
            entry = self._by_number.get(number)
            if entry is None:  # nobody waits for it any more
                continue
            error = future.exception()
            if error is None:
                self._remember(number, future.result())
            elif isinstance(error, ParameterError):
                failed[number] = named(entry.name, error)
            elif isinstance(error, Exception):
                failed[number] = error
        return failed

    def close(self) -> None:
        """End the thread."""
        self._reader.shutdown(cancel_futures=True)

    def _remember(self, number: int, adapter: LoraAdapter) -> None:
        self._memory[number] = adapter
        droppable = [one for one in self._memory if one not in self._kept and one != number]
        for one in droppable[: max(0, len(droppable) + 1 - self._in_memory)]:
            del self._memory[one]

    def _end_unused(self, entry: _Entry) -> None:
        if entry.gone and not entry.uses:
            del self._by_number[entry.number]
            self._memory.pop(entry.number, None)
            self._on_gone(entry.number)


def named(name: str, error: ParameterError) -> ParameterError:
    """An error that says which adapter it is about."""
    return ParameterError(f"adapter {name}: {error.message}", error.field)
