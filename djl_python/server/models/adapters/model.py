"""Which adapters a model should have. Runs in the front end's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final

from ....core.errors import MemoryLoadError, ModelConflictError, ModelNotFoundError, UnavailableError
from .adapter import Adapter, Adapters
from .worker import WorkerAdapters

#: Most adapters of one model, whatever its engine has room for.
MAX_ADAPTERS: Final = 1000


class ModelAdapters:
    """The adapters of one model. Changes come one after the other.

    Attributes:
        at_start: those that a worker has when it is ready.
        wanted: those that every worker should have.

    Args:
        directories: by name, those that the model is loaded with.
    """

    def __init__(self, directories: Mapping[str, str]) -> None:
        self.at_start: Adapters = {name: Adapter(name, directory) for name, directory in directories.items()}
        self.wanted: dict[str, Adapter] = dict(self.at_start)

    def take_over(self, before: ModelAdapters) -> None:
        """Take over the changes that were made at run time in the model's previous instance."""
        for name in (*before.at_start, *before.wanted):
            if before.wanted.get(name) is not before.at_start.get(name):
                self._set(name, before.wanted.get(name))

    def find(self, name: str) -> Adapter:
        """The adapter of this name.

        Raises:
            ModelNotFoundError: there is none.
        """
        if (adapter := self.wanted.get(name)) is None:
            there = f"there is {', '.join(sorted(self.wanted))}" if self.wanted else "there is none"
            raise ModelNotFoundError(f"The adapter {name} was not found; {there}")
        return adapter

    def check_new(self, name: str) -> None:
        """Check that there may be an adapter of this name.

        Raises:
            ModelConflictError: there is one.
            MemoryLoadError: there are too many.
        """
        if name in self.wanted:
            raise ModelConflictError(
                f"The adapter {name} is registered already; .../adapters/{name}/update replaces it"
            )
        if len(self.wanted) >= MAX_ADAPTERS:
            raise MemoryLoadError(f"there are {MAX_ADAPTERS} adapters, and no model has more")

    async def change(self, workers: Sequence[WorkerAdapters], name: str, now: Adapter | None) -> None:
        """Have all workers get an adapter, another one of this name, or (None) none of this name.

        Raises:
            UnavailableError: there is no worker.
            ServingError: what a worker refused, or that it ended. All is as it was.
        """
        if not workers:
            raise UnavailableError("the model has no worker that is ready")
        before = self.wanted.get(name)
        self._set(name, now)
        try:
            await _all([worker.become(self) for worker in workers])
        except BaseException:
            self._set(name, before)
            await _all([worker.become(self, even_so=True) for worker in workers])
            raise

    def _set(self, name: str, now: Adapter | None) -> None:
        if now is None:
            self.wanted.pop(name, None)
        else:
            self.wanted[name] = now


async def _all(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait for all, and raise the first one's error."""
    tasks = [asyncio.ensure_future(work) for work in works]
    await asyncio.wait(tasks)
    for task in tasks:
        task.result()
