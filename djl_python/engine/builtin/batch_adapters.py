"""The adapters of the built-in engine's batch: its table, and the slots of its runner. Engine process, step loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Final

import torch

from ...core.errors import MemoryLoadError, ModelLoadError, ParameterError
from ...core.metrics import MetricFamily, MetricSample
from ..adapters.peft_files import AdapterPlan, LoraAdapter
from ..adapters.table import AdapterTable, named
from ..adapters.targets import Target
from ..batch.adapter_slots import AdapterSlots
from ..batch.sequence import Sequence
from ..interface import PendingAdapter, Progress
from ..runner.model_runner import AdapterRunner
from ..settings import BuiltInSettings

#: Where no setting says it: adapters in memory for each in a slot.
_IN_MEMORY_EACH: Final = 4


class BatchAdapters:
    """Gives sequences their adapters.

    Args:
        targets: the modules of the model that adapters may change.

    Raises:
        ModelLoadError: one of the adapters that the settings name is missing, or can't be computed.
    """

    def __init__(
        self, settings: BuiltInSettings, runner: AdapterRunner, targets: Mapping[str, Target], progress: Progress
    ) -> None:
        self._runner = runner
        in_memory = settings.max_cpu_loras or _IN_MEMORY_EACH * settings.max_loras
        self.slots = AdapterSlots(settings.max_loras, self._ready, self._load, runner.unload_adapter)
        self.table = AdapterTable(targets, settings.max_lora_rank, in_memory, self.slots.drop)
        self._failed: dict[int, Exception] = {}
        for count, (name, directory) in enumerate(settings.adapters.items(), 1):
            progress(f"checking the adapter {name}", count, len(settings.adapters))
            try:
                self.table.put(name, 0, self.table.plan(name, directory))
            except ParameterError as exc:
                self.table.close()
                raise ModelLoadError(exc.message) from exc

    def add(self, name: str, version: int, directory: str, options: Mapping[str, str]) -> PendingAdapter:
        """See `RollingBatch.add_adapter`."""
        pins = options.get("pin") == "true"
        if pins:
            self._check_pin(name)
        future = self.table.planned(name, directory, read=pins or options.get("preload") == "true")

        def complete() -> None:
            plan, adapter = future.result()
            if pins:
                self._check_pin(name)  # others may have been pinned meanwhile
            if (replaced := self.table.numbers.get(name)) is not None:
                self.slots.unpin(replaced)
            number = self.table.put(name, version, plan, adapter)
            if pins:
                self.table.keep(number)
                self.slots.pin(number)

        return PendingAdapter(_only_end(future), complete)

    def failures(self) -> dict[int, Exception]:
        """The adapters, by number, that sequences wait for and can't have, since the last call."""
        failed, self._failed = self._failed | self.table.take_read(), {}
        return failed

    def begin(self, sequence: Sequence, name: str, version: int) -> None:
        """Give a new sequence its adapter's number.

        Raises:
            ParameterError: the adapter has gone.
        """
        if name:
            sequence.adapter_number = self.table.use(name, version)

    def end(self, sequence: Sequence) -> None:
        """A sequence has left."""
        if sequence.adapter_number:
            self.table.release(sequence.adapter_number)

    def metrics(self, sequences: Mapping[int, Sequence]) -> list[MetricFamily]:
        """For each adapter: sequences that run and that wait, and whether its numbers are in a slot."""
        held = set(self.slots.held)
        with_one = [one for one in sequences.values() if one.adapter_number]
        sequences_of = Counter((self.table.name(one.adapter_number), one.adapter_slot != 0) for one in with_one)
        running, placed = [], []
        for name, number in self.table.numbers.items():
            counts = {"running": sequences_of[name, True], "waiting": sequences_of[name, False]}
            running += [
                MetricSample("engine_adapter_sequences", {"adapter": name, "state": state}, count)
                for state, count in counts.items()
            ]
            placed.append(MetricSample("engine_adapter_in_slot", {"adapter": name}, float(number in held)))
        memory = [MetricSample("engine_adapter_memory_bytes", {}, float(self.table.bytes))]
        families = {
            "engine_adapter_sequences": ("Sequences of an adapter, by what they do.", running),
            "engine_adapter_in_slot": ("Whether the engine's steps can compute an adapter now.", placed),
            "engine_adapter_memory_bytes": ("What adapters that have been read take in memory.", memory),
        }
        return [MetricFamily(name, "gauge", text, samples) for name, (text, samples) in families.items()]

    def close(self) -> None:
        """End the thread that reads."""
        self.table.close()

    def _check_pin(self, name: str) -> None:
        others = self.slots.pinned - {self.table.numbers.get(name)}
        if len(others) + 1 >= self.slots.count:
            most = self.slots.count - 1
            raise MemoryLoadError(f"adapter {name}: {most} may be pinned with option.max_loras={self.slots.count}")

    def _ready(self, number: int) -> bool:
        return number not in self._failed and self.table.adapter(number) is not None

    def _load(self, slot: int, number: int) -> bool:
        adapter = self.table.adapter(number)
        assert adapter is not None  # it was ready
        try:
            self._runner.load_adapter(slot, adapter)
        except ParameterError as exc:
            self._failed[number] = named(self.table.name(number), exc)
            return False
        except (MemoryError, torch.OutOfMemoryError) as exc:
            self._failed[number] = MemoryLoadError(f"there is no memory for an adapter: {exc}")
            return False
        return True


def _only_end(future: Future[tuple[AdapterPlan, LoraAdapter | None]]) -> Future[None]:
    ended: Future[None] = Future()
    future.add_done_callback(lambda _: ended.set_result(None))
    return ended
