import asyncio
import os

import pytest

from djl_python.core.errors import ConfigError
from djl_python.server.metrics.metrics import Metrics
from djl_python.server.models.health import Health
from djl_python.server.models.local_processes import LocalProcesses
from djl_python.server.models.placement import placement
from djl_python.server.models.replica import WorkerState
from djl_python.server.models.served_model import ServedModel
from tests.server.harness import model_config, running, until
from tests.server.in_process import InProcess


def test_a_placement_has_a_name() -> None:
    assert isinstance(placement("local"), LocalProcesses)
    with pytest.raises(ConfigError, match="placement 'moon' is not known; expected one of local"):
        placement("moon")


async def test_a_worker_can_be_anything_behind_a_socket(caplog: pytest.LogCaptureFixture) -> None:
    place = InProcess()
    async with running(model_config(min_workers=2), placement=place) as site:
        assert (await site.post(do="echo")).json()["pid"] == os.getpid()
        assert [spec.name for spec, _ in place.started] == ["0", "1"]
        assert [replica.pid for replica in site.model.workers.always] == [None, None]
        place.started[0][1].kill()
        await until(lambda: len(place.started) == 3 and site.model.health is Health.HEALTHY)
        await site.registry.reload("m")
        await site.registry.scale("m", min_workers=1)
        assert (await site.post(do="echo")).status_code == 200
    assert "worker 0 was cancelled; it starts again now" in caplog.text
    assert all(started.exited.done() for _, started in place.started)


async def test_a_placements_refusal_is_the_models_failure() -> None:
    place = InProcess()
    place.refusal = "the cluster is full"
    model = ServedModel(model_config(), Metrics().model("m", ""), place)
    model.start()
    await model.settled.wait()
    assert (model.health, model.failure) == (Health.FAILED, "the cluster is full")
    assert [replica.state for replica in model.workers.always] == [WorkerState.FAILED]
    await model.stop()


async def test_a_worker_that_is_stopped_while_it_is_started_is_killed() -> None:
    place, begun, may_start = InProcess(), asyncio.Event(), asyncio.Event()

    class Slow:
        async def start(self, spec: object, report: object) -> object:
            begun.set()
            await may_start.wait()
            return await place.start(spec)  # type: ignore[arg-type]

    model = ServedModel(model_config(), Metrics().model("m", ""), Slow())  # type: ignore[arg-type]
    model.start()
    await begun.wait()
    stopping = asyncio.create_task(model.stop())
    await asyncio.sleep(0)
    may_start.set()
    await stopping
    assert [started.exited.result() for _, started in place.started] == ["was cancelled"]
