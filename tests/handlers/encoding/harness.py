"""The handler of encoders over an engine in the test's process, and a dialect whose bodies are the tasks' requests."""

from __future__ import annotations

import asyncio
from array import array
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from djl_python.config import TASKS, ModelConfig, Options
from djl_python.core import text_tasks
from djl_python.core.errors import ServingError
from djl_python.core.text_tasks import TextTaskResult
from djl_python.core.turns.precedence import ANY, Precedence
from djl_python.dialects.shared.base import Answer, AnswerFormatter, ParsedTask
from djl_python.dialects.shared.views import QueriedModel
from djl_python.engine.encoding.row import EncoderOptions
from djl_python.handler import Context
from djl_python.handlers.encoding.handler import EncodingHandler
from djl_python.inputs import Input
from djl_python.ipc.protocol import Call
from djl_python.worker.thread import HandlerThread
from tests.encoders import EncoderHere
from tests.handlers.harness import FakeMetrics, FakeReply, PlainDialect


def _plain(value: Any) -> Any:
    if isinstance(value, array):
        return value.tolist()
    raise TypeError(type(value))


class ResultsFormatter(AnswerFormatter[TextTaskResult]):
    """A JSON array of the results."""

    stream = False

    def __init__(self) -> None:
        self.headers = {"content-type": "application/json"}
        self._results: list[TextTaskResult] = []

    def push(self, part: TextTaskResult, /) -> bytes:
        self._results.append(part)
        return b""

    def end(self) -> bytes:
        return msgspec.json.encode(self._results, enc_hook=_plain)

    def error(self, error: ServingError) -> bytes:
        return error.message.encode()


def read(call: Input, model: ModelConfig) -> ParsedTask[Any, TextTaskResult]:
    """`{"type": "EmbedRequest", "requests": [...], "priority": 0}`."""
    body = call.get_as_json()
    kind = getattr(text_tasks, body["type"])
    requests = msgspec.convert(body["requests"], list[kind])  # type: ignore[valid-type]
    return ParsedTask(tuple(requests), ResultsFormatter(), body.get("priority"))


class PlainTasks(PlainDialect):
    name = "tasks"
    task_parsers: ClassVar = {(task, "generate"): read for task in TASKS}

    def query(self, inputs: Input, model: QueriedModel) -> Answer:
        if inputs.operation == "info":
            return Answer(200, msgspec.json.encode((model.model_id, model.dtype, model.max_model_len)))
        return super().query(inputs, model)


class ServedEncoder:
    """A loaded handler."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = FakeMetrics()
        self.failures: list[str] = []
        self.handler = EncodingHandler(self._open)

    async def _open(self, *arguments: Any) -> EncoderHere:
        self.engine = await EncoderHere.open(*arguments)
        return self.engine

    async def load(self, **options: Any) -> ServedEncoder:
        own = {name: options.pop(name) for name in EncoderOptions.__struct_fields__ if name in options}
        own = {"threads": 1, **own}
        config = ModelConfig(name="m", path=str(self.path), option=Options(**options), engine_options=own)
        context = Context(
            name="m",
            version="",
            model_dir=self.path,
            config=config,
            metrics=self.metrics,
            progress=lambda what, done, total: None,
            fail=self.failures.append,
            run=HandlerThread().run,
        )
        await self.handler.load(context)
        return self

    def call(
        self, operation: str, body: Any, precedence: Precedence = ANY, /, **headers: str
    ) -> tuple[asyncio.Task[None], FakeReply]:
        """Serve a call as a task."""
        headers["content-type"] = "application/json"
        content = msgspec.json.encode(body)
        call = Call(1, "tasks", operation, "POST", f"/{operation}", (), headers, content, precedence=precedence)
        reply = FakeReply()
        return asyncio.create_task(self.handler.serve(Input.from_call(call), reply)), reply

    async def ask(self, *requests: Any) -> list[Any]:
        """The results of requests of one kind."""
        task, reply = self.call("generate", {"type": type(requests[0]).__name__, "requests": requests})
        await task
        assert reply.status == 200
        results: list[Any] = msgspec.json.decode(reply.body)
        return results
