"""A server with files and batches, and clients of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from openai import AsyncOpenAI
from openai.types import Batch

from tests.server.harness import Site, model_config, running
from tests.server.in_process import InProcess

URL: Final = "/v1/chat/completions"
#: States in which nothing more happens.
ENDED: Final = ("completed", "failed", "expired", "cancelled")

Served = tuple[Site, AsyncOpenAI]


@asynccontextmanager
async def serving(folder: Path, *, capacity: int = 4, **settings: Any) -> AsyncIterator[Served]:
    config = model_config(properties={"capacity": str(capacity)})
    async with running(config, placement=InProcess(), batch_directory=str(folder), **settings) as site:
        url = f"http://127.0.0.1:{site.port}/v1"
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            yield site, client


def lines(*orders: dict[str, Any]) -> bytes:
    """An input whose requests have the fake worker do these things."""
    requests = (
        {"custom_id": f"r{number}", "method": "POST", "url": URL, "body": order} for number, order in enumerate(orders)
    )
    return b"".join(json.dumps(one).encode() + b"\n" for one in requests)


async def upload(client: AsyncOpenAI, content: bytes) -> str:
    return (await client.files.create(file=("in.jsonl", content), purpose="batch")).id


async def create(client: AsyncOpenAI, content: bytes, **options: Any) -> Batch:
    file_id = await upload(client, content)
    return await client.batches.create(
        input_file_id=file_id, endpoint=URL, completion_window=options.pop("window", "24h"), **options
    )


async def status(client: AsyncOpenAI, batch: Batch, *wanted: str) -> Batch:
    """The batch, once it has one of these states."""
    async with asyncio.timeout(20):
        while (current := await client.batches.retrieve(batch.id)).status not in wanted:
            await asyncio.sleep(0.01)
    return current


async def results(client: AsyncOpenAI, file_id: str | None) -> list[Any]:
    if file_id is None:
        return []
    return [json.loads(line) for line in (await client.files.content(file_id)).text.splitlines()]
