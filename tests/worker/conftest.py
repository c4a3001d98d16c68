"""A real worker process over a socket pair, driven with protocol frames as the front end does it."""

from __future__ import annotations

import asyncio
import itertools
import json
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from djl_python.config import ModelConfig, Options, ServingSettings
from djl_python.ipc.channel import Channel
from djl_python.ipc.processes import spawn
from djl_python.ipc.protocol import AnyMessage, BodyChunk, Break, Call, Cancel, Load, Report, Start, Status, Stop

WAIT_S = 20.0


@dataclass
class Answer:
    """What came back for one call, growing until `ended` is set."""

    id: int
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    chunks: list[bytes] = field(default_factory=list)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    broken: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    async def until(self, event: asyncio.Event) -> Answer:
        await asyncio.wait_for(event.wait(), WAIT_S)
        return self


class Front:
    """The front end's end of one worker."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.answers: dict[int, Answer] = {}
        self.statuses: list[Status] = []
        self.reports: list[Report] = []
        self.settled = asyncio.Event()
        self.reported = asyncio.Event()
        self.process: asyncio.subprocess.Process
        self.channel: Channel
        self.log = b""
        self._ids = itertools.count(1)
        self._reader: asyncio.Task[None]

    async def start(self) -> None:
        self.process, sock = await spawn("djl_python.worker", log_name="demo/0", cwd=self.config.path, new_session=True)
        self.channel = Channel(self._on_messages, lambda: None)
        await self.channel.attach(sock)
        self.channel.send(Load(msgspec.msgpack.encode(self.config)))

    async def load(self) -> Status:
        await self.start()
        await asyncio.wait_for(self.settled.wait(), WAIT_S)
        return self.statuses[-1]

    def send(
        self,
        body: Any = b"",
        *,
        headers: dict[str, str] | None = None,
        query: tuple[tuple[str, str], ...] = (),
        dialect: str = "lmi",
    ) -> Answer:
        answer = Answer(next(self._ids))
        self.answers[answer.id] = answer
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
            headers = {"content-type": "application/json"} | (headers or {})
        path = f"/predictions/{self.config.name}"
        self.channel.send(Call(answer.id, dialect, "predict", "POST", path, query, headers or {}, body))
        return answer

    async def call(self, body: Any = b"", **options: Any) -> Answer:
        answer = self.send(body, **options)
        return await answer.until(answer.ended)

    def cancel(self, answer: Answer, reason: str = "disconnect") -> None:
        self.channel.send(Cancel(answer.id, reason))

    def stop(self) -> None:
        self.channel.send(Stop())

    async def exit_status(self) -> int:
        return await asyncio.wait_for(self.process.wait(), WAIT_S)

    def log_text(self, capfd: pytest.CaptureFixture[str]) -> str:
        return capfd.readouterr().err

    async def end(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        self.channel.close()
        await asyncio.sleep(0)

    def _on_messages(self, messages: list[AnyMessage]) -> None:
        for message in messages:
            if isinstance(message, Start):
                answer = self.answers[message.id]
                answer.status, answer.headers = message.status, message.headers
                answer.started.set()
            elif isinstance(message, BodyChunk):
                answer = self.answers[message.id]
                answer.chunks.append(message.data)
                answer.moved.set()
                if message.last:
                    answer.ended.set()
            elif isinstance(message, Break):
                answer = self.answers[message.id]
                answer.broken = True
                answer.ended.set()
            elif isinstance(message, Status):
                self.statuses.append(message)
                if message.state != "loading":
                    self.settled.set()
            elif isinstance(message, Report):
                self.reports.append(message)
                self.reported.set()


Loader = Callable[..., Awaitable[Front]]


@pytest.fixture
def config_of(tmp_path: Path) -> Callable[..., ModelConfig]:
    """A model directory with these files, and its configuration."""

    def make(
        source: str | None = None,
        *,
        name: str = "demo",
        files: dict[str, str] | None = None,
        serving: dict[str, Any] | None = None,
        properties: dict[str, str] | None = None,
        **option: Any,
    ) -> ModelConfig:
        texts = dict(files or {})
        if source is not None:
            texts["model.py"] = source
        for file_name, text in texts.items():
            path = tmp_path / file_name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text), encoding="utf-8")
        return ModelConfig(
            name=name,
            path=str(tmp_path),
            serving=ServingSettings(**(serving or {})),
            option=Options(**option),
            properties=properties or {},
        )

    return make


@pytest.fixture
async def front(config_of: Callable[..., ModelConfig]) -> AsyncIterator[Callable[..., Front]]:
    """Makes a Front for a model directory; its process is gone at the end of the test."""
    fronts: list[Front] = []

    def make(source: str | None = None, **options: Any) -> Front:
        fronts.append(Front(config_of(source, **options)))
        return fronts[-1]

    yield make
    for one in fronts:
        if hasattr(one, "process"):
            await one.end()


@pytest.fixture
async def loaded(front: Callable[..., Front]) -> Loader:
    """Like `front`, with a worker that is ready."""

    async def make(source: str | None = None, **options: Any) -> Front:
        one = front(source, **options)
        status = await one.load()
        assert status.state == "ready", status.detail
        return one

    return make
