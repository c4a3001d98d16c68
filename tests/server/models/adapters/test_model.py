"""What a model's adapters should be, and workers that refuse, end, or come later."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from djl_python.core.errors import (
    MemoryLoadError,
    ModelConflictError,
    ModelNotFoundError,
    ParameterError,
    UnavailableError,
    WorkerDiedError,
)
from djl_python.ipc.protocol import AdapterChange, Done
from djl_python.server.models.adapters.adapter import Adapter
from djl_python.server.models.adapters.model import MAX_ADAPTERS, ModelAdapters
from djl_python.server.models.adapters.worker import WorkerAdapters


class Worker:
    """A worker that does what it is told, but for the sources that it refuses."""

    def __init__(self, model: ModelAdapters, *refused: str) -> None:
        self.told: list[tuple[str, str, str]] = []
        self.has = {name: one.source for name, one in model.at_start.items()}
        self.refused = set(refused)
        self.holds = False
        self.adapters = WorkerAdapters(model.at_start, self._take)

    def _take(self, change: AdapterChange) -> None:
        self.told.append((change.operation, change.name, change.source))
        if self.holds:
            return
        done = Done(change.id)
        if change.source in self.refused:
            done = Done(change.id, error="src: no", error_kind=ParameterError.kind)
        elif change.operation == "unregister":
            del self.has[change.name]
        else:
            self.has[change.name] = change.source
        asyncio.get_running_loop().call_soon(self.adapters.answered, done)


def named(model: ModelAdapters) -> dict[str, str]:
    return {name: one.source for name, one in model.wanted.items()}


async def test_every_worker_gets_a_change() -> None:
    model = ModelAdapters({"old": "/old"})
    workers = [Worker(model), Worker(model)]
    of_all = [worker.adapters for worker in workers]
    await model.change(of_all, "a", Adapter("a", "/a"))
    await model.change(of_all, "a", Adapter("a", "/a"))  # the files may be others now
    await model.change(of_all, "old", None)
    for worker in workers:
        assert worker.told == [("register", "a", "/a"), ("update", "a", "/a"), ("unregister", "old", "")]
        assert worker.has == named(model) == {"a": "/a"}


@pytest.mark.parametrize("now", [Adapter("a", "/new"), Adapter("b", "/new")])
async def test_an_adapter_that_a_worker_refuses_is_in_no_worker(now: Adapter) -> None:
    model = ModelAdapters({"a": "/a"})
    workers = [Worker(model), Worker(model, "/new")]
    with pytest.raises(ParameterError, match="src: no"):
        await model.change([worker.adapters for worker in workers], now.name, now)
    assert [worker.has for worker in workers] == [{"a": "/a"}, {"a": "/a"}]
    assert named(model) == {"a": "/a"}


async def test_a_worker_that_ends_meanwhile_undoes_the_change() -> None:
    model = ModelAdapters({})
    staying, ending = Worker(model), Worker(model)
    ending.holds = True
    changing = asyncio.create_task(model.change([staying.adapters, ending.adapters], "a", Adapter("a", "/a")))
    while not ending.told:
        await asyncio.sleep(0)
    ending.adapters.lost()
    with pytest.raises(WorkerDiedError):
        await changing
    assert staying.has == {} and named(model) == {}


async def test_a_worker_that_comes_later_catches_up() -> None:
    """Also with what changes while it does; what it refuses costs it nothing else."""
    model = ModelAdapters({"old": "/old"})
    await model.change([Worker(model).adapters], "a", Adapter("a", "/a"))
    await model.change([Worker(model).adapters], "old", None)
    late = Worker(model, "/a")
    assert late.adapters.lacks(model)
    coming = asyncio.create_task(late.adapters.become(model, even_so=True))
    await asyncio.sleep(0)
    model.wanted["b"] = Adapter("b", "/b")
    await coming
    assert late.has == {"b": "/b"}
    assert not late.adapters.lacks(model)
    told = len(late.told)
    await model.change([late.adapters], "c", Adapter("c", "/c"))
    assert late.told[told:] == [("register", "c", "/c")]  # and not a again


async def test_a_reloaded_model_keeps_what_was_changed_at_run_time() -> None:
    model = ModelAdapters({"stays": "/1", "goes": "/2", "changes": "/3"})
    workers = [Worker(model).adapters]
    await model.change(workers, "goes", None)
    await model.change(workers, "changes", Adapter("changes", "/4"))
    await model.change(workers, "comes", Adapter("comes", "/5"))
    after = ModelAdapters({"stays": "/1b", "goes": "/2", "changes": "/3", "new": "/6"})
    after.take_over(model)
    assert named(after) == {"stays": "/1b", "changes": "/4", "new": "/6", "comes": "/5"}


async def test_impossible_changes_of_adapters_are_refused() -> None:
    model: Any = ModelAdapters({"a": "/a"})
    with pytest.raises(ModelConflictError, match="adapter a is registered already"):
        model.check_new("a")
    with pytest.raises(ModelNotFoundError, match="The adapter b was not found; there is a"):
        model.find("b")
    with pytest.raises(UnavailableError, match="no worker that is ready"):
        await model.change([], "b", Adapter("b", "/b"))
    model.wanted |= {str(number): Adapter(str(number), "/") for number in range(MAX_ADAPTERS)}
    with pytest.raises(MemoryLoadError):
        model.check_new("b")
