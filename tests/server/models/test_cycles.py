"""Models that come, change and go many times while requests come: nothing fails, nothing is left behind."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path

import psutil
import pytest

from djl_python.config import ModelSpec
from djl_python.server.models.local_processes import LocalProcesses
from djl_python.server.models.placement import Placement
from tests.server.harness import FAKE_MODULE, Site, model_config, running
from tests.server.in_process import InProcess

CLIENTS = 6
TEMPORARY = ModelSpec(name="temporary", url="")


async def ask(site: Site, path: str, over: asyncio.Event, seen: Counter[int]) -> None:
    """Send requests until it is over, and count their statuses; a stream that is cut off raises."""
    while not over.is_set():
        answer = await site.post(path, do="stream", n=4, gap_s=0.002)
        seen[answer.status_code if len(answer.text.splitlines()) == 4 else 0] += 1


async def cycle(site: Site) -> None:
    """Reload and scale the model "m", while another one comes, answers, is reloaded, and goes."""
    registry = site.registry
    await asyncio.gather(registry.reload("m"), registry.register(TEMPORARY))
    over, seen = asyncio.Event(), Counter[int]()
    asking = asyncio.create_task(ask(site, f"/predictions/{TEMPORARY.name}", over, seen))
    await asyncio.gather(registry.scale("m", min_workers=2), registry.reload(TEMPORARY.name))
    over.set()
    await asking
    assert set(seen) == {200}
    await asyncio.gather(registry.scale("m", min_workers=1), registry.unregister(TEMPORARY.name))


async def under_load(site: Site, cycles: int) -> None:
    over, seen = asyncio.Event(), Counter[int]()
    asking = [asyncio.create_task(ask(site, "/predictions/m", over, seen)) for _ in range(CLIENTS)]
    for _ in range(cycles):
        await cycle(site)
    over.set()
    await asyncio.gather(*asking)
    assert set(seen) == {200} and seen[200] > cycles


def descriptors() -> list[str]:
    found = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return sorted(os.readlink(path) for path in found if path.is_symlink())


@pytest.mark.parametrize(("place", "cycles"), [(LocalProcesses(FAKE_MODULE), 6), (InProcess(), 40)])
async def test_nothing_fails_and_nothing_is_left_behind(place: Placement, cycles: int) -> None:
    others = set(psutil.Process().children(recursive=True))  # servers that tests share
    async with running(model_config(), placement=place) as site:
        site.files.configs[TEMPORARY] = model_config(TEMPORARY.name)
        await under_load(site, 1)  # opens what stays open, as clients' connections
        processes, opened = len(psutil.Process().children(recursive=True)), len(descriptors())
        await under_load(site, cycles)
        assert len(psutil.Process().children(recursive=True)) == processes
        assert [model.config.name for model in site.registry.running] == ["m"]
        assert len(descriptors()) <= opened + 2, descriptors()  # the two ends of one more client's connection
    assert set(psutil.Process().children(recursive=True)) <= others
