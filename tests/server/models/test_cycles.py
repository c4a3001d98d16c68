"""Models that come, change and go many times while requests come: nothing fails, nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import re
import threading
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from djl_python.server.models.local_processes import LocalProcesses
from djl_python.server.models.placement import Placement
from djl_python.server.models.registration import Registration
from djl_python.server.models.replica import Replica
from djl_python.server.models.served_model import ServedModel
from tests.server.harness import FAKE_MODULE, ROOT, Site, model_config, running
from tests.server.in_process import InProcess

CLIENTS = 2
#: The clients' connections, and a cycle's. An idle one keeps the last answer that it had, and with it a model.
CONNECTIONS = CLIENTS + 4
#: Objects of any kind that a cycle may leave, for caches that fill up; one thing that is kept has some hundreds.
OBJECTS_A_CYCLE = 20
MANY_CYCLES = 1000
_WORKER = re.compile(r',?worker="\d+"')  # its number is another after each reload


async def ask(site: Site, path: str, over: asyncio.Event, seen: Counter[int]) -> None:
    """Send requests until it is over, and count their statuses; 0 for a stream that is not whole."""
    while not over.is_set():
        answer = await site.post(path, do="stream", n=4, gap_s=0.002)
        seen[answer.status_code if len(answer.text.splitlines()) == 4 else 0] += 1


async def done(site: Site, method: str, path: str, **parameters: object) -> None:
    answer = await site.client.request(method, path, params={name: str(value) for name, value in parameters.items()})
    assert answer.status_code == 200, answer.text


async def cycle(site: Site, directory: Path, name: str) -> None:
    """A model comes, answers, is scaled and reloaded, and goes with a request in flight; another is reloaded."""
    await done(site, "POST", "/models", url=directory, model_name=name, model_version="1")
    over, seen = asyncio.Event(), Counter[int]()
    asking = asyncio.create_task(ask(site, f"/predictions/{name}", over, seen))
    await done(site, "PUT", f"/models/{name}", min_worker=2)
    await asyncio.gather(
        done(site, "POST", "/models", url=directory, model_name=name, model_version="1", reload="true"),
        done(site, "POST", "/v2/repository/models/m/load"),
    )
    await done(site, "PUT", f"/models/{name}", min_worker=1)
    over.set()
    await asking
    assert set(seen) == {200}
    last = asyncio.create_task(site.post(f"/predictions/{name}", do="echo", sleep_s=0.05))
    while not site.models[f"{name}:1"].pool.in_flight:  # admission has no event
        await asyncio.sleep(0.001)
    await done(site, "DELETE", f"/models/{name}")
    assert (await last).status_code == 200


async def under_load(site: Site, directory: Path, cycles: int) -> None:
    over, seen = asyncio.Event(), Counter[int]()
    asking = [asyncio.create_task(ask(site, "/predictions/m", over, seen)) for _ in range(CLIENTS)]
    for number in range(cycles):
        await cycle(site, directory, f"t{number}")
    over.set()
    await asyncio.gather(*asking)
    assert set(seen) == {200} and seen[200] > cycles


@dataclass
class Holdings:
    """What the process has."""

    descriptors: list[str]
    processes: int
    threads: int
    tasks: int
    metrics: set[str]
    models: Counter[str]
    objects: int
    rss_bytes: int

    @classmethod
    async def of(cls, site: Site) -> Holdings:
        metrics = (await site.client.get("/metrics")).text.splitlines()
        gc.collect()
        objects = gc.get_objects()
        process = psutil.Process()
        return cls(
            descriptors=sorted(filter(None, map(_target, os.listdir("/proc/self/fd")))),
            processes=len(process.children(recursive=True)),
            threads=threading.active_count(),
            tasks=len(asyncio.all_tasks()),
            metrics={_WORKER.sub("", line.rpartition(" ")[0]) for line in metrics},
            models=Counter(type(one).__name__ for one in objects if type(one) in (ServedModel, Replica, Registration)),
            objects=len(objects),
            rss_bytes=process.memory_info().rss,
        )


def _target(descriptor: str) -> str:
    path = Path("/proc/self/fd", descriptor)
    return os.readlink(path) if path.is_symlink() else ""


async def come_and_go(place: Placement, cycles: int, directory: Path) -> tuple[Holdings, Holdings]:
    """What the process has before, and after so many cycles under load."""
    (directory / "model.py").touch()
    (directory / "serving.properties").write_text(f"option.env=PYTHONPATH={ROOT}\n")
    async with running(model_config(), placement=place, directories=True) as site:
        await site.registry.unregister("m")
        await done(site, "POST", "/models", url=directory, model_name="m")
        holdings = []
        for number in (1, cycles):  # the first opens what stays open, as clients' connections
            await under_load(site, directory, number)
            if isinstance(place, InProcess):
                place.started.clear()
            holdings.append(await Holdings.of(site))
    assert not psutil.Process().children(recursive=True)
    return holdings[0], holdings[1]


def alone(place: Placement, cycles: int, directory: Path) -> tuple[Holdings, Holdings]:
    return asyncio.run(come_and_go(place, cycles, directory))


@pytest.mark.parametrize(
    ("place", "cycles"),
    [
        (InProcess(), 20),
        pytest.param(LocalProcesses(FAKE_MODULE), 1, marks=pytest.mark.slow),
        pytest.param(InProcess(), 1000, marks=pytest.mark.slow),
        pytest.param(LocalProcesses(FAKE_MODULE), 30, marks=pytest.mark.slow),
    ],
)
def test_nothing_fails_and_nothing_is_left_behind(place: Placement, cycles: int, tmp_path: Path) -> None:
    # In a fresh process: of one that ran other tests before, resident memory is what they left to malloc.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        before, after = process.submit(alone, place, cycles, tmp_path).result()
    assert after.models["Registration"] == 1
    assert max(after.models.values()) <= 1 + CONNECTIONS, after.models
    assert after.metrics == before.metrics
    assert (after.processes, after.tasks) == (before.processes, before.tasks)
    assert after.threads <= before.threads + 4  # asyncio's pool, which has a limit
    assert len(after.descriptors) <= len(before.descriptors) + 2, after.descriptors  # one more client's connection
    if cycles >= MANY_CYCLES:  # what caches of the process grow by is more than few cycles could leave
        assert after.objects - before.objects < OBJECTS_A_CYCLE * cycles
    assert after.rss_bytes - before.rss_bytes < 64 << 20
