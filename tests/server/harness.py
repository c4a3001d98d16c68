"""A server in this process, on a free port, with fake workers in their own processes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec

from djl_python.config import ModelConfig, ModelSpec, Options, ServerConfig, ServingSettings
from djl_python.core.errors import ConfigError
from djl_python.dialects import all_dialects
from djl_python.dialects.shared.base import Dialect
from djl_python.server.app import FrontEnd
from djl_python.server.composition import Parts
from djl_python.server.http.access import doors
from djl_python.server.http.listening import SocketListener
from djl_python.server.metrics.metrics import Metrics
from djl_python.server.models.health import Health
from djl_python.server.models.local_processes import LocalProcesses
from djl_python.server.models.placement import Placement
from djl_python.server.models.registry import ModelRegistry
from djl_python.server.models.residence.clock import Clock
from djl_python.server.models.served_model import ServedModel
from djl_python.sources import load_model_config

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


def spec_of(config: ModelConfig) -> ModelSpec:
    return ModelSpec(name=config.name, version=config.version, url=config.url)


class Files:
    """What reading a model's configuration gives."""

    def __init__(self, *configs: ModelConfig) -> None:
        self.configs: dict[ModelSpec, ModelConfig | str] = {spec_of(config): config for config in configs}
        self.may_be_read = threading.Event()
        self.may_be_read.set()

    def read(self, spec: ModelSpec) -> ModelConfig:
        """Runs in a thread."""
        self.may_be_read.wait(10)
        config = self.configs[spec]
        if isinstance(config, str):
            raise ConfigError(config)
        return config


def served(config: ModelConfig, **options: Any) -> ServedModel:
    """A model, not started yet, with fake workers."""
    metrics = Metrics().model(config.name, config.version)
    return ServedModel(config, metrics, LocalProcesses(FAKE_MODULE), **options)


def fake_registry(
    *configs: ModelConfig,
    metrics: Metrics | None = None,
    placement: Placement | None = None,
    read: Callable[[ModelSpec], ModelConfig] | None = None,
    **options: Any,
) -> tuple[ModelRegistry, Files]:
    """A registry, with no model yet, whose workers are fake ones, and what it can read unless `read` does that."""
    files = Files(*configs)
    placed = placement or LocalProcesses(FAKE_MODULE)
    return ModelRegistry(metrics or Metrics(), placed, read or files.read, **options), files


@dataclass
class Site:
    port: int
    client: httpx.AsyncClient
    front_end: FrontEnd
    registry: ModelRegistry
    files: Files

    @property
    def models(self) -> dict[str, ServedModel]:
        """The registered models by name:version."""
        return {f"{model.config.name}:{model.config.version}": model for model in self.registry.models}

    @property
    def model(self) -> ServedModel:
        return next(iter(self.registry.models))

    @property
    def pid(self) -> int:
        pid = self.model.workers.always[0].pid
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
        assert any(sample.startswith(f"# TYPE {name} ") for sample in lines), name
        return sum(float(sample.rpartition(" ")[2]) for sample in lines if sample.startswith(line))


async def until(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    """Poll what has no event."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


async def wait_ready(model: ServedModel) -> None:
    await until(lambda: model.health in (Health.HEALTHY, Health.FAILED, Health.UNLOADED))


@contextlib.asynccontextmanager
async def running(
    *configs: ModelConfig,
    wait: bool = True,
    dialects: dict[str, Dialect] | None = None,
    placement: Placement | None = None,
    directories: bool = False,
    clock: Clock | None = None,
    **server: Any,
) -> AsyncIterator[Site]:
    """A server of these models, else of one called m. `directories`: models that come later are read from theirs."""
    config = ServerConfig(**server)
    config = msgspec.structs.replace(
        config, inference_address=msgspec.structs.replace(config.inference_address, port=0)
    )
    metrics = Metrics()
    configs = configs or (model_config(),)
    registry, files = fake_registry(
        *configs,
        metrics=metrics,
        placement=placement,
        read=(lambda spec: load_model_config(spec, config)) if directories else None,
        default_model=config.default_model,
        drain_timeout_s=config.drain_timeout_s,
        load_on_request=config.load_on_request,
        memory_budget=config.memory_budget,
        clock=clock,
    )
    front_end = FrontEnd(Parts(config, metrics, registry, dialects or all_dialects()))
    loading = [registry.register(spec_of(one), one, at_startup=True) for one in configs]
    listener = SocketListener(config.inference_address)
    listener.listen()
    http = front_end.http_server(next(iter(doors(config))))
    http.add_sockets(listener.sockets)
    port = listener.address.port
    try:
        if wait:
            await asyncio.gather(*loading, return_exceptions=True)
            await asyncio.gather(*(wait_ready(model) for model in registry.models))
        # verify: else each client reads all certificates of the machine's first, which takes longer than a test
        async with httpx.AsyncClient(base_url=str(listener.address), timeout=20, verify=False) as client:
            front_end.batches.start()
            yield Site(port, client, front_end, registry, files)
    finally:
        http.stop()
        await front_end.batches.close()
        await registry.close()
        await http.close_all_connections()


def directory(parent: Path, name: str = "a", **settings: object) -> Path:
    """A model's directory, with a handler that is never run, and these settings."""
    path = parent / name
    path.mkdir(exist_ok=True)
    (path / "model.py").touch()
    (path / "serving.properties").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path
