"""A kit for testing handlers, engines and clients without a model: a byte tokenizer, a scripted engine, a server.

Runs in tests, and `running_server` in `bench` too. Only the model is fake: `running_server` runs the command line in a
process of its own, `FakeRollingBatch` and `FakeAsyncEngine` in spawned engine processes (`option.rolling_batch` is
FAKE_ENGINE or FAKE_ASYNC_ENGINE).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .config import own_server_environment
from .core.engine_info import EngineStats
from .core.sequence_request import SequenceRequest
from .core.types import TokenEvent
from .engine.batch.sequence import Sequence
from .engine.echo import EchoRollingBatch
from .engine.interface import AsyncEngine, EngineSettings, Progress

EOS = "<|end|>"
FAKE_ENGINE: Final = "djl_python.testing:FakeRollingBatch"
FAKE_ASYNC_ENGINE: Final = "djl_python.testing:FakeAsyncEngine"


class FakeRollingBatch(EchoRollingBatch):
    """Echoes prompts; settings make its steps slow or make them fail.

    Settings (`option.<name>` of the model):
        fake_step_ms: least duration of a step, in milliseconds; default 0.
        fake_computing_ms: for how long a processor works in a step besides; default 0.
        fake_failing_token: a step with a sequence that has this token id raises.
        fake_end_token: the token id that ends an answer; by default none does.
    """

    def __init__(self, settings: EngineSettings, progress: Progress) -> None:
        super().__init__(settings, progress)
        self._step_s = float(settings.properties.get("fake_step_ms", 0)) / 1000
        self._computing_s = float(settings.properties.get("fake_computing_ms", 0)) / 1000
        self._failing_token = int(settings.properties.get("fake_failing_token", -1))
        self._ends = frozenset({int(settings.properties.get("fake_end_token", -1))})

    def step(self) -> list[TokenEvent]:
        time.sleep(self._step_s)
        until_s = time.monotonic() + self._computing_s
        while time.monotonic() < until_s:
            pass
        if self._culprits():
            raise RuntimeError(f"token {self._failing_token} makes a step fail")
        return super().step()

    def isolate(self, cause: Exception) -> list[TokenEvent]:
        culprits = self._culprits()
        for sequence in culprits:
            self.cancel(sequence.id)
        return [TokenEvent(request_id=s.id, token_id=-1, error=f"generation failed: {cause}") for s in culprits]

    def _culprits(self) -> list[Sequence]:
        return [s for s in (*self._running.values(), *self._waiting) if self._failing_token in s.tokens]


class FakeAsyncEngine(AsyncEngine):
    """Echoes prompts as `FakeRollingBatch` does, with its settings, but schedules its sequences itself.

    Each sequence has a token every `fake_step_ms` milliseconds, and one with `fake_failing_token` fails at its first.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self.max_model_len = settings.max_model_len or 1 << 20
        self.max_batch_size = settings.max_batch_size
        self.description = "echo, on its own schedule"
        self._step_s = float(settings.properties.get("fake_step_ms", 0)) / 1000
        self._failing_token = int(settings.properties.get("fake_failing_token", -1))
        self._slots = asyncio.Semaphore(self.max_batch_size)
        self._running = self._waiting = 0

    @classmethod
    async def open(cls, settings: EngineSettings, progress: Progress) -> FakeAsyncEngine:
        progress("loading nothing", 1, 1)
        return cls(settings)

    async def generate(self, request: SequenceRequest) -> AsyncGenerator[TokenEvent, None]:
        self.check_prompt(request.prompt_ids)
        sequence = Sequence.of(request)
        async with self._slot():
            finished = False
            while not finished:
                await asyncio.sleep(self._step_s)
                if self._failing_token in sequence.tokens:
                    raise RuntimeError(f"token {self._failing_token} makes a sequence fail")
                token = sequence.tokens[len(sequence.tokens) - sequence.prompt_length]
                event = sequence.append(token, 0.0, (), frozenset(), self.max_model_len)
                finished = event.finish is not None
                yield event

    @contextlib.asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            self._slots.release()

    @property
    def stats(self) -> EngineStats:
        return EngineStats(running=self._running, waiting=self._waiting)


def write_byte_tokenizer(path: Path) -> Path:
    """Write a tokenizer into a model directory; its tokens are the 256 bytes (id = byte value) and one end token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = _byte_alphabet()
    tokenizer = Tokenizer(models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([EOS])
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS, "clean_up_tokenization_spaces": False}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def _byte_alphabet() -> list[str]:
    """The printable characters that byte-level tokenizers write for the bytes 0 .. 255 (GPT-2's convention)."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


@dataclass(frozen=True)
class RunningServer:
    """A server that is up. `output()` returns everything that it has printed so far."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


def free_port() -> int:
    """A TCP port on 127.0.0.1 that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running_server(
    *arguments: str, environment: Mapping[str, str] | None = None, start_timeout_s: float = 120.0
) -> Iterator[RunningServer]:
    """Start `python -m djl_python ARGUMENTS` on a free port and wait until its models have loaded; SIGTERM at the end.

    The server inherits this process's environment, except for variables that would change its address or its models.

    Raises:
        RuntimeError: the server ended, or was not ready in time; the message has its output.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="djl-server-") as folder:
        log = Path(folder) / "output"
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", "djl_python", *arguments, "--host", "127.0.0.1", "--port", str(port)],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**own_server_environment(), **(environment or {})},
            )
        server = RunningServer(url, process, log)
        try:
            deadline_s = time.monotonic() + start_timeout_s
            while not _loaded(url):
                if process.poll() is not None:
                    raise RuntimeError(f"the server ended with status {process.returncode}:\n{server.output()}")
                if time.monotonic() > deadline_s:
                    raise RuntimeError(f"the server is not ready after {start_timeout_s:g} s:\n{server.output()}")
                time.sleep(0.05)
            yield server
        finally:
            _end(process)


def _loaded(url: str) -> bool:
    """Whether the server says that no model is still loading."""
    try:
        with urllib.request.urlopen(f"{url}/ping", timeout=5) as response:
            return b"PENDING" not in response.read()
    except urllib.error.HTTPError:
        return True  # a model has failed, which the caller is to see
    except OSError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
