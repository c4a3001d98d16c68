"""The registry's record of a model, from its registration to its end.

Runs in the front end's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ...config import ModelSpec
from ...core.errors import ModelLoadError, load_error
from ...ipc.protocol import Status
from .description import ModelDescription, described, workers_of
from .operations import Key, unless
from .served_model import ServedModel

T = TypeVar("T")
#: What is done with a model's adapters, in its turn.
AdapterOperation = Callable[[ServedModel], Coroutine[Any, Any, None]]


@dataclass(eq=False)
class Registration:
    """A model from `register` to `unregister`.

    Attributes:
        at_startup: whether the server began with it.
        workers: the bounds that were set at run time, of each device; None: those of its configuration.
        reload_failure: why the last reload left it as it was; "" if none did.
        doing: what is being done with it: "loading", "unloading", "reloading" or "scaling"; "" if nothing is.
        step: progress that no worker reports, such as the installation of packages; None: nothing.
        successor: the instance that loads beside the present one; None: none does.
        ended: set once it is unregistered.
    """

    spec: ModelSpec
    model: ServedModel
    at_startup: bool = False
    workers: tuple[int, int] | None = None
    reload_failure: str = ""
    doing: str = ""
    step: Status | None = None
    successor: ServedModel | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def key(self) -> Key:
        return self.spec.name, self.spec.version

    @property
    def description(self) -> ModelDescription:
        """The model as it is now."""
        made = described(self.spec, self.model)
        return replace(
            made,
            reload_failure=self.reload_failure,
            at_startup=self.at_startup,
            doing=self.doing,
            step=self.step,
            successor=() if self.successor is None else workers_of(self.successor),
        )

    @contextlib.contextmanager
    def busy(self, doing: str) -> Iterator[None]:
        """Set `doing` in this block."""
        self.doing = doing
        try:
            yield
        finally:
            self.doing, self.step, self.successor = "", None, None

    def now(self, what: str) -> None:
        """Set `step`; "": its workers report the progress."""
        self.step = Status("loading", what) if what else None

    def reporting(self, on_progress: Callable[[ServedModel, Status], None]) -> Callable[[Status], None]:
        """A function that records progress, and passes it on."""

        def report(status: Status) -> None:
            self.step = status
            on_progress(self.model, status)

        return report

    async def change_adapter(self, change: AdapterOperation) -> None:
        """Make a change, unless the model is unregistered meanwhile."""
        await self.unless_ended(change(self.model))

    async def wait_ready(self) -> None:
        """Wait until the model can answer. Raises ModelLoadError if it has failed, or is unregistered meanwhile."""
        await self.unless_ended(self.model.settled.wait())
        if not self.model.ready:
            raise not_loaded(self.model)

    async def unless_ended(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which is cancelled when the model is unregistered. Raises ModelLoadError then."""
        name = self.spec.name
        gone = ModelLoadError(f"model {name!r} was unregistered meanwhile, or the server is shutting down")
        return await unless(self.ended, work, gone)


def reason_of_end(model: ServedModel) -> str:
    """The reason with which the last requests of a removed model may fail."""
    return f"model {model.config.name!r} is being unloaded"


def not_loaded(model: ServedModel) -> ModelLoadError:
    """The error for those who wait for a model that has failed to load."""
    cause = (model.failure.strip().splitlines() or ["its worker has ended"])[-1]  # a traceback's exception
    return load_error(f"model {model.config.name!r} did not load: {cause}", no_memory=model.no_memory)
