"""Workers that come and go with the load."""

import asyncio
import os
import signal
from pathlib import Path

import httpx
import pytest

from djl_python.server.models.health import Health
from djl_python.server.models.replica import WorkerState
from djl_python.server.models.served_model import ServedModel
from tests.server.harness import model_config, running, until


def states(model: ServedModel) -> list[WorkerState]:
    return [one.state for one in model.workers]


async def test_workers_come_while_calls_wait_and_go_when_nothing_is_to_be_done(tmp_path: Path) -> None:
    stopped = tmp_path / "stopped"
    config = model_config(properties={"capacity": "1", "stopped": str(stopped)}, max_workers=3, max_idle_time_s=0.3)
    async with running(config) as site:
        first = site.pid
        hanging = [asyncio.create_task(site.post(do="stream", n=100, gap_s=0.02)) for _ in range(6)]
        await until(lambda: states(site.model) == [WorkerState.READY] * 3)
        assert site.model.status.workers == 3 and len(site.registry.describe("m")[0].workers) == 3
        assert await site.metric('djl_workers{model="m",state="ready"') == 3
        assert [answer.status_code for answer in await asyncio.gather(*hanging)] == [200] * 6

        async def keep_asking() -> None:
            while len(site.model.workers) > 1 or site.model.pool.busy:
                assert (await site.post(do="echo")).status_code == 200

        await asyncio.wait_for(keep_asking(), 20)  # nothing is lost while they go
        assert site.pid == first and stopped.exists()
        assert site.model.health is Health.HEALTHY
        async with asyncio.timeout(10):
            while await site.metric('djl_workers{model="m",state="ready"') > 1:
                await asyncio.sleep(0.01)


async def test_a_spare_worker_that_dies_costs_its_calls_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    async with running(model_config(properties={"capacity": "1"}, max_workers=2)) as site:
        streams = [asyncio.create_task(site.post(do="stream", n=60, gap_s=0.02)) for _ in range(4)]
        await until(lambda: site.model.workers.spares != [] and site.model.pool.in_flight == 2)
        (spare,) = site.model.workers.spares
        assert spare.pid is not None
        os.kill(spare.pid, signal.SIGKILL)
        await until(lambda: site.model.workers.spares == [])
        assert site.model.health is Health.HEALTHY and site.model.failure == ""
        results = await asyncio.gather(*streams, return_exceptions=True)
        complete = [one for one in results if isinstance(one, httpx.Response) and one.text.count("\n") == 60]
        assert len(complete) == 3
        assert "spare worker 1: was killed by SIGKILL" in caplog.text
        assert await site.metric('djl_worker_restarts_total{model="m"') == 0


async def test_a_spare_worker_that_does_not_load_is_not_tried_again_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    properties = {"capacity": "1", "crash_after": str(tmp_path / "marker"), "pids": str(tmp_path / "pids")}
    async with running(model_config(properties=properties, max_workers=2)) as site:
        streams = [asyncio.create_task(site.post(do="stream", n=20, gap_s=0.02)) for _ in range(5)]
        await until(lambda: "spare worker 1: the worker exited with status 3 while loading" in caplog.text)
        assert {answer.status_code for answer in await asyncio.gather(*streams)} == {200}
        assert site.model.health is Health.HEALTHY
        assert len((tmp_path / "pids").read_text().split()) == 2
        assert (await site.client.get("/ping")).json()["m"] == {"status": "Healthy"}


@pytest.mark.slow
async def test_a_model_whose_spare_worker_is_left_can_answer(tmp_path: Path) -> None:
    """The one that always ran can't be started again: it has less than it should, but for the time being something."""
    marker = tmp_path / "marker"
    properties = {"capacity": "1", "crash_after": str(marker)}
    async with running(model_config(properties=properties, max_workers=2, max_idle_time_s=0.2)) as site:
        marker.unlink()
        streams = [asyncio.create_task(site.post(do="stream", n=100, gap_s=0.02)) for _ in range(4)]
        await until(lambda: states(site.model) == [WorkerState.READY] * 2)
        os.kill(site.pid, signal.SIGKILL)
        await until(lambda: site.model.workers.always[0].restarts.failed == 2)
        assert states(site.model) == [WorkerState.STARTING, WorkerState.READY]
        await asyncio.gather(*streams, return_exceptions=True)
        assert site.model.health is Health.UNHEALTHY
        await asyncio.sleep(0.4)  # longer than it may have nothing to do otherwise
        assert (await site.post(do="echo")).status_code == 200
        assert states(site.model) == [WorkerState.STARTING, WorkerState.READY]


async def test_bounds_that_are_set_at_run_time_outlast_a_reload() -> None:
    async with running(model_config(properties={"capacity": "1"}, min_workers=2, cpu_min_workers=2)) as site:
        await site.registry.scale("m", min_workers=1, max_workers=3)
        assert [one.spare for one in site.model.workers] == [False, True]
        await site.registry.scale("m", min_workers=2, max_workers=3)
        assert [one.spare for one in site.model.workers] == [False, False]
        await site.registry.scale("m", min_workers=1, max_workers=2)
        await site.registry.reload("m")
        assert [one.spare for one in site.model.workers] == [False]
        streams = [asyncio.create_task(site.post(do="stream", n=30, gap_s=0.02)) for _ in range(4)]
        await until(lambda: states(site.model) == [WorkerState.READY] * 2)
        await site.registry.scale("m", min_workers=1)
        assert len(site.model.workers) == 1
        assert {answer.status_code for answer in await asyncio.gather(*streams)} == {200}
