"""Worker processes: each `Replica` keeps one running, from spawn through restarts to the end.

Runs in the front end's event loop. A worker is spawned in a session of its own with one end of a socket pair; its
whole process group is killed when it ends, so that an engine never outlives its worker. A worker that dies after it was
ready is restarted; one that cannot load is retried `retry_threshold` times and then given up. Until it has been ready,
a worker loads in its turn (`ServedModel.turns`); from then on, calls may be waiting for it.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from ...config import ModelConfig, worker_environment
from ...core.types import EngineInfo
from ...ipc.channel import Channel
from ...ipc.processes import spawn
from ...ipc.protocol import AnyMessage, Load, Status, Stop

if TYPE_CHECKING:
    from .served_model import ServedModel

log = logging.getLogger(__name__)

#: Attempts to load a worker that was ready before: the memory of the dead one may not be free yet.
RELOAD_ATTEMPTS = 3
#: A restarted worker that was ready for less than this time is restarted only after a delay.
SHORT_LIFE_S = 60.0
BACKOFF_S, BACKOFF_MAX_S = 0.5, 30.0
#: How long a worker may take to exit after its last message.
EXIT_GRACE_S = 5.0


class WorkerState(enum.StrEnum):
    """The state of one replica."""

    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True)
class _Life:
    """The life of one worker process. `ready_s`: how long it was ready; None: it never was. `detail`: how it ended."""

    ready_s: float | None
    detail: str


class Replica:
    """One worker slot of a model: the current worker process, and its successors."""

    def __init__(self, model: ServedModel, index: int, config: ModelConfig) -> None:
        self.name = str(index)
        self.capacity, self.queries = 1, 0
        self.engine: EngineInfo | None = None
        self.state = WorkerState.STARTING
        self.failure = ""
        self._killed = ""  # why `hang_up` killed it, if it did
        self._was_ready = self._has_turn = False
        self.pid: int | None = None
        self._model = model
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._channel: Channel | None = None
        self._loaded: asyncio.Future[str] = self._loop.create_future()  # "", or why it did not load
        self._closed = asyncio.Event()

    # ------------------------------------------------------------------------------------ pool.Worker

    def send(self, message: AnyMessage) -> None:
        """Queue a message for the worker."""
        if self._channel is not None:
            self._channel.send(message)

    def flush(self) -> None:
        """Send the queued messages now."""
        if self._channel is not None:
            self._channel.flush()

    def said(self, message: AnyMessage) -> None:
        """Handle a message about no call: a ready worker that reports failure is about to exit: no more calls."""
        if isinstance(message, Status) and message.state == "failed":
            self._leave("gave up")

    def hang_up(self, reason: str) -> None:
        """Kill the worker; `run` starts its successor."""
        log.error("worker %s %s: killed", self.name, reason, extra=self._model.log_extra)
        self._killed = reason
        self._leave(reason)
        self.kill()

    # ------------------------------------------------------------------------------------ life

    async def run(self) -> None:
        """Keep a worker in this slot until `stop`, or until it cannot load."""
        try:
            await self._run()
        except Exception as exc:  # the slot's boundary: after any error it shows as failed and leaves no worker
            log.exception("supervision of worker %s failed", self.name, extra=self._model.log_extra)
            self.failure = f"supervision failed: {exc}"
            self._become(WorkerState.FAILED)
        finally:
            self.kill()

    async def _run(self) -> None:
        failed_loads = quick_deaths = restarts = 0
        retries = self._config.serving.retry_threshold
        while not self._stopping.is_set():
            life = await self._live()
            if self._stopping.is_set():
                break
            if life.ready_s is None:
                failed_loads += 1
                if failed_loads > retries:
                    self.failure = life.detail
                    self._become(WorkerState.FAILED)
                    return
                log.warning(
                    "worker %s did not load, attempt %d of %d:\n%s",
                    *(self.name, failed_loads, retries + 1, life.detail),
                    extra=self._model.log_extra,
                )
                delay_s = _backoff(failed_loads)
            else:
                retries = max(retries, RELOAD_ATTEMPTS - 1)
                failed_loads = 0
                quick_deaths = quick_deaths + 1 if restarts and life.ready_s < SHORT_LIFE_S else 0
                delay_s = _backoff(quick_deaths)
                again = f"in {delay_s:g} s" if delay_s else "now"
                log.error(
                    "worker %s %s; it starts again %s", self.name, life.detail, again, extra=self._model.log_extra
                )
            restarts += 1
            self._model.metrics.restarts.inc()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay_s)
        self._become(WorkerState.STOPPED)

    async def stop(self) -> None:
        """Tell the worker to close its handler and exit; kill it if it does not. `run` returns after this."""
        if not self._stopping.is_set():  # else the worker has been told already
            self._stopping.set()
            self.send(Stop())
        if self.state is WorkerState.READY:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), EXIT_GRACE_S)
        self.kill()

    async def _live(self) -> _Life:
        """Run one process, once it may load, until its whole process group is gone."""
        try:
            await self._take_turn()
            return await self._run_process()
        finally:
            self._give_turn_back()

    async def _run_process(self) -> _Life:
        if self._stopping.is_set():
            return _Life(None, "it was stopped before it began")
        executable, directory = self._config.option.python_executable or sys.executable, self._config.path
        try:
            process, ours = await spawn(
                self._model.worker_module,
                log_name=f"{self._config.label}/{self.name}",
                executable=executable,
                cwd=directory or None,
                env=worker_environment(self._config),
                new_session=True,
            )
        except OSError as exc:  # which does not tell which of the two it is about
            at_fault = executable if not directory or os.access(directory, os.X_OK) else directory
            return _Life(None, f"{at_fault}: {exc.strerror or exc}")
        self.pid = process.pid
        if self._stopping.is_set():
            self.kill()  # `stop` was called before the process had a pid
        self._killed = ""
        self._loaded, self._closed = self._loop.create_future(), asyncio.Event()
        self._channel = Channel(self._on_messages, self._on_closed)
        await self._channel.attach(ours)
        self._channel.send(Load(msgspec.msgpack.encode(self._config)))
        exited = asyncio.create_task(process.wait())
        try:
            return await self._watch(process, exited)
        finally:
            self._channel.close()
            self._channel = None
            self.kill()
            await exited
            await _reap_orphans(process.pid)
            self.pid = None

    async def _watch(self, process: asyncio.subprocess.Process, exited: asyncio.Task[int]) -> _Life:
        timeout_s = self._config.option.model_loading_timeout
        waiting: set[asyncio.Future[Any]] = {exited, self._loaded}
        done, _ = await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if self._loaded in done:
            self._give_turn_back()
        if not done:
            return _Life(
                None,
                f"loading took longer than {timeout_s:g} s: raise option.model_loading_timeout "
                "(or MODEL_LOADING_TIMEOUT) if the model needs more time",
            )
        if exited in done and not self._loaded.done():
            await self._last_words()
        if not self._loaded.done() or self._loaded.result():
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(exited), EXIT_GRACE_S)
            how = _how_it_ended(process.returncode)
            return _Life(None, self._loaded.result() if self._loaded.done() else f"the worker {how} while loading")
        ready_at = self._loop.time()
        closed = asyncio.create_task(self._closed.wait())
        await asyncio.wait({exited, closed}, return_when=asyncio.FIRST_COMPLETED)
        await self._last_words()  # messages that it sent before it ended are still on their way
        closed.cancel()
        self._leave("has ended")
        ready_s = self._loop.time() - ready_at
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(exited), 1.0)
        return _Life(ready_s, self._killed or _how_it_ended(process.returncode))

    async def _take_turn(self) -> None:
        """Wait until this worker may load, or until `stop`."""
        turns = self._model.turns
        if turns is None or self._was_ready:
            return
        taken = asyncio.ensure_future(turns.acquire())
        stopped = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait((taken, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        self._has_turn = not taken.cancel()

    def _give_turn_back(self) -> None:
        if self._has_turn and self._model.turns is not None:
            self._has_turn = False
            self._model.turns.release()

    async def _last_words(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closed.wait(), 0.5)

    def _on_messages(self, messages: list[AnyMessage]) -> None:
        if self.state is WorkerState.READY:
            self._model.pool.receive(self, messages)
            return
        for position, message in enumerate(messages):
            if not isinstance(message, Status):
                continue
            if message.state == "ready":
                self._was_ready = True
                self.capacity, self.queries = max(1, message.capacity), message.queries
                self.engine = message.engine
                self._become(WorkerState.READY)
                self._model.pool.add(self)
                self._settle("")
                self._model.pool.receive(self, messages[position + 1 :])
                return
            if message.state == "failed":
                self._settle(message.detail or "the worker gave no reason")
            else:
                self._model.on_progress(self._model, message)

    def _settle(self, outcome: str) -> None:
        if not self._loaded.done():
            self._loaded.set_result(outcome)

    def _on_closed(self) -> None:
        self._closed.set()
        self._leave("has ended")

    def _leave(self, cause: str) -> None:
        """Take the worker out of the pool: it answers no more."""
        self._model.pool.remove(self, cause)
        if self.state is WorkerState.READY:
            self._become(WorkerState.STARTING)

    def kill(self) -> None:
        """Kill the slot's current process and its children."""
        if self.pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def _become(self, state: WorkerState) -> None:
        self.state = state
        self._model.changed()


def _backoff(times: int) -> float:
    # No larger exponents: a float would overflow after a night of restarts.
    return min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** min(times - 1, 100)) if times else 0.0


def _how_it_ended(returncode: int | None) -> str:
    if returncode is None:
        return "closed its connection"
    if returncode >= 0:
        return f"exited with status {returncode}"
    hint = " (out of memory?)" if returncode == -signal.SIGKILL else ""
    try:
        name = signal.Signals(-returncode).name
    except ValueError:  # most real-time signals have none
        name = f"signal {-returncode}"
    return f"was killed by {name}{hint}"


async def _reap_orphans(group: int) -> None:
    """Reap what is left of a killed process group where this process inherits orphans (process 1 of a container)."""
    for _ in range(50):
        try:
            pid, _status = os.waitpid(-group, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            await asyncio.sleep(0.01)
