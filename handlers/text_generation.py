"""The built-in handler for language models: any dialect in, continuous batching in the engine, any dialect out.

Runs in the worker's event loop, without torch. A request is prepared (`preparation`), generated (`sequences`) and
written (`answer`); this module loads the model's parts, connects them, and counts requests and prompts.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from djl_python.config import Checkpoint
from djl_python.config.sources import local_path
from djl_python.core.errors import GenerationError, PayloadError, ServingError
from djl_python.dialects import dialect
from djl_python.dialects.shared.base import Dialect, Kind, Parsed
from djl_python.dialects.shared.request_body import ignored_header
from djl_python.engine.client import EngineClient
from djl_python.engine.interface import engine_of
from djl_python.formats.json_framing import JSON
from djl_python.handler import Context, Handler, Reply
from djl_python.inputs import Input
from djl_python.ipc.protocol import AdapterChange
from djl_python.outputs import Output
from djl_python.session_manager import SessionManager, names_session
from djl_python.text.tokens.tokenizer import Tokenizer
from djl_python.text.tokens.tokenizer_files import chosen_template
from djl_python.text.tokens.vocabulary import vocabulary_of
from djl_python.text.trial_text import TRIAL_TEXT

from .adapters import Adapters
from .answer import TextAnswer
from .checks import MODEL, check, check_files, checkpoints, without_effect
from .generation import Generation
from .generation_trace import GenerationTrace
from .images.pictures import PictureReader, lacking
from .images.processor import ImageProcessor
from .model_view import ModelView
from .preparation import LONG_PROMPT_CHARS, Preparation
from .sequences import generate
from .step_metrics import StepMetrics
from .user_formatters import UserFormatters

log = logging.getLogger(__name__)

#: Calls taken at once per sequence of the batch: so that a finished sequence has a successor in the same step.
_CALLS_PER_SEQUENCE = 2
#: Queries taken in addition. Each is answered at once, except if its text is so long that a thread reads it.
_QUERIES = 16


@functools.cache
def _speaker(name: str) -> tuple[Dialect, frozenset[str]]:
    """A dialect, and which of its operations are queries."""
    found = dialect(name)
    return found, frozenset(route.operation for route in found.routes if route.kind is Kind.QUERY)


class TextGenerationHandler(Handler):
    """Text generation with any decoder-only checkpoint, those that take images included.

    `option.rolling_batch=disable` runs `batch_size` sequences at once through the same engine.

    Args:
        open_engine: opens the engine; `EngineClient.open`, or a fake of the same shape.
    """

    queries = _QUERIES

    def __init__(self, open_engine: Callable[..., Awaitable[EngineClient]] = EngineClient.open) -> None:
        self._open_engine = open_engine
        self._steps: StepMetrics
        self._context: Context
        self._engine: EngineClient
        self._tokenizer: Tokenizer
        self._preparation: Preparation
        self._view: ModelView
        self._formatters: UserFormatters
        self._adapters: Adapters
        self._images: ImageProcessor | PictureReader | None
        self._telling: asyncio.Future[None] | None = None  # the engine the vocabulary

    async def load(self, context: Context) -> None:
        """Load the image processor, then at the same time the tokenizer here and the model in the engine.

        Raises:
            ModelLoadError, ConfigError: the checkpoint or a setting is wrong.
        """
        self._context = context
        self._steps = StepMetrics(context.metrics)
        config, option = context.config, context.config.option
        check(config)
        for remark in without_effect(config):
            log.warning("%s", remark)
        cache_dir = Path(config.cache_dir) if config.cache_dir else None
        engine = engine_of(option.rolling_batch)
        fetched = {}
        for name, model_id in checkpoints(config, engine).items():
            revision = option.revision if name == MODEL else ""
            where = await asyncio.to_thread(local_path, model_id, revision, context.model_dir, cache_dir)
            check_files(config, engine, name, where)  # if it has just been fetched, nobody has looked yet
            fetched[name] = where
        path = fetched.pop(MODEL)
        processor = None if engine.prepares_images else await asyncio.to_thread(ImageProcessor.load, path, option)
        checkpoint = msgspec.structs.replace(Checkpoint.read(path), takes_images=processor is not None)
        config = msgspec.structs.replace(config, checkpoint=checkpoint)
        self._images = processor
        self._formatters = await context.run((), UserFormatters, config, path, context.run)
        trial_text: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        opening = asyncio.ensure_future(
            self._open_engine(
                config,
                path,
                checkpoints=fetched,
                image_example=None if processor is None else processor.example,
                trial_text=trial_text,
                progress=context.progress,
                on_stats=self._steps.step,
                on_death=self._engine_died,
                on_metrics=context.metrics.engine,
            )
        )
        try:
            self._tokenizer = await asyncio.to_thread(Tokenizer.load, path, trust_remote_code=option.trust_remote_code)
            if option.chat_template:
                self._tokenizer.chat_templates = chosen_template(option.chat_template, context.model_dir)
            trial_text.set_result(await asyncio.to_thread(self._tokenizer.encode, TRIAL_TEXT))
            self._engine = await opening
            limits = self._engine.limits
            if engine.prepares_images and limits.takes_images and (missing := lacking()):
                log.warning("this model's images are refused: %s", missing)
            elif engine.prepares_images and limits.takes_images:
                checkpoint = msgspec.structs.replace(checkpoint, takes_images=True)
                config = msgspec.structs.replace(config, checkpoint=checkpoint)
                self._formatters.know(config)
                encode = functools.partial(self._tokenizer.encode, add_special_tokens=False)
                self._images = PictureReader(option, encode, self._engine.expand)
            # The engine may have found that it can't give this model images.
            images = self._images if limits.takes_images else None
            self._preparation = Preparation(
                self._tokenizer,
                option,
                limits.max_model_len,
                images,
                limits.vocabulary,
                engine.parameters,
                no_images=f"the engine that runs this model ({limits.info.runner or engine.name}) takes no images",
            )
        except BaseException:
            await _abandon(opening)
            raise
        folders = (context.model_dir, path) if config.path else (path,)
        self._adapters = Adapters(config, engine, folders, self._engine.change_adapter)
        self.at_once = limits.max_batch_size
        self.capacity = _CALLS_PER_SEQUENCE * self.at_once
        self.engine_info = msgspec.structs.replace(limits.info, takes_images=images is not None)
        self.example = self._formatters.example(chat="default" in self._tokenizer.chat_templates)
        self._view = ModelView(config, path, self._tokenizer, self._preparation, limits, self.capacity)

    async def serve(self, inputs: Input, reply: Reply) -> None:
        """Parse, prepare, generate; or answer a query.

        Raises:
            PayloadError, ParameterError: the request is not what its dialect takes, or does not fit the model.
            GenerationError: the engine failed before the first token; later, the error ends the stream.
            Exception: one of the user's formatters raised it.
        """
        arrived_s = time.perf_counter()
        api, queries = _speaker(inputs.dialect)
        if inputs.operation in queries:
            await self._answer_query(api, inputs, reply)
            return
        if api.has_sessions and names_session(inputs):
            opened_or_closed = await asyncio.to_thread(self._about_session, inputs)
            if opened_or_closed is not None:
                reply.start(200, {"content-type": JSON, **opened_or_closed.properties})
                reply.finish(opened_or_closed.content.value_at(0))
                return
        parsed, inputs = await self._formatters.parse(api, inputs)
        with self._adapters.used({request.adapter for request in parsed.requests} - {""}):
            await self._answer(parsed, inputs, reply, arrived_s)

    async def _answer(self, parsed: Parsed, inputs: Input, reply: Reply, arrived_s: float) -> None:
        call_trace = inputs.trace
        prompts = await self._preparation.prepare(parsed.requests, long=_is_long(inputs))
        # The dialect knows which names have no effect with any model, the preparation which have none with this one.
        ignored = {name for prompt in prompts for name in prompt.request.ignored}
        parsed.formatter.headers.update(ignored_header(sorted(ignored)))
        parsed.formatter.tokenized([prompt.ids for prompt in prompts])
        if any(prompt.has_grammar for prompt in prompts):
            await self._tell_vocabulary()
        metrics = self._context.metrics
        metrics.count("prompt_tokens", sum(len(prompt.ids) for prompt in prompts))
        answer = TextAnswer(parsed.formatter, reply, sum(request.branching.n for request in parsed.requests))
        trace = None
        if call_trace is not None:
            validated_s = time.perf_counter() - arrived_s
            trace = GenerationTrace(call_trace, prompts, streams=answer.streams, validated_s=validated_s)
        try:
            generation = Generation(
                self._engine,
                answer,
                metrics,
                self._steps,
                waited_s=inputs.waited_s,
                arrived_s=arrived_s,
                request_id=inputs.request_id,
                trace=trace,
            )
            await generate(generation, prompts)
        except ServingError as error:
            if isinstance(error, GenerationError):  # to the front end this looks like any other answer
                metrics.count("aborted_requests")
            if not reply.started:
                raise
            if call_trace is not None:
                call_trace.note({"error.type": error.kind})
            log.warning("the request failed while it was streaming: %s", error.message)
            reply.finish(parsed.formatter.error(error))

    def _about_session(self, inputs: Input) -> Output | None:
        """The answer to a request that opens or closes a session; None: it is a request in one. Reads files.

        Raises:
            PayloadError: there are no sessions, or none such.
        """
        option = self._context.config.option
        if not option.enable_stateful_sessions:
            raise PayloadError("option.enable_stateful_sessions=false: this model has no sessions")
        properties = {"sessions_path": option.sessions_path, "sessions_expiration": str(option.sessions_expiration_s)}
        return SessionManager(properties).respond(inputs)

    async def _tell_vocabulary(self) -> None:
        """Have the engine know the tokenizer's tokens, once, before the first sequence with a grammar."""
        if self._telling is None or (self._telling.done() and self._telling.exception() is not None):
            self._telling = asyncio.ensure_future(self._send_vocabulary())
        await asyncio.shield(self._telling)

    async def _send_vocabulary(self) -> None:
        self._engine.know(await asyncio.to_thread(vocabulary_of, self._tokenizer))

    async def _answer_query(self, api: Dialect, inputs: Input, reply: Reply) -> None:
        query = functools.partial(api.query, inputs, self._view)
        answer = await asyncio.to_thread(query) if _is_long(inputs) else query()
        reply.start(answer.status, answer.headers)
        reply.finish(answer.body)

    async def change_adapter(self, change: AdapterChange) -> None:
        """Change one of the engine's adapters."""
        await self._adapters.change(change)

    async def close(self) -> None:
        """Close the image processor and the engine."""
        if self._images is not None:
            await self._images.close()
        await self._engine.close()

    def _engine_died(self, reason: str) -> None:
        self._steps.report()
        self._context.fail(reason)


def _is_long(inputs: Input) -> bool:
    """Whether it may take long to render or tokenize what a call says, wherever it says it: as text, as tools …"""
    return sum(len(value) for value in inputs.content.values) > LONG_PROMPT_CHARS


async def _abandon(opening: asyncio.Future[EngineClient]) -> None:
    """Close the engine, whether it is open or about to be."""
    opening.cancel()
    (engine,) = await asyncio.gather(opening, return_exceptions=True)
    if not isinstance(engine, BaseException):
        await engine.close()
