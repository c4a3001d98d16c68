"""Disks that take nothing: a batch waits for room, and loses nothing but time."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from openai import InternalServerError

from djl_python.batch import journal, outputs
from djl_python.server.batches import jobs, store
from tests.server.batches.serving import ENDED, URL, Served, create, lines, results, serving, status, upload
from tests.server.harness import until


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setattr(jobs, "FULL_WAIT_S", 0.02)
    async with serving(tmp_path / "batches") as made:
        yield made


class Disk:
    """A disk that is full, while it is: something that writes fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, code: int = errno.ENOSPC) -> None:
        self.is_full = True
        self.refused = 0
        work: Callable[..., Any] = getattr(module, name)

        def write(*arguments: Any) -> Any:
            if self.is_full:
                self.refused += 1
                raise OSError(code, "it is full")
            return work(*arguments)

        monkeypatch.setattr(module, name, write)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
async def test_a_batch_waits_for_room_for_its_results(
    site: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    served, client = site
    made = await create(client, lines({"sleep_s": 0.3}, *[{}] * 20))
    await status(client, made, "in_progress")
    disk = Disk(monkeypatch, journal, "write", code)
    await until(lambda: disk.refused > 2)
    assert (await client.batches.retrieve(made.id)).status == "in_progress"
    assert (await served.post(do="echo")).status_code == 200
    assert caplog.text.count("waits for room on the disk") == 1
    disk.is_full = False
    ended = await status(client, made, *ENDED)
    assert ended.status == "completed"
    output_lines = await results(client, ended.output_file_id)
    assert [one["custom_id"] for one in output_lines] == [f"r{number}" for number in range(21)]


@pytest.mark.parametrize("module_and_name", [(outputs, "sync_directory"), (store, "replace_file")])
async def test_a_batch_waits_for_room_for_its_files(
    site: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module_and_name: tuple[Any, str]
) -> None:
    _, client = site
    made = await create(client, lines(*[{"sleep_s": 0.1}] * 4))
    await status(client, made, "in_progress")
    disk = Disk(monkeypatch, *module_and_name)
    await until(lambda: disk.refused > 2)
    assert (await client.batches.retrieve(made.id)).status in ("in_progress", "finalizing")
    assert not list(tmp_path.rglob("*.tmp"))
    disk.is_full = False
    ended = await status(client, made, *ENDED)
    assert ended.status == "completed" and len(await results(client, ended.output_file_id)) == 4


async def test_a_batch_is_cancelled_while_it_waits_for_room(site: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    _, client = site
    made = await create(client, lines({}, {"do": "hang"}))
    await status(client, made, "in_progress")
    disk = Disk(monkeypatch, journal, "write")
    waiting = await create(client, lines({}))
    await until(lambda: disk.refused > 0)
    await client.batches.cancel(waiting.id)
    disk.is_full = False
    ended = await status(client, waiting, *ENDED)
    assert ended.status == "cancelled"
    await client.batches.cancel(made.id)


async def test_a_disk_error_other_than_full_fails_the_batch(site: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    _, client = site
    made = await create(client, lines({"sleep_s": 0.1}))
    await status(client, made, "in_progress")
    Disk(monkeypatch, journal, "write", errno.EIO)
    ended = await status(client, made, *ENDED)
    assert ended.status == "failed" and ended.errors is not None and ended.errors.data is not None
    assert (ended.errors.data[0].code, ended.errors.data[0].message) == ("server_error", "[Errno 5] it is full")


async def test_a_batch_that_cant_be_kept_is_not_created(site: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    _, client = site
    file_id = await upload(client, lines({}))
    disk = Disk(monkeypatch, store, "replace_file")
    with pytest.raises(InternalServerError, match="the server can't write this to its disk: it is full"):
        await client.batches.create(input_file_id=file_id, endpoint=URL, completion_window="24h")
    assert (await client.batches.list()).data == []
    disk.is_full = False
    await client.files.delete(file_id)  # no batch reads it


async def test_metrics(site: Served) -> None:
    served, client = site
    made = await create(client, lines({}, {"do": "headers", "status": 400}, {"do": "hang"}))
    while (await client.batches.retrieve(made.id)).request_counts.completed < 1:  # type: ignore[union-attr]
        await asyncio.sleep(0.01)
    await until(lambda: served.model.pool.in_flight == 1)
    assert await served.metric('djl_batches{status="in_progress"}') == 1
    assert await served.metric("djl_batch_in_flight_requests") == 1
    assert 0 < await served.metric("djl_batch_oldest_seconds") < 60
    assert await served.metric("djl_batch_bytes_limit") == 16 << 30
    file = await client.files.retrieve(made.input_file_id)
    assert await served.metric("djl_batch_bytes_used") == file.bytes
    await client.batches.cancel(made.id)
    await status(client, made, "cancelled")
    await until(lambda: served.model.pool.in_flight == 0)
    assert await served.metric('djl_batches{status="in_progress"}') == 0
    assert await served.metric('djl_batches{status="cancelled"}') == 1
    assert await served.metric("djl_batch_in_flight_requests") == 0
    assert await served.metric("djl_batch_oldest_seconds") == 0
    for code in ("200", "400"):
        assert await served.metric(f'djl_batch_requests_total{{code="{code}",model="m"') == 1
    shown = (await served.client.get("/metrics")).text
    assert 'djl_queue_seconds_count{model="m",stage="server",version=""} 0.0' in shown  # it says how long others wait
    assert await served.metric('djl_requests_total{code="200",dialect="openai",model="m"') == 0  # nor came it over HTTP
    await served.registry.unregister("m", "")
    assert await served.metric('djl_batch_requests_total{code="200"') == 0
    assert await served.metric('djl_batches{status="cancelled"}') == 1
