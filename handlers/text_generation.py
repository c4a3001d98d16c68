"""The built-in handler for language models: any dialect in, continuous batching in the engine, any dialect out.

Runs in the worker's event loop, without torch. From the engine's event to the bytes of the answer everything is one
synchronous call, so that a step of the whole batch is one turn of the loop.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import msgspec

from djl_python.dialects import dialect
from djl_python.dialects.base import Dialect, Formatter, Parsed
from djl_python.dialects.custom import CustomFormatter, Shape
from djl_python.engine.client import EngineClient
from djl_python.errors import ContextLengthError, GenerationError, ModelLoadError, PayloadError, ServingError
from djl_python.handler import Context, Handler, Metrics, Reply
from djl_python.inputs import Input
from djl_python.output_formatter import FRAMINGS, adapt_output_formatter, find_decorated
from djl_python.sources import local_path
from djl_python.text.stream import TextStream
from djl_python.text.tokenizer import Tokenizer
from djl_python.types import Chat, Delta, EngineStats, GenerateRequest, TokenEvent

log = logging.getLogger(__name__)

#: Longer prompts are tokenized in a thread: at about a million characters a second this is 20 ms of the loop's time.
_LONG_PROMPT_CHARS = 20_000
#: Calls wanted beyond the batch, so that a finished sequence has a successor in the same step.
_CALLS_PER_SEQUENCE = 2


class TextGenerationHandler(Handler):
    """Text generation with any decoder-only checkpoint.

    `option.rolling_batch=disable` runs one sequence at a time through the same engine.

    Args:
        open_engine: opens the engine; `EngineClient.open`, or a fake of the same shape.
    """

    def __init__(self, open_engine: Callable[..., Awaitable[EngineClient]] = EngineClient.open) -> None:
        self._open_engine = open_engine
        self._dialects: dict[str, Dialect] = {}
        self._preemptions = 0
        self._context: Context
        self._engine: EngineClient
        self._tokenizer: Tokenizer
        self._user_shape: Shape | None = None

    async def load(self, context: Context) -> None:
        """Load the tokenizer here and the model in the engine, both at once.

        Raises:
            ModelLoadError, ConfigError: the checkpoint or a setting is wrong.
        """
        self._context = context
        config, option = context.config, context.config.option
        if option.output_formatter is not None and option.output_formatter not in FRAMINGS:
            raise ModelLoadError(
                f"option.output_formatter={option.output_formatter}: expected {', '.join(sorted(FRAMINGS))}"
            )
        if option.enable_streaming != "false":
            log.warning(
                "option.enable_streaming has no effect here: requests ask for a stream, or option.output_formatter"
            )
        self._user_shape = await asyncio.to_thread(_user_shape, context.model_dir, context.name)
        cache_dir = Path(config.cache_dir) if config.cache_dir else None
        path = await asyncio.to_thread(local_path, option.model_id, option.revision, context.model_dir, cache_dir)
        opening = asyncio.ensure_future(
            self._open_engine(config, path, progress=context.progress, on_stats=self._report, on_death=context.fail)
        )
        try:
            self._tokenizer = await asyncio.to_thread(Tokenizer.load, path, trust_remote_code=option.trust_remote_code)
            self._engine = await opening
        except BaseException:
            await _abandon(opening)
            raise
        self.capacity = _CALLS_PER_SEQUENCE * self._engine.limits.max_batch_size

    async def serve(self, inputs: Input, reply: Reply) -> None:
        """Parse, tokenize, generate.

        Raises:
            PayloadError, ParameterError: the request is not what its dialect takes, or does not fit the model.
            GenerationError: the engine failed before the first token; later, the error ends the stream.
            Exception: the user's @output_formatter raised it.
        """
        arrived_s = time.perf_counter()
        api = self._dialects.setdefault(inputs.dialect, dialect(inputs.dialect))
        parsed = api.parse(inputs, self._context.config)
        (parsed_request,) = parsed.requests
        request, prompt_ids, prompt = await self._prepare(parsed_request)
        stream = TextStream(self._tokenizer, request, prompt_ids, prompt)
        formatter = self._formatter(parsed, inputs)
        generation = _Generation(self._engine, stream, formatter, reply, self._context.metrics, arrived_s)
        self._context.metrics.count("prompt_tokens", len(prompt_ids))
        try:
            await generation.run(prompt_ids, request)
        except asyncio.CancelledError:
            self._context.metrics.count("aborted_requests")
            raise
        except ServingError as error:
            if not reply.started:
                raise
            log.warning("request %s failed while it was streaming: %s", inputs.request_id, error.message)
            reply.finish(formatter.error(error))

    async def close(self) -> None:
        """End the engine."""
        await self._engine.close()

    # -------------------------------------------------------------------------------------------- a request's way in

    async def _prepare(self, request: GenerateRequest) -> tuple[GenerateRequest, list[int], str]:
        """The request with everything tokenized, the prompt's ids, and the prompt as the model sees it."""
        if isinstance(request.prompt, Chat):
            raise PayloadError("messages: chats are not served yet", "messages")
        if isinstance(request.prompt, str):
            encode = self._tokenizer.encode
            if len(request.prompt) > _LONG_PROMPT_CHARS:
                ids = await asyncio.to_thread(encode, request.prompt, request.add_special_tokens)
            else:
                ids = encode(request.prompt, request.add_special_tokens)
            prompt = request.prompt
        else:
            ids = list(request.prompt)
            prompt = self._tokenizer.decode(ids)
        if request.truncate is not None and len(ids) > request.truncate:
            ids = ids[-request.truncate :]
            prompt = self._tokenizer.decode(ids)
        if not ids:
            raise PayloadError("inputs: the tokenizer makes no tokens of this text", "inputs")
        longest = self._engine.limits.max_model_len
        if len(ids) >= longest:
            raise ContextLengthError(len(ids), None, longest)
        if request.must_fit and len(ids) + request.sampling.max_new_tokens > longest:
            raise ContextLengthError(len(ids), request.sampling.max_new_tokens, longest)
        sampling = request.sampling
        # What does not fit into the context is not generated; the finish reason says so.
        room = min(sampling.max_new_tokens, longest - len(ids))
        sampling = msgspec.structs.replace(
            sampling,
            max_new_tokens=room,
            min_new_tokens=min(sampling.min_new_tokens, room),
            bad_words_ids=self._tokenizer.bad_words(request.bad_sequences),
        )
        return msgspec.structs.replace(request, sampling=sampling), ids, prompt

    def _formatter(self, parsed: Parsed, inputs: Input) -> Formatter:
        if self._user_shape is None:
            return parsed.formatter
        return CustomFormatter(
            self._user_shape,
            parsed.formatter,
            parsed.requests[0],
            _client_parameters(inputs),
            tgi_compat=self._context.config.option.tgi_compat,
        )

    # -------------------------------------------------------------------------------------------- the engine's news

    def _report(self, stats: EngineStats) -> None:
        metrics = self._context.metrics
        metrics.gauge("running_requests", stats.running)
        metrics.gauge("waiting_requests", stats.waiting)
        metrics.gauge("kv_cache_blocks_used", stats.kv_blocks_used)
        metrics.gauge("kv_cache_blocks_total", stats.kv_blocks_total)
        if stats.kv_blocks_total:
            metrics.gauge("kv_cache_usage_ratio", stats.kv_blocks_used / stats.kv_blocks_total)
        if stats.step_s:
            metrics.observe("engine_step_seconds", stats.step_s)
            metrics.observe("batch_size", stats.running)
        if stats.preemptions > self._preemptions:
            metrics.count("preemptions", stats.preemptions - self._preemptions)
            self._preemptions = stats.preemptions


class _Generation:
    """One request between the engine and its client."""

    def __init__(
        self,
        engine: EngineClient,
        stream: TextStream,
        formatter: Formatter,
        reply: Reply,
        metrics: Metrics,
        arrived_s: float,
    ) -> None:
        self._engine = engine
        self._stream = stream
        self._formatter = formatter
        self._reply = reply
        self._metrics = metrics
        self._last_s = arrived_s
        self._first = True
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, prompt_ids: list[int], request: GenerateRequest) -> None:
        """Generate until the end, a failure, or the cancellation of this task. Leaves nothing in the engine."""
        request_id = self._engine.submit(prompt_ids, request.sampling, self._on_event)
        try:
            await self._done
        finally:
            # Whoever ended it (a stop sequence, a failing formatter, the client): a finished id is ignored.
            self._engine.cancel(request_id)

    def _on_event(self, event: TokenEvent) -> None:
        """Called by the engine client, between the events of other requests: nothing may be raised from here."""
        if self._done.done():
            return
        with _FailureOf(self._done):
            if event.error is not None:
                raise GenerationError(event.error)
            self._measure()
            tokens, finish = self._stream.push(event)
            if not tokens and finish is None:
                return
            data = self._formatter.push(
                Delta(tokens=tuple(tokens), text="".join(token.text for token in tokens), finish=finish)
            )
            if not self._reply.started and (finish is not None or self._formatter.stream):
                self._reply.start(200, self._formatter.headers)
            if finish is None:
                if data:
                    self._reply.write(data)
                return
            self._reply.finish(data + self._formatter.end())
            self._done.set_result(None)

    def _measure(self) -> None:
        now_s = time.perf_counter()
        name = "time_to_first_token_seconds" if self._first else "inter_token_latency_seconds"
        self._metrics.observe(name, now_s - self._last_s)
        self._metrics.count("generated_tokens")
        self._first, self._last_s = False, now_s


class _FailureOf:
    """A block whose exception becomes that of a future, where the worker's service, the boundary, waits for it."""

    def __init__(self, future: asyncio.Future[None]) -> None:
        self._future = future

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        if isinstance(error, StopIteration):
            # A future can't carry one.
            wrapped = RuntimeError("StopIteration")
            wrapped.__cause__ = error
            error = wrapped
        if not self._future.done():
            self._future.set_exception(error)
        return True


async def _abandon(opening: asyncio.Future[EngineClient]) -> None:
    """Close the engine, whether it is open or about to be."""
    opening.cancel()
    (engine,) = await asyncio.gather(opening, return_exceptions=True)
    if not isinstance(engine, BaseException):
        await engine.close()


def _client_parameters(inputs: Input) -> Mapping[str, Any]:
    try:
        body = inputs.get_as_json()
    except PayloadError:  # a dialect may take bodies that are not JSON
        return {}
    parameters = body.get("parameters") if isinstance(body, dict) else None
    return parameters if isinstance(parameters, dict) else {}


def _user_shape(model_dir: Path, model_name: str) -> Shape | None:
    """The @output_formatter of the model directory's own Python file, if it has one."""
    file = next((file for name in (model_name, "model") if (file := model_dir / f"{name}.py").is_file()), None)
    if file is None:
        return None
    module = _imported(file.resolve())
    if find_decorated(module, "input_formatter") is not None:
        log.warning("%s: @input_formatter has no effect yet", file)
    function = find_decorated(module, "output_formatter")
    return None if function is None else adapt_output_formatter(function)


def _imported(file: Path) -> ModuleType:
    """The user's file as a module; the worker has imported it already where it looked for a handler in it."""
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == str(file):
            return module
    name = f"user_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ModelLoadError(f"{file} can't be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module
