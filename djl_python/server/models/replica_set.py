"""The workers of a model: those that it should always have, and spare ones.

Runs in the front end's event loop.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec

from ...config import ModelConfig, bounds_of
from ...core.errors import ModelLoadError, load_error
from ...ipc.protocol import Status
from ..metrics.model_metrics import ModelMetrics
from .adapters.adapter import sources_of
from .adapters.model import ModelAdapters
from .placement import Placement, ReplicaSpec
from .pool.pool import Pool
from .replica import Replica, WorkerState
from .scaling.scaling import worker_configs


class ReplicaSet:
    """The replicas of one instance of a model. Is their `Owner`.

    Args:
        pool: gets the workers that are ready.
        turns: limits how many workers load at a time, of all models that have it; None: no limit.
        on_change: called when a worker's state has changed, or a worker has gone.
        on_progress: called with each loading message.

    Attributes:
        adapters: those that the workers should have.
        always: the workers that the model should always have; without those that were removed.
        spares: those that run while calls wait. Their failure does not fail the model.
    """

    def __init__(
        self,
        pool: Pool,
        metrics: ModelMetrics,
        placement: Placement,
        adapters: ModelAdapters,
        *,
        turns: asyncio.Semaphore | None,
        on_change: Callable[[], None],
        on_progress: Callable[[Status], None],
    ) -> None:
        self.adapters = adapters
        self.always: list[Replica] = []
        self.spares: list[Replica] = []
        self._pool = pool
        self._metrics = metrics
        self._placement = placement
        self._turns = turns
        self._on_change = on_change
        self._on_progress = on_progress
        self._removed: list[Replica] = []  # and perhaps not gone yet
        self._retiring: set[asyncio.Task[None]] = set()
        self._others_names: frozenset[str] = frozenset()
        self._counted: Counter[WorkerState] = Counter()  # as added to the metrics

    def __iter__(self) -> Iterator[Replica]:
        """All workers, without those that were removed."""
        return iter([*self.always, *self.spares])

    def __len__(self) -> int:
        return len(self.always) + len(self.spares)

    # ------------------------------------------------------------------------------------ what there is

    @property
    def able(self) -> list[Replica]:
        """The workers that can answer, or will."""
        return [worker for worker in self if worker.state not in (WorkerState.FAILED, WorkerState.STOPPED)]

    @property
    def ready(self) -> list[Replica]:
        """The workers that can answer now."""
        return [worker for worker in self if worker.state is WorkerState.READY]

    @property
    def names(self) -> frozenset[str]:
        """The names of the workers, and of those that may be ending."""
        return frozenset(replica.name for replica in self._all)

    @property
    def _all(self) -> list[Replica]:
        """The workers, and those that may be ending."""
        return [*self, *self._removed]

    def lacking(self, config: ModelConfig) -> int:
        """How many workers have to be added until there are those of a configuration."""
        wanted = Counter(each.option.device for each in worker_configs(config))
        return (wanted - Counter(worker.device for worker in self.able)).total()

    # ------------------------------------------------------------------------------------ starting and ending

    def avoid(self, names: frozenset[str]) -> None:
        """Give no worker one of these names: another instance's workers have them."""
        self._others_names = names

    def start(self, config: ModelConfig, most: int | None = None) -> None:
        """Start the workers of a configuration, `most` of them if that is given."""
        for each in worker_configs(config)[:most]:
            self.always.append(self._replica(each))
        self.changed()
        for replica in self.always:
            replica.start()

    async def all_ready(self) -> None:
        """Wait until each worker that should always be there has been ready.

        Raises:
            ModelLoadError: one has failed to load, or was stopped before it had.
        """
        await _all_ready(self.always)

    async def resize(self, config: ModelConfig) -> tuple[list[Replica], ModelLoadError | None]:
        """Have the workers of a configuration, between whose bounds spare ones stay; new ones are waited for.

        Workers that have failed go, and others take their places.

        Returns:
            Those that are to be removed, and, if a new one does not load, why: then all new ones are, and no other is.
        """
        spares = self.spares
        left = sorted(self.able, key=lambda worker: (worker.state is not WorkerState.READY, worker.spare))
        kept, added = [], []
        for each in worker_configs(config):
            existing = next((worker for worker in left if worker.device == each.option.device), None)
            if existing is not None:
                left.remove(existing)
                kept.append(existing)
                existing.spare = False
            else:
                added.append(self._replica(each))
                self.always.append(added[-1])  # so that the next has another name
        self.changed()
        for replica in added:
            replica.start()
        try:
            await _all_ready(added)
        except ModelLoadError as error:
            for spare in spares:
                spare.spare = True
            return added, error
        room = {device: most - least for device, (least, most) in bounds_of(config).items()}
        removed = [worker for worker in self if worker not in kept and worker not in added]
        self.always, self.spares = [*kept, *added], []
        for worker in left:
            if worker in removed and room[worker.device] > 0:
                room[worker.device] -= 1
                worker.spare = True
                self.spares.append(worker)
        return [worker for worker in removed if worker not in self.spares], None

    async def remove(self, replicas: Sequence[Replica], drain_timeout_s: float) -> None:
        """End workers, once their calls are answered, or after this time."""
        self._withdraw(replicas)
        self.changed()
        await self._let_go(replicas, drain_timeout_s)

    def add_spare(self, config: ModelConfig) -> Replica:
        """Start a spare worker."""
        spare = self._replica(config, spare=True)
        self.spares.append(spare)
        spare.start()
        self.count()
        return spare

    def let_go(self, spare: Replica) -> None:
        """End a spare worker, once its calls are answered."""
        self._withdraw([spare])
        retiring = asyncio.create_task(self._let_go([spare], None))
        self._retiring.add(retiring)
        retiring.add_done_callback(self._retiring.discard)

    def drop_failed_spares(self) -> list[str]:
        """Forget spare workers that have failed; returns the device of each."""
        failed = [spare for spare in self.spares if spare.state is WorkerState.FAILED]
        for spare in failed:
            self.spares.remove(spare)
        return [spare.device for spare in failed]

    async def stop(self) -> None:
        """End all workers now."""
        await asyncio.gather(*(replica.stop() for replica in self._all), *self._retiring)
        self._count(Counter())

    def kill(self) -> None:
        """Kill the workers at once."""
        for replica in self._all:
            replica.kill()

    def count(self) -> None:
        """Have the metrics show how many workers are in which state."""
        self._count(Counter(replica.state for replica in self._all))

    # ------------------------------------------------------------------------------------ replica.Owner

    def changed(self) -> None:
        """A worker's state has changed."""
        self._on_change()

    def loading(self, status: Status) -> None:
        """A worker reports loading progress."""
        self._on_progress(status)

    def restarted(self) -> None:
        """A worker that ended by itself is started again."""
        self._metrics.restarts.inc()

    # ------------------------------------------------------------------------------------ inside

    def _replica(self, config: ModelConfig, *, spare: bool = False) -> Replica:
        config = msgspec.structs.replace(config, adapters=sources_of(self.adapters.at_start))
        taken = self._others_names | self.names
        name = next(name for name in map(str, itertools.count()) if name not in taken)
        return Replica(ReplicaSpec(name, config), self._placement, self._pool, self, self._turns, spare=spare)

    def _withdraw(self, replicas: Sequence[Replica]) -> None:
        """Remove these from the workers that the model should have."""
        self.always = [replica for replica in self.always if replica not in replicas]
        self.spares = [spare for spare in self.spares if spare not in replicas]
        self._removed += replicas

    async def _let_go(self, replicas: Sequence[Replica], drain_timeout_s: float | None) -> None:
        """End workers that have been withdrawn, once their calls are answered."""
        await asyncio.gather(*(replica.retire(drain_timeout_s) for replica in replicas))
        self._removed = [replica for replica in self._removed if replica not in replicas]
        self.changed()

    def _count(self, states: Counter[WorkerState]) -> None:
        for state in WorkerState:
            if state is not WorkerState.STOPPED:
                self._metrics.workers(state, states[state] - self._counted[state])
        self._counted = states


async def _all_ready(replicas: Sequence[Replica]) -> None:
    await asyncio.gather(*(replica.settled.wait() for replica in replicas))
    for replica in replicas:
        if replica.state in (WorkerState.FAILED, WorkerState.STOPPED):
            raise load_error(replica.failure or "it was stopped before it had loaded", no_memory=replica.no_memory)
