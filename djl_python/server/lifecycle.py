"""From start to exit: bind, load, serve, drain.

Runs in the front end's event loop; `serve` is what the command line calls. Exit codes: 0 after a signal and a drain,
1 when no model could be loaded.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from ..config import ModelConfig, ModelSpec, ServerConfig
from ..core.cpu_limit import available_cpus
from ..core.errors import ConfigError
from ..dialects import all_dialects
from ..ipc import event_loop
from ..ipc.protocol import Status
from .announcer import Announcer
from .app import FrontEnd
from .http.listening import Listener, allow_descriptors
from .metrics import Metrics
from .models.registry import Models
from .models.served_model import Health, ServedModel

log = logging.getLogger(__name__)

#: Workers that load at a time, for each processor: most of loading is computing, some is waiting for disks.
LOADING_PER_CPU: Final = 2


def serve(config: ServerConfig, models: Sequence[ModelConfig], broken: Mapping[ModelSpec, str] | None = None) -> int:
    """Serve until a signal comes; returns the exit code.

    Args:
        broken: models whose configuration is wrong, with the error; they can't be loaded and are FAILED.

    Raises:
        ConfigError: the address can't be listened on, or default_model names no model.
    """
    return event_loop.run(_run(config, models, broken or {}))


async def _run(config: ServerConfig, models: Sequence[ModelConfig], broken: Mapping[ModelSpec, str]) -> int:
    return await Server(config, models, broken).run()


class Server:
    """One server process."""

    def __init__(
        self,
        config: ServerConfig,
        models: Sequence[ModelConfig],
        broken: Mapping[ModelSpec, str] | None = None,
        announcer: Announcer | None = None,
    ) -> None:
        failures = {} if broken is None else broken
        names = [model.name for model in models] + [spec.name for spec in failures]
        if config.default_model and config.default_model not in names:
            raise ConfigError(f"default_model={config.default_model}: no such model; there is {', '.join(names)}")
        self._config = config
        self._announcer = announcer or Announcer()
        self._metrics = Metrics()
        self._models = Models(config.default_model)
        self._front_end = FrontEnd(config, self._models, self._metrics, all_dialects())
        self._stop = asyncio.Event()
        self._turns = asyncio.Semaphore(LOADING_PER_CPU * available_cpus())
        for model in models:
            self._add(model)
        for spec, problem in failures.items():
            self._add(ModelConfig(name=spec.name, version=spec.version, url=spec.url), problem)

    async def run(self) -> int:
        """Run the server from start to exit; returns the exit code, see the module's docstring."""
        allow_descriptors()
        listener = Listener(self._config.inference_address)
        self._catch_signals()
        http = self._front_end.http_server()
        opened = False

        def open_port() -> None:
            nonlocal opened
            if not opened:
                opened = True
                listener.listen()
                http.add_sockets(listener.sockets)

        self._announcer.found([model.config for model in self._models])
        for warning in self._config.warnings:
            self._announcer.note(f"warning: {warning}")
        if not self._config.wait_model_loading:
            open_port()
        try:
            for model in self._models:
                model.start()
            if await self._load():
                event_loop.settle()
                open_port()
                ready = [model.config for model in self._models if model.ready]
                self._announcer.serving(listener.address, ready, only=len(self._models) == 1)
                await self._stop.wait()
            elif not self._stop.is_set():
                return 1
            http.stop()
            listener.close()
            await self._drain()
            return 0
        finally:
            http.stop()
            listener.close()
            await asyncio.gather(*(model.stop() for model in self._models.with_workers))
            await self._front_end.wait_sent(timeout_s=1.0)
            await http.close_all_connections()

    def _add(self, config: ModelConfig, broken: str = "") -> None:
        if config.option.throttle_error_http_code is None:
            # Dialects see only the model's options.
            code = self._config.throttle_error_http_code
            config = msgspec.structs.replace(
                config, option=msgspec.structs.replace(config.option, throttle_error_http_code=code)
            )
        model = ServedModel(
            config,
            self._metrics.model(config.name, config.version),
            turns=self._turns,
            on_progress=self._on_progress,
            on_change=self._on_change,
            broken=broken,
        )
        self._models.add(model)

    async def _load(self) -> bool:
        """Wait until every model has loaded or failed. False: none can serve, or a signal came."""
        settled = asyncio.gather(*(model.settled.wait() for model in self._models))
        stopped = asyncio.create_task(self._stop.wait())
        waiting: set[asyncio.Future[Any]] = {settled, stopped}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if self._stop.is_set():
            settled.cancel()
            with suppress(asyncio.CancelledError):
                await settled
            return False
        stopped.cancel()
        return any(model.health is not Health.FAILED for model in self._models)

    async def _drain(self) -> None:
        """Accept no new calls; give running calls and pages `drain_timeout` to finish."""
        self._front_end.draining = True
        models = self._models.with_workers

        def busy() -> int:
            return sum(model.pool.busy for model in models) + self._front_end.doing

        timeout_s = self._config.drain_timeout_s
        if busy():
            log.info("shutting down: %d requests have %g s (drain_timeout) to finish", busy(), timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(model.pool.wait_idle() for model in models))
                await self._front_end.wait_done()
                await self._front_end.wait_sent()
        except TimeoutError:
            log.warning("shutting down: %d requests did not finish within drain_timeout", busy())

    def _on_progress(self, model: ServedModel, status: Status) -> None:
        if not model.settled.is_set():
            self._announcer.progress(model.config, status)

    def _on_change(self, model: ServedModel) -> None:
        if model.health is Health.FAILED:
            self._announcer.failed(model.config, model.failure)
        elif model.health is not Health.PENDING and not model.settled.is_set():
            self._announcer.ready(model.config, time.time() - model.registered_s, model.engine)

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        handled = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as it is under nohup
            handled.append(signal.SIGHUP)
        for number in handled:
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            for model in self._models.with_workers:
                model.kill()
            os._exit(128 + number)
        log.info("%s: shutting down; once more to stop at once", number.name)
        self._stop.set()
