"""A server in this process, on a free port, with fake workers in their own processes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec

from djl_python.config import ModelConfig, Options, ServerConfig, ServingSettings
from djl_python.dialects import all_dialects
from djl_python.dialects.shared.base import Dialect
from djl_python.server.app import FrontEnd
from djl_python.server.http.listening import Listener
from djl_python.server.metrics import Metrics
from djl_python.server.models.registry import Models
from djl_python.server.models.served_model import Health, ServedModel

FAKE_WORKER = Path(__file__).with_name("fake_worker.py")
FAKE_MODULE = "tests.server.fake_worker"  # which workers find in
ROOT = Path(__file__).parents[2]


def model_config(
    name: str = "m",
    version: str = "",
    *,
    option: dict[str, Any] | None = None,
    properties: dict[str, str] | None = None,
    **serving: Any,
) -> ModelConfig:
    return ModelConfig(
        name=name,
        version=version,
        serving=ServingSettings(**serving),
        option=Options(**{"env": f"PYTHONPATH={ROOT}", **(option or {})}),
        properties=properties or {},
    )


@dataclass
class Site:
    port: int
    client: httpx.AsyncClient
    front_end: FrontEnd
    models: dict[str, ServedModel]

    @property
    def model(self) -> ServedModel:
        return next(iter(self.models.values()))

    @property
    def pid(self) -> int:
        pid = self.model.replicas[0].pid
        assert pid is not None
        return pid

    async def post(self, path: str = "/invocations", **order: Any) -> httpx.Response:
        return await self.client.post(path, json=order)

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def metric(self, line: str) -> float:
        """The sum of the samples whose names and labels begin with `line`; 0 if a metric of that name has none."""
        lines = (await self.client.get("/metrics")).text.splitlines()
        name = line.partition("{")[0]
        assert any(found.startswith(f"# TYPE {name} ") for found in lines), name
        return sum(float(found.rpartition(" ")[2]) for found in lines if found.startswith(line))


async def until(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    """Poll what has no event."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


async def wait_ready(model: ServedModel) -> None:
    await until(lambda: model.health in (Health.HEALTHY, Health.FAILED))


@contextlib.asynccontextmanager
async def running(
    *configs: ModelConfig, wait: bool = True, dialects: dict[str, Dialect] | None = None, **server: Any
) -> AsyncIterator[Site]:
    config = ServerConfig(**server)
    config = msgspec.structs.replace(
        config, inference_address=msgspec.structs.replace(config.inference_address, port=0)
    )
    metrics, models = Metrics(), Models(config.default_model)
    front_end = FrontEnd(config, models, metrics, dialects or all_dialects())
    served: dict[str, ServedModel] = {}
    for one in configs or (model_config(),):
        model = ServedModel(one, metrics.model(one.name, one.version), worker_module=FAKE_MODULE)
        models.add(model)
        served[f"{one.name}:{one.version}"] = model
        model.start()
    listener = Listener(config.inference_address)
    listener.listen()
    http = front_end.http_server()
    http.add_sockets(listener.sockets)
    port = listener.address.port
    try:
        if wait:
            await asyncio.gather(*(wait_ready(model) for model in served.values()))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
            yield Site(port, client, front_end, served)
    finally:
        http.stop()
        await asyncio.gather(*(model.stop() for model in models.with_workers))
        await http.close_all_connections()
