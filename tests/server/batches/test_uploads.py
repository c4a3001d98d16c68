"""Uploads go to the disk as they come, are refused as soon as that is known, and leave nothing behind."""

from __future__ import annotations

import asyncio
import errno
import gzip
import json
import os
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from openai import APIStatusError

from djl_python.server.batches import incoming
from djl_python.server.batches.incoming import IncomingFile
from djl_python.server.batches.uploads import MAX_FORM_BYTES
from tests.server.batches.serving import lines, serving, upload
from tests.server.harness import Site, running, until
from tests.server.in_process import InProcess

LIMIT = 4 << 20
BLOCK = b"x" * (64 << 10)
HEAD = (
    b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=xy\r\n"
    b"%s\r\n\r\n--xy\r\nContent-Disposition: form-data; name=purpose\r\n\r\nbatch\r\n"
    b"--xy\r\nContent-Disposition: form-data; name=file; filename=a.jsonl\r\n\r\n"
)
FORM_BYTES = len(HEAD.partition(b"\r\n\r\n")[2])
END = b"\r\n--xy--\r\n"
CHUNKED = b"Transfer-Encoding: chunked"
HEAD_OF_A_PART = b"--xy\r\nContent-Disposition: form-data; name=" + b"n" * 4000 + b"\r\n\r\n\r\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "batches"


@pytest.fixture
async def site(folder: Path) -> AsyncIterator[Site]:
    async with serving(folder, batch_max_file_bytes=LIMIT) as (made, _):
        yield made


def sized(size: int) -> bytes:
    """The header of an upload whose file has so many bytes, if its form ends with END."""
    return b"Content-Length: %d" % (FORM_BYTES + size + len(END))


async def answer(reader: asyncio.StreamReader) -> tuple[int, Any]:
    """Status and JSON of the answer, which is the connection's last or has a length."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    return int(head.split()[1]), json.loads(await reader.readexactly(length))


def files_of(folder: Path) -> list[str]:
    return [path.name for path in (folder / "files").iterdir()]


async def test_an_upload_is_not_held_in_memory(site: Site) -> None:
    blocks = 48  # 3 MiB
    async with site.connect() as (reader, writer):
        tracemalloc.start()
        writer.write(HEAD % sized(blocks * len(BLOCK)))
        for _ in range(blocks):
            writer.write(BLOCK)
            await writer.drain()
        writer.write(END)
        status, made = await answer(reader)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert (status, made["bytes"]) == (200, blocks * len(BLOCK))
    # A block that is gathered and one that is written; besides what the client's socket and the parser have.
    assert peak < incoming.BLOCK_BYTES + (1 << 20), peak
    assert site.front_end.bodies.held_bytes == 0


async def test_a_length_that_is_too_long_is_refused_before_the_body(site: Site, folder: Path) -> None:
    async with site.connect() as (reader, writer):
        writer.write((HEAD % sized(LIMIT + MAX_FORM_BYTES)).partition(b"--xy")[0])
        status, refused = await answer(reader)
        writer.write(bytes(FORM_BYTES + LIMIT + MAX_FORM_BYTES + len(END)))  # what has been announced is read
        assert await asyncio.wait_for(reader.read(), 5) == b""
    assert (status, refused["error"]["type"]) == (413, "invalid_request_error")
    assert refused["error"]["message"] == f"the file is larger than batch_max_file_bytes, which is {LIMIT} bytes"
    assert files_of(folder) == []


async def test_a_chunked_upload_is_refused_when_it_passes_the_limit(site: Site, folder: Path) -> None:
    async with site.connect() as (reader, writer):
        head, _, form = (HEAD % CHUNKED).partition(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n%x\r\n%b\r\n" % (len(form), form))
        for _ in range(LIMIT // len(BLOCK) + 1):  # and there is no end
            writer.write(b"%x\r\n%b\r\n" % (len(BLOCK), BLOCK))
        status, refused = await answer(reader)
    assert status == 413 and "batch_max_file_bytes" in refused["error"]["message"]
    await until(lambda: files_of(folder) == [])


async def test_compressed_files_are_bounded_by_what_they_stand_for(site: Site, folder: Path) -> None:
    form = (HEAD % b"").partition(b"\r\n\r\n")[2].lstrip()
    headers = {"content-type": "multipart/form-data; boundary=xy", "content-encoding": "gzip"}
    form = b"--xy" + form.partition(b"--xy")[2]
    for size, expected in ((LIMIT, 200), (LIMIT + 1, 413)):
        content = gzip.compress(form + bytes(size) + END)
        sent = await site.client.post("/v1/files", content=content, headers=headers)
        assert sent.status_code == expected, sent.text
    await until(lambda: len(files_of(folder)) == 2)  # the first, and what is known of it


@pytest.mark.parametrize("blocks", [0, 1, 40])
async def test_a_client_that_breaks_off_leaves_nothing(site: Site, folder: Path, blocks: int) -> None:
    async with site.connect() as (_, writer):
        writer.write(HEAD % sized(LIMIT) + blocks * BLOCK)
        await writer.drain()
        if blocks * len(BLOCK) > incoming.BLOCK_BYTES:
            await until(lambda: files_of(folder) != [])
    await until(lambda: files_of(folder) == [] and _nothing_arrives(site))


def _nothing_arrives(site: Site) -> bool:
    store = site.front_end.batches.store
    return store is not None and store.held_bytes == 0


class Gate:
    """A disk that takes its time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        work: Callable[..., None] = getattr(IncomingFile, method)

        def slow(file: IncomingFile, *arguments: Any) -> None:
            self.reached.set()
            assert self.opened.wait(10)
            work(file, *arguments)

        monkeypatch.setattr(IncomingFile, method, slow)


async def test_a_slow_disk_delays_nobody_else(site: Site, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the client of the upload is not read from meanwhile."""
    gate = Gate(monkeypatch, "append")
    async with site.connect() as (reader, writer):
        writer.write(HEAD % sized(LIMIT))
        sending = asyncio.create_task(_send(writer, LIMIT))
        await until(gate.reached.is_set)
        assert (await site.post(do="echo")).status_code == 200
        assert (await site.client.get("/v1/files")).json()["data"] == []
        store = site.front_end.batches.store
        assert store is not None and store.held_bytes < incoming.BLOCK_BYTES + 2 * len(BLOCK)
        gate.opened.set()
        await sending
        assert (await answer(reader))[0] == 200


async def _send(writer: asyncio.StreamWriter, size: int) -> None:
    for _ in range(size // len(BLOCK)):
        writer.write(BLOCK)
        await writer.drain()
    writer.write(END)
    await writer.drain()


async def test_a_client_that_leaves_while_the_disk_writes(
    site: Site, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, "append")
    async with site.connect() as (_, writer):
        writer.write(HEAD % sized(LIMIT) + 20 * BLOCK)
        await writer.drain()
        await until(gate.reached.is_set)
    gate.opened.set()
    await until(lambda: _nothing_arrives(site) and files_of(folder) == [])


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("method", ["append", "publish"])
async def test_a_full_disk(site: Site, folder: Path, monkeypatch: pytest.MonkeyPatch, method: str, code: int) -> None:
    def full(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(IncomingFile, method, full)
    async with site.connect() as (reader, writer):
        writer.write(HEAD % sized(20 * len(BLOCK)) + 20 * BLOCK + END)
        status, refused = await answer(reader)
    assert (status, refused["error"]["code"]) == (507, "storage")
    assert refused["error"]["message"] == f"the server can't write this to its disk: {os.strerror(code)}"
    await until(lambda: files_of(folder) == [])
    assert (await site.client.get("/v1/files")).json()["data"] == []


async def test_a_server_that_ends_breaks_off_what_arrives(folder: Path) -> None:
    async with serving(folder) as (site, _), site.connect() as (reader, writer):
        writer.write(HEAD % sized(LIMIT) + 20 * BLOCK)
        await until(lambda: files_of(folder) != [])
        await site.front_end.batches.close()
        assert files_of(folder) == []
        writer.write(BLOCK)
        status, refused = await answer(reader)
        assert status == 503 and "shutting down" in refused["error"]["message"]


async def test_uploads_at_once_share_the_room(folder: Path) -> None:
    """Each would fit alone."""
    async with serving(folder, batch_max_bytes=3 << 20) as (site, client):
        async with site.connect() as (first, one), site.connect() as (second, other):
            for writer in (one, other):
                writer.write(HEAD % sized(2 << 20) + 17 * BLOCK)
            await until(lambda: len(files_of(folder)) == 2)
            for writer in (one, other):
                writer.write(BLOCK * 15 + END)
            statuses = [(await answer(reader))[0] for reader in (first, second)]
        assert 413 in statuses
        with pytest.raises(APIStatusError, match="batch_max_bytes"):
            await upload(client, bytes((3 << 20) + 1))


async def test_files_that_arrive_count(folder: Path) -> None:
    async with serving(folder, batch_max_files=1) as (site, client), site.connect() as (_, writer):
        writer.write(HEAD % sized(LIMIT) + 20 * BLOCK)
        await until(lambda: files_of(folder) != [])
        with pytest.raises(APIStatusError, match="batch_max_files"):
            await upload(client, b"x")
        writer.close()
        await until(lambda: files_of(folder) == [])
        await upload(client, b"x")


async def test_without_a_directory_no_upload_is_read() -> None:
    async with running(placement=InProcess()) as site, site.connect() as (reader, writer):
        writer.write(HEAD % sized(LIMIT))
        status, refused = await answer(reader)
        assert status == 404 and "batch_directory" in refused["error"]["message"]


def part(name: str, value: str) -> tuple[str, tuple[None, bytes]]:
    return name, (None, value.encode())


FILE = ("file", ("a.jsonl", b"{}"))


@pytest.mark.parametrize(
    ("parts", "status", "param"),
    [
        ([FILE, part("purpose", "batch")], 200, None),
        ([FILE, part("purpose", "evals")], 400, "purpose"),
        ([part("purpose", "assistants"), FILE], 400, "purpose"),
        ([FILE], 400, "purpose"),
        ([part("purpose", "batch")], 400, "file"),
        ([part("purpose", "batch"), FILE, FILE], 400, "file"),
        ([part("purpose", "batch"), part("sise", "3"), FILE], 400, "sise"),
        ([part("purpose", "batch"), part("x", "x" * MAX_FORM_BYTES), FILE], 413, None),
        ([part("purpose", "batch"), FILE, *[part("x" * 12_000, "")] * 10], 413, None),
        (
            [
                *(part("expires_after", "x"), part("expires_after[anchor]", "created_at"), FILE),
                *(part("purpose", "batch"), part("expires_after[seconds]", "3600")),
            ],
            *(200, None),
        ),
        ([part("expires_after[seconds]", "5"), part("purpose", "batch"), FILE], 400, "expires_after.seconds"),
    ],
)
async def test_forms(site: Site, parts: list[Any], status: int, param: str | None) -> None:
    sent = await site.client.post("/v1/files", files=parts)
    assert sent.status_code == status, sent.text
    if status != 200:
        assert sent.json()["error"]["param"] == param


@pytest.mark.parametrize("junk", [HEAD_OF_A_PART, b"\r\n--xy\r\n", b"preamble"], ids=["names", "delimiters", "text"])
async def test_form_fields_besides_the_file_are_bounded(site: Site, junk: bytes) -> None:
    """Endless names without data, at a chunk each: they are counted, not kept."""
    async with site.connect() as (reader, writer):
        head, _, _ = (HEAD % CHUNKED).partition(b"--xy")
        writer.write(head)
        piece = junk * (8192 // len(junk) + 1)
        for _ in range(16):
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        status, said = await answer(reader)
        assert (status, said["error"]["type"]) in ((413, "invalid_request_error"), (400, "invalid_request_error"))
        assert site.front_end.bodies.held_bytes == 0


async def test_the_client_that_sends_all_before_it_reads_sees_the_refusal(folder: Path) -> None:
    """OpenAI's does; the connection is closed under it, and must not be reset before it has read."""
    async with serving(folder, batch_max_file_bytes=1 << 20) as (_, client):
        with pytest.raises(APIStatusError, match="batch_max_file_bytes") as refused:
            await client.files.create(file=("in.jsonl", bytes(64 << 20)), purpose="batch")
        assert refused.value.status_code == 413
        await upload(client, lines({}))
