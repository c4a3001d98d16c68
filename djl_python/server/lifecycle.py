"""Runs a server from start to exit: bind, load, serve, drain.

At its end a server first says that it is not ready, and refuses new requests with 503 for `drain_delay` seconds; then
it closes its sockets. Requests that run have `drain_timeout` seconds from the signal on.

Runs in the front end's event loop; `serve` is what the command line calls. Exit codes: 0 after a signal and a drain,
1 when no model could be loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..config import ModelConfig, ModelSpec, ServerConfig, check_default_model
from ..core.errors import ConfigError
from ..ipc import event_loop, log_lines
from ..ipc.protocol import Status
from ..sources import load_model_config
from .announcer import Announcer
from .app import FrontEnd
from .composition import compose
from .http.access import Door, doors
from .http.listening import SocketListener, allow_descriptors
from .http.server import HttpServer
from .models.health import Health
from .models.served_model import ServedModel
from .spans import NO_SPANS, Spans

log = logging.getLogger(__name__)


def serve(config: ServerConfig, configs: Mapping[ModelSpec, ModelConfig | ConfigError]) -> int:
    """Serve until a signal comes; returns the exit code.

    Args:
        configs: the models to begin with, and their configurations; one that has an error instead is FAILED.

    Raises:
        ConfigError: the address can't be listened on, its certificate can't be used, or default_model names no model.
    """
    return event_loop.run(_run(config, configs))


async def _run(config: ServerConfig, configs: Mapping[ModelSpec, ModelConfig | ConfigError]) -> int:
    return await Server(config, configs).run()


@dataclass(frozen=True)
class _Entrance:
    """An address of the server, and what answers there."""

    listener: SocketListener
    http: HttpServer

    def open(self) -> None:
        self.listener.listen()
        self.http.add_sockets(self.listener.sockets)

    def close(self) -> None:
        """Accept no more connections; may be called again."""
        self.http.stop()
        self.listener.close()


class Server:
    """One server process."""

    def __init__(
        self,
        config: ServerConfig,
        configs: Mapping[ModelSpec, ModelConfig | ConfigError],
        announcer: Announcer | None = None,
    ) -> None:
        check_default_model(config, list(configs))
        allow_descriptors()
        self._config = config
        self._configs = configs
        self._announcer = announcer or Announcer()
        self._spans = _spans(config)
        parts = compose(
            config,
            read=self._read,
            spans=self._spans,
            on_progress=self._on_progress,
            on_change=self._on_change,
        )
        self._registry = parts.registry
        self._front_end = FrontEnd(parts)
        self._stop = asyncio.Event()
        self._drain_delay_s = 0.0  # once a signal has come

    async def run(self) -> int:
        """Run the server from start to exit; returns the exit code, see the module's docstring."""
        keep = self._front_end.console.lines.add
        with log_lines.gathered(keep) if self._config.console else contextlib.nullcontext():
            return await self._serve()

    async def _serve(self) -> int:
        entrances = self._entrances()
        self._catch_signals()
        opened = False

        def open_ports() -> None:
            nonlocal opened
            if not opened:
                opened = True
                for entrance in entrances.values():
                    entrance.open()

        models = self._registry.models
        try:
            loading = [self._registry.register(spec, known, at_startup=True) for spec, known in self._configs.items()]
            self._announcer.list_models([model.config for model in models])
            for warning in self._config.warnings:
                self._announcer.note(f"warning: {warning}")
            if not self._config.wait_model_loading:
                open_ports()
            if await self._wait_loaded(loading):
                event_loop.freeze_heap()
                open_ports()
                self._front_end.batches.start()
                ready = [(model.config, model.info.example) for model in models if model.ready]
                addresses = {door: entrance.listener.address for door, entrance in entrances.items()}
                first, only = next(iter(addresses.values())), len(models) == 1
                self._announcer.serving(
                    first,
                    ready,
                    only=only,
                    console=self._config.console,
                    certificate_file=self._config.certificate_file,
                    keys=self._front_end.keys_required,
                )
                if (address := addresses.get(Door.MANAGEMENT)) is not None:
                    self._announcer.note(f"models are managed at {address}")
                await self._stop.wait()
            elif not self._stop.is_set():
                return 1
            self._front_end.begin_draining()
            refusing = asyncio.create_task(self._refuse(entrances, self._drain_delay_s if opened else 0.0))
            await self._front_end.batches.close()
            await asyncio.gather(refusing, self._drain())
            return 0
        finally:
            for entrance in entrances.values():
                entrance.close()
            await self._front_end.batches.close()
            await self._registry.close()
            await self._front_end.responses.close()
            await self._front_end.draining.wait_sent(timeout_s=1.0)
            await self._spans.close()
            for entrance in entrances.values():
                await entrance.http.close_all_connections()

    def _entrances(self) -> Mapping[Door, _Entrance]:
        """The server's addresses, bound; that of inference is the first."""
        made: dict[Door, _Entrance] = {}
        try:
            for door, address in doors(self._config).items():
                made[door] = _Entrance(SocketListener(address), self._front_end.http_server(door))
        except ConfigError:
            for entrance in made.values():
                entrance.close()
            raise
        return made

    async def _wait_loaded(self, loading: Sequence[asyncio.Task[ServedModel]]) -> bool:
        """Wait until every model has loaded or failed. False: none of them can serve, or a signal came."""
        stopped = asyncio.create_task(self._stop.wait())
        waiting: set[asyncio.Future[Any]] = {asyncio.gather(*loading, return_exceptions=True), stopped}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if self._stop.is_set():
            return False
        stopped.cancel()
        models = list(self._registry.models)
        return not models or any(model.health is not Health.FAILED for model in models)

    async def _refuse(self, entrances: Mapping[Door, _Entrance], delay_s: float) -> None:
        """Answer new requests with 503 until load balancers have noticed that this server is not ready; then close."""
        if delay_s:
            log.info("shutting down: new requests get 503 for %g s (drain_delay)", delay_s)
            await asyncio.sleep(delay_s)
        for entrance in entrances.values():
            entrance.close()

    async def _drain(self) -> None:
        """Give running calls and pages `drain_timeout` to finish."""
        draining = self._front_end.draining
        models = self._registry.running

        def busy() -> int:
            return sum(model.pool.busy for model in models) + draining.doing

        timeout_s = self._config.drain_timeout_s
        if busy():
            log.info("shutting down: %d requests have %g s (drain_timeout) to finish", busy(), timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(model.pool.wait_idle() for model in models))
                await draining.wait_done()
                await draining.wait_sent()
        except TimeoutError:
            log.warning("shutting down: %d requests did not finish within drain_timeout", busy())
        if unfetched := self._front_end.deferred.unfetched:
            log.warning("shutting down: %d answers to asynchronous requests were not fetched", unfetched)

    def _read(self, spec: ModelSpec) -> ModelConfig:
        """Read a model that comes, or changes, while the server runs. In a thread."""
        config = load_model_config(spec, self._config)
        for warning in config.warnings:
            log.warning("%s", warning, extra={"model": config.label})
        return config

    def _on_progress(self, model: ServedModel, status: Status) -> None:
        if not model.settled.is_set():
            self._announcer.progress(model.config, status)

    def _on_change(self, model: ServedModel) -> None:
        if model.health is Health.FAILED:
            self._announcer.failed(model.config, model.failure)
        elif model.health not in (Health.PENDING, Health.UNLOADED) and not model.settled.is_set():
            self._announcer.ready(model.config, time.time() - model.started_s, model.engine)

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        handled = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as it is under nohup
            handled.append(signal.SIGHUP)
        for number in handled:
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            for model in self._registry.running:
                model.workers.kill()
            os._exit(128 + number)
        log.info("%s: shutting down; once more to stop at once", number.name)
        if number is signal.SIGTERM:  # the others come from a terminal, where nobody wants to wait
            self._drain_delay_s = self._config.drain_delay_s
        self._stop.set()


def _spans(config: ServerConfig) -> Spans:
    if not config.traces:
        return NO_SPANS
    from .tracing import Tracing  # opentelemetry is an extra

    return Tracing()
