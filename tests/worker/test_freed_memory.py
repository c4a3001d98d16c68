"""A worker gives memory back after a large request, whatever its handler made of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from djl_python.worker.freed_memory import LARGE_BYTES, FreedMemory
from tests.worker.conftest import WAIT_S, Loader

COUNTS = """
    import os
    from djl_python import Input, Output

    def handle(inputs: Input) -> Output:
        if inputs.is_empty():
            return None
        value = inputs.get_as_json()
        return Output().add_as_json({"pid": os.getpid(), "texts": len(value)})
"""


def resident_bytes(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1]
    return int(pages) * 4096


async def test_the_memory_of_a_large_body_is_given_back(loaded: Loader) -> None:
    front = await loaded(COUNTS)
    pid = (await front.call(["a"])).json["pid"]
    before = resident_bytes(pid)
    # Texts of different lengths, so that they leave holes of all sizes.
    texts = ["a" * (600 + i % 700) for i in range(30_000)]
    assert (await front.call(json.dumps(texts).encode())).json["texts"] == len(texts)
    async with asyncio.timeout(WAIT_S):
        while resident_bytes(pid) > before + (16 << 20):
            await asyncio.sleep(0.05)


async def test_memory_is_trimmed_after_the_last_of_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed = asyncio.Event()
    loop = asyncio.get_running_loop()
    calls: list[int] = []

    def trim(keep_bytes: int) -> int:
        calls.append(keep_bytes)
        loop.call_soon_threadsafe(trimmed.set)
        return 1

    memory = FreedMemory()
    monkeypatch.setattr(memory, "trim", trim)
    memory.call_ended(LARGE_BYTES - 1)
    for _ in range(5):
        memory.call_ended(LARGE_BYTES)
    await asyncio.wait_for(trimmed.wait(), WAIT_S)
    assert calls == [0]
