"""A small asynchronous client: what a request gave, and what the server says about itself."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import aiohttp


@dataclass
class Answer:
    """Everything that came back."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    text: str = ""
    pieces: int = 0

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The objects of a jsonlines or sse stream."""
        texts = [line.removeprefix("data:").strip() for line in self.text.splitlines()]
        return [json.loads(text) for text in texts if text]


async def ask(session: aiohttp.ClientSession, url: str, body: Any, *, leave_after_pieces: int | None = None) -> Answer:
    """POST a JSON body; with `leave_after_pieces`, hang up after so many reads (0: right after sending)."""
    answer = Answer()
    if leave_after_pieces == 0:
        task = asyncio.create_task(session.post(url, json=body))
        await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return answer
    async with session.post(url, json=body) as response:
        answer.status, answer.headers = response.status, {k.lower(): v for k, v in response.headers.items()}
        data = b""
        async for piece, _ in response.content.iter_chunks():
            data += piece
            answer.pieces += 1
            if leave_after_pieces is not None and answer.pieces >= leave_after_pieces:
                response.close()
                break
        answer.text = data.decode()
    return answer


async def metrics(session: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """Sums of the samples of each metric, over all labels; 0 for one that has none yet."""
    async with session.get(f"{url}/metrics") as response:
        text = await response.text()
    sums: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            sums[line.split()[2]] = 0.0
        elif line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            name = name.partition("{")[0]
            sums[name] = sums.get(name, 0.0) + float(value)
    return sums


QUIET = ("djl_running_requests", "djl_waiting_requests", "djl_kv_cache_blocks_used", "djl_in_flight_requests")


async def until_quiet(session: aiohttp.ClientSession, url: str, timeout_s: float = 60.0) -> None:
    """Wait until nothing runs, waits, or holds a block.

    Raises:
        AssertionError: after `timeout_s` seconds something still does (it says what), or /metrics has not answered.
    """
    busy: dict[str, float] | str = "no answer from /metrics"
    try:
        async with asyncio.timeout(timeout_s):
            while busy:
                now = await metrics(session, url)
                busy = {name: now[name] for name in QUIET if now[name]}
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"after {timeout_s:g} s: {busy}") from None
