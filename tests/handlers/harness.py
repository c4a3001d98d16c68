"""The built-in handler over an engine whose steps the test makes, and a dialect that says everything plainly."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer as Fast
from tokenizers import decoders, models, pre_tokenizers

from djl_python.config import ModelConfig, Options
from djl_python.core.engine_info import EngineStats
from djl_python.core.errors import ServingError
from djl_python.core.metrics import MetricFamily
from djl_python.core.sequence_request import AnyImages, Pictures, SequenceRequest
from djl_python.core.turns.precedence import ANY, Precedence
from djl_python.core.types import Chat, Delta, FinishReason, GenerateRequest, SamplingParams, TokenEvent, Vocabulary
from djl_python.dialects.shared.base import Answer, Dialect, Formatter, Kind, Parsed, Route
from djl_python.dialects.shared.views import QueriedModel
from djl_python.engine.builtin.options import BuiltInOptions
from djl_python.handler import Context
from djl_python.handlers.text_generation import TextGenerationHandler
from djl_python.inputs import Input
from djl_python.ipc.protocol import AdapterChange, Call, Opened
from djl_python.worker.thread import HandlerThread

EOS = "<|end|>"
LIMITS = Opened(max_model_len=64, max_batch_size=4, kv_blocks=16, block_size=4)


def byte_tokenizer() -> Fast:
    """One token for each byte, and an end."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Fast(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([EOS])
    return tokenizer


BYTES = byte_tokenizer()
EOS_ID = BYTES.get_vocab()[EOS]


def ids(text: str) -> list[int]:
    return list(BYTES.encode(text).ids)


class FakeEngine:
    """Plays scripts: the ids that `reply_to` gives for a prompt, one for each sequence in each step."""

    def __init__(self, limits: Opened = LIMITS) -> None:
        self.limits = limits
        self.running_s: float | None = None  # what the first token's event tells
        self.sequences: dict[int, tuple[list[int], SamplingParams, Callable[[TokenEvent], None], list[int]]] = {}
        self.prompts: dict[int, list[int]] = {}
        self.adapters: list[str] = []
        self.adapter_versions: list[int] = []
        self.salts: list[str] = []
        self.sampling: dict[int, SamplingParams] = {}
        self.images: dict[int, AnyImages | None] = {}
        self.changes: list[AdapterChange] = []
        self.changing = asyncio.Event()  # set by a change
        self.may_change = asyncio.Event()  # a change waits for it
        self.may_change.set()
        self.refusal: ServingError | None = None  # of changes, and of pictures
        self.pictures: list[Pictures] = []
        self.cancelled: list[int] = []
        self.closed = False
        self.reply_to: Callable[[str], str] = lambda prompt: f" {prompt.upper()}"
        self.logprob_of: Callable[[int], float] = lambda request_id: -0.5
        self.top_of: Callable[[int], tuple[tuple[int, float], ...]] = lambda token_id: ()
        self.script_of: Callable[[str], list[int]] = lambda prompt: ids(self.reply_to(prompt))
        self.submitted = asyncio.Event()
        self.vocabularies: list[Vocabulary] = []

    async def open(self, config: ModelConfig, model_path: Path, **callbacks: Any) -> FakeEngine:
        self.callbacks = callbacks
        self.model_path = model_path
        return self

    def set_vocabulary(self, vocabulary: Vocabulary) -> None:
        self.vocabularies.append(vocabulary)

    async def change_adapter(self, change: AdapterChange) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.changing.set()
        await self.may_change.wait()
        self.changes.append(change)

    async def expand(self, pictures: Pictures) -> list[int]:
        """Two ids more for each picture."""
        if self.refusal is not None:
            raise self.refusal
        self.pictures.append(pictures)
        return [*pictures.written, *[32] * 2 * len(pictures.pixels)]

    def submit(self, request: SequenceRequest, on_event: Callable[[TokenEvent], None]) -> int:
        self.adapters.append(request.adapter)
        self.adapter_versions.append(request.adapter_version)
        self.salts.append(request.cache_salt)
        request_id = len(self.prompts) + 1
        prompt_ids, sampling = request.prompt_ids, request.sampling
        script = [*self.script_of(BYTES.decode(prompt_ids)), EOS_ID]
        self.sequences[request_id] = (prompt_ids, sampling, on_event, script)
        self.prompts[request_id] = prompt_ids
        self.sampling[request_id] = sampling
        self.images[request_id] = request.images
        self.submitted.set()
        return request_id

    def cancel(self, request_id: int) -> None:
        if self.sequences.pop(request_id, None) is not None:
            self.cancelled.append(request_id)

    def step(self) -> None:
        for request_id, (prompt_ids, sampling, on_event, script) in list(self.sequences.items()):
            if request_id not in self.sequences:
                continue
            token_id = script.pop(0)
            made = len(self.script_of(BYTES.decode(prompt_ids))) + 1 - len(script)
            finish = None
            if token_id == EOS_ID:
                finish = FinishReason.EOS
            elif made == sampling.max_new_tokens:
                finish = FinishReason.LENGTH
            if finish is not None:
                del self.sequences[request_id]
            logprob = self.logprob_of(request_id) if sampling.logprobs else None
            top, running_s = self.top_of(token_id), self.running_s if made == 1 else None
            on_event(TokenEvent(request_id, token_id, logprob=logprob, finish=finish, top=top, running_s=running_s))
        self.callbacks["on_stats"](EngineStats())

    def fail_one(self, on_event: Callable[[TokenEvent], None], request_id: int, message: str) -> None:
        on_event(TokenEvent(request_id, -1, error=message))

    def fail(self, message: str, kind: str = "generation") -> None:
        sequences, self.sequences = self.sequences, {}
        for request_id, (_, _, on_event, _) in sequences.items():
            on_event(TokenEvent(request_id, -1, error=message, error_kind=kind))

    async def run(self) -> None:
        """Steps until nothing is left."""
        await self.submitted.wait()
        while self.sequences:
            self.step()
            await asyncio.sleep(0)

    async def drive(self) -> None:
        """Steps until it is cancelled."""
        while True:
            self.step()
            await asyncio.sleep(0)

    async def close(self) -> None:
        self.closed = True


class FakeReply:
    def __init__(self) -> None:
        self.started = self.finished = False
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.pieces: list[bytes] = []
        self.progress = 0  # how often predict_timeout was restarted without a piece

    def start(self, status: int, headers: Mapping[str, str]) -> None:
        assert not self.started
        self.started, self.status, self.headers = True, status, headers

    def write(self, data: bytes) -> None:
        assert self.started and not self.finished
        self.pieces.append(data)

    def keep_alive(self, data: bytes) -> None:
        self.write(data)

    def progressed(self) -> None:
        self.progress += 1

    async def drain(self) -> None: ...

    def finish(self, data: bytes = b"") -> None:
        self.write(data)
        self.finished = True

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]


class FakeMetrics:
    def __init__(self) -> None:
        self.counts: dict[str, float] = defaultdict(float)
        self.gauges: dict[str, float] = {}
        self.observations: dict[str, list[float]] = defaultdict(list)

    def count(self, name: str, amount: float = 1) -> None:
        self.counts[name] += amount

    def gauge(self, name: str, value: float) -> None:
        self.gauges[name] = value

    def observe(self, name: str, *values: float) -> None:
        self.observations[name].extend(values)

    def engine(self, families: list[MetricFamily]) -> None:
        self.families = families


class Served:
    """A loaded handler and what it was given."""

    def __init__(self, model_dir: Path, limits: Opened = LIMITS) -> None:
        self.model_dir = model_dir
        self.engine = FakeEngine(limits)
        self.metrics = FakeMetrics()
        self.failures: list[str] = []
        self.handler = TextGenerationHandler(self.engine.open)

    async def load(
        self, adapters: tuple[str, ...] | Mapping[str, str] = (), runs_adapter_code: bool = True, **options: Any
    ) -> Served:
        own = {name: options.pop(name) for name in BuiltInOptions.__struct_fields__ if name in options}
        config = ModelConfig(
            name="m",
            path=str(self.model_dir),
            option=Options(**options),
            engine_options=own,
            runs_adapter_code=runs_adapter_code,
            adapters=dict(adapters) if isinstance(adapters, Mapping) else dict.fromkeys(adapters, "/adapter"),
        )
        self.thread = HandlerThread()
        await self.handler.load(
            Context(
                name="m",
                version="",
                model_dir=self.model_dir,
                config=config,
                metrics=self.metrics,
                progress=lambda what, done, total: None,
                fail=self.failures.append,
                run=self.thread.run,
            )
        )
        return self

    def ask(self, inputs: Any, stream: bool = False, **parameters: Any) -> tuple[asyncio.Task[None], FakeReply]:
        """Serve a request as a task."""
        return self.call("lmi", "predict", {"inputs": inputs, "parameters": parameters, "stream": stream})

    def call(
        self,
        dialect: str,
        operation: str,
        body: Any,
        content_type: str = "application/json",
        *,
        waited_s: float = 0.0,
        precedence: Precedence = ANY,
        context: bytes = b"",
        **headers: str,
    ) -> tuple[asyncio.Task[None], FakeReply]:
        """Serve a call as a task."""
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        headers["content-type"] = content_type
        call = Call(
            1,
            dialect,
            operation,
            "POST",
            f"/{operation}",
            (),
            headers,
            data,
            waited_s,
            precedence=precedence,
            context=context,
        )
        reply = FakeReply()
        return asyncio.create_task(self.handler.serve(Input.from_call(call), reply)), reply

    async def answer(self, inputs: Any, stream: bool = False, **parameters: Any) -> FakeReply:
        """Serve a request to its end."""
        return await self.ended(*self.ask(inputs, stream, **parameters))

    async def plain(self, *requests: GenerateRequest, stream: bool = False) -> list[Delta]:
        """Generate, of the plain dialect's requests."""
        reply = await self.ended(*self.call("plain", "generate", {"stream": stream, "requests": requests}))
        assert reply.status == 200
        return [msgspec.json.decode(line, type=Delta) for line in reply.body.splitlines()]

    async def query(self, operation: str, body: Any = None) -> FakeReply:
        """Ask the plain dialect's query."""
        task, reply = self.call("plain", operation, body)
        await task
        return reply

    async def ended(self, task: asyncio.Task[None], reply: FakeReply) -> FakeReply:
        """Serve a call to its end."""
        running = asyncio.create_task(self.engine.drive())
        try:
            await task
        finally:
            running.cancel()
        return reply

    async def submitted(self, number: int = 1) -> None:
        while len(self.engine.prompts) < number:
            await asyncio.sleep(0)

    async def changed(self, number: int) -> None:
        """Wait until the engine has had so many changes of adapters, and requests get them."""
        while len(self.engine.changes) < number:
            await asyncio.sleep(0)
        await asyncio.sleep(0)


# ------------------------------------------------------------------------------------------------ a plain dialect


class PlainFormatter(Formatter):
    """Deltas as JSON, one a line."""

    keep_alive = b"still here\n"

    def __init__(self, stream: bool) -> None:
        self.stream = stream
        self.headers = {"content-type": "application/jsonlines"}
        self._lines: list[bytes] = []

    def push(self, delta: Delta) -> bytes:
        line = msgspec.json.encode(delta) + b"\n"
        if self.stream:
            return line
        self._lines.append(line)
        return b""

    def end(self) -> bytes:
        return b"" if self.stream else b"".join(self._lines)

    def error(self, error: ServingError) -> bytes:
        return msgspec.json.encode({"error": error.message, "kind": error.kind}) + b"\n"


class PlainDialect(Dialect):
    """A body is `{"stream": bool, "requests": [GenerateRequest, ...]}`."""

    name = "plain"
    routes = (
        Route("POST", "/plain", "generate"),
        Route("POST", "/tokenize", "tokenize", Kind.QUERY),
        Route("POST", "/render", "render", Kind.QUERY),
        Route("GET", "/info", "info", Kind.QUERY),
    )

    def parse(self, inputs: Input, model: ModelConfig) -> Parsed:
        body = inputs.get_as_json()
        return Parsed(
            tuple(msgspec.convert(body["requests"], list[GenerateRequest])), PlainFormatter(body.get("stream", False))
        )

    def query(self, inputs: Input, model: QueriedModel) -> Answer:
        if inputs.operation == "tokenize":
            return Answer(200, msgspec.json.encode(model.tokenize(inputs.get_as_string())))
        if inputs.operation == "render":
            return Answer(200, model.render(msgspec.convert(inputs.get_as_json(), Chat)).encode())
        info = (model.config.name, model.model_id, model.dtype, model.max_model_len, model.capacity)
        return Answer(200, msgspec.json.encode(info))

    def error(
        self,
        error: ServingError,
        model: ModelConfig | None = None,
        *,
        operation: str = "",
        inputs: Input | None = None,
    ) -> Answer:
        return Answer(error.status, error.message.encode())

    def stream_error(self, error: ServingError, headers: Mapping[str, str], model: ModelConfig | None = None) -> bytes:
        return error.message.encode()
