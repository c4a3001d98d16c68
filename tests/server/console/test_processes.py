"""What the server's processes take, measured at real ones."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Final

from djl_python.server.console.processes import FRONT_END, HOLDS_S, LOOKED_FOR_S, ProcessMeter
from tests.server.harness import model_config, running, wait_ready

MODEL: Final = ("a", "2")
BUSY_S: Final = 0.1
#: Computes, and has a child that does so too; at a line of input, the child ends.
PROGRAM: Final = f"""
import subprocess, sys, time
compute = "import time\\nwhile time.process_time() < {BUSY_S}: pass\\nprint(flush=True)\\n"
exec(compute)
pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child = subprocess.Popen([sys.executable, "-c", compute + "input()"], **pipes)
child.stdout.readline()
print(flush=True)
sys.stdin.readline()
child.communicate(b"\\n")
print(flush=True)
sys.stdin.readline()
"""


class Clock:
    """Goes on when it is told to."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_the_time_of_ended_processes_stays_counted() -> None:
    clock = Clock()
    meter = ProcessMeter(clock)
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdin is not None and worker.stdout is not None
        workers = {worker.pid: MODEL}
        worker.stdout.readline()
        alone = meter.measure(workers)[MODEL]
        worker.stdout.readline()
        clock.now_s += LOOKED_FOR_S
        usage = meter.measure(workers)
        both = usage[MODEL]
        assert alone.cpu_s > BUSY_S / 2 and both.cpu_s - alone.cpu_s > BUSY_S / 2  # the system's clock ticks slowly
        assert both.memory_bytes > alone.memory_bytes > 0
        assert usage[FRONT_END].memory_bytes > 0
        print(file=worker.stdin, flush=True)
        worker.stdout.readline()
        ended = meter.measure(workers)[MODEL]
        assert ended.cpu_s >= both.cpu_s and ended.memory_bytes < both.memory_bytes
        print(file=worker.stdin, flush=True)
        worker.wait()
    gone = meter.measure(workers)[MODEL]
    assert (gone.cpu_s, gone.memory_bytes) == (ended.cpu_s, 0)
    assert MODEL not in meter.measure({})


async def test_processes_are_measured_once_for_simultaneous_requests() -> None:
    clock = Clock()
    meter = ProcessMeter(clock)
    first, other = await asyncio.gather(meter.processes({}), meter.processes({}))
    assert first == other and first.front_end.memory_bytes > 0 and first.cpus > 0
    sum(range(10**6))
    assert await meter.processes({}) == first
    clock.now_s += HOLDS_S
    assert (await meter.processes({})).front_end != first.front_end


async def test_the_page_has_the_front_end_and_the_workers_of_each_model() -> None:
    async with running(model_config("a", "2")) as site:
        await wait_ready(site.model)
        page = (await site.client.get("/console/processes")).json()
        (model,) = page["models"]
        assert (model["name"], model["version"]) == MODEL
        assert model["cpu_s"] > 0 and model["memory_bytes"] > 10**6
        assert page["front_end"]["memory_bytes"] > 10**6 and page["cpus"] >= 1
