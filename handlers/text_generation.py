"""The built-in handler for language models: any dialect in, continuous batching in the engine, any dialect out.

Runs in the worker's event loop, without torch. A request is prepared (`preparation`), generated (`decoding`) and
written (`answer`); this module loads the model's parts, connects them, and counts requests and prompts.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec

from djl_python.compat.session_manager import SessionManager, names_session
from djl_python.config import Checkpoint
from djl_python.core.errors import GenerationError, PayloadError, ServingError
from djl_python.dialects.shared.base import Dialect, Parsed
from djl_python.dialects.shared.defaults import request_defaults
from djl_python.dialects.shared.request_body import ignored_header
from djl_python.engine.client import EngineClient
from djl_python.engine.row import engine_of
from djl_python.formats.json_framing import JSON
from djl_python.handler import Context, Handler, Reply
from djl_python.inputs import Input
from djl_python.ipc.protocol import AdapterChange
from djl_python.outputs import Output
from djl_python.sources import local_path, path_here
from djl_python.text.probe_text import PROBE_TEXT
from djl_python.text.tokens.tokenizer import Tokenizer
from djl_python.text.tokens.tokenizer_files import chosen_template
from djl_python.text.tokens.vocabulary import vocabulary_of

from .adapters import Adapters
from .answer import PROGRESS_S, TextAnswer
from .calls import is_long, speaker
from .checks import MODEL, check, check_files, checkpoints, without_effect
from .decoding.deadline import Deadline
from .decoding.generation import Generation
from .decoding.generation_trace import GenerationTrace
from .decoding.sequences import generate
from .images.needs import lacks_pillow
from .images.pictures import PictureReader
from .images.processor import ImageProcessor
from .model_view import ModelView
from .preparation import Preparation
from .step_metrics import StepMetrics
from .user_formatters import UserFormatters

log = logging.getLogger(__name__)

#: Calls taken at once per sequence of the batch: so that a finished sequence has a successor in the same step.
_CALLS_PER_SEQUENCE = 2
#: Queries taken in addition. Each is answered at once, except if its text is so long that a thread reads it.
_QUERIES = 16


class TextGenerationHandler(Handler):
    """Text generation with any checkpoint of a decoder, those that take images and encoder-decoders included.

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
        self._sending: asyncio.Future[None] | None = None  # the engine the vocabulary

    async def load(self, context: Context) -> None:
        """Load the image processor, then at the same time the tokenizer here and the model in the engine.

        Raises:
            ModelLoadError, ConfigError: the checkpoint or a setting is wrong.
        """
        self._context = context
        self._steps = StepMetrics(context.metrics)
        config, option = context.config, context.config.option
        check(config)
        cache_dir = Path(config.cache_dir) if config.cache_dir else None
        engine = engine_of(option.rolling_batch)
        fetched = {}
        for name, model_id in checkpoints(config, engine).items():
            revision = option.revision if name == MODEL else ""
            where = await asyncio.to_thread(path_here, model_id, context.model_dir, cache_dir=cache_dir)
            if where is None:
                where = await asyncio.to_thread(local_path, model_id, revision, context.model_dir, cache_dir)
                check_files(config, engine, name, where)  # nobody has looked yet
            fetched[name] = where
        path = fetched.pop(MODEL)
        for remark in without_effect(config, path):
            log.warning("%s", remark)
        processor = None if engine.prepares_images else await asyncio.to_thread(ImageProcessor.load, path, option)
        checkpoint = msgspec.structs.replace(Checkpoint.read(path), takes_images=processor is not None)
        config = msgspec.structs.replace(config, checkpoint=checkpoint)
        self._images = processor
        self._formatters = await context.run((), UserFormatters, config, path, context.run)
        probe_text: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        opening = asyncio.ensure_future(
            self._open_engine(
                config,
                path,
                checkpoints=fetched,
                image_example=None if processor is None else processor.example,
                probe_text=probe_text,
                progress=context.progress,
                on_stats=self._steps.step,
                on_death=self._engine_died,
                on_metrics=context.metrics.engine,
                on_answers=context.answers,
            )
        )
        try:
            self._tokenizer = await asyncio.to_thread(Tokenizer.load, path, trust_remote_code=option.trust_remote_code)
            if option.chat_template:
                self._tokenizer.chat_templates = chosen_template(option.chat_template, context.model_dir)
            probe_text.set_result(await asyncio.to_thread(self._tokenizer.encode, PROBE_TEXT))
            await context.run((), self._formatters.load_tokenizer)
            self._engine = await opening
            limits = self._engine.limits
            if engine.prepares_images and limits.takes_images and (missing := lacks_pillow()):
                log.warning("this model's images are refused: %s", missing)
            elif engine.prepares_images and limits.takes_images:
                checkpoint = msgspec.structs.replace(checkpoint, takes_images=True)
                config = msgspec.structs.replace(config, checkpoint=checkpoint)
                self._formatters.set_config(config)
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
                decoder=limits.decoder,
            )
        except BaseException:
            await _abandon(opening)
            raise
        folders = (context.model_dir, path) if config.path else (path,)
        self._adapters = Adapters(config, engine, folders, self._formatters, self._engine.change_adapter)
        self.at_once = limits.max_batch_size
        self.capacity = _CALLS_PER_SEQUENCE * self.at_once
        self.engine_info = msgspec.structs.replace(
            limits.info, takes_images=images is not None, max_model_len=limits.max_model_len
        )
        self.example = self._formatters.example(chat="default" in self._tokenizer.chat_templates)
        if self.example is not None:  # else the user's formatter has its own
            self.defaults = request_defaults(config)
        shown = msgspec.structs.replace(limits, info=self.engine_info)
        self._view = ModelView(config, path, self._tokenizer, self._preparation, shown, self.capacity)

    async def serve(self, inputs: Input, reply: Reply) -> None:
        """Parse, prepare, generate; or answer a query.

        Raises:
            PayloadError, ParameterError: the request is not what its dialect takes, or does not fit the model.
            GenerationError: the engine failed before the first token; later, the error ends the stream.
            Exception: one of the user's formatters raised it.
        """
        arrived_s = time.perf_counter()
        api, queries = speaker(inputs.dialect)
        if inputs.operation in queries:
            await self._answer_query(api, inputs, reply)
            return
        if api.has_sessions and names_session(inputs):
            opened_or_closed = await asyncio.to_thread(self._about_session, inputs)
            if opened_or_closed is not None:
                reply.start(200, {"content-type": JSON, **opened_or_closed.properties})
                reply.finish(opened_or_closed.content.value_at(0))
                return
        deadline = Deadline.of(inputs, arrived_s)
        while True:
            versions = self._adapters.versions
            parsed, read = await self._formatters.parse(api, inputs)
            if not parsed.requests:  # it only asks for the model to be loaded
                whole = parsed.formatter.end()
                reply.start(200, parsed.formatter.headers)
                reply.finish(whole)
                return
            with self._adapters.used({request.adapter for request in parsed.requests} - {""}) as used:
                if all(versions.get(name) == version for name, version in used.items()):
                    await self._answer(parsed, read, reply, arrived_s, deadline, used)
                    return
            # One has been replaced while the request was parsed, perhaps by one with other formatters.

    async def _answer(
        self,
        parsed: Parsed,
        inputs: Input,
        reply: Reply,
        arrived_s: float,
        deadline: Deadline | None,
        adapters: Mapping[str, int],
    ) -> None:
        """Generate and write the answer.

        Args:
            adapters: the versions of the adapters that it names, by name.
        """
        option, call_trace = self._context.config.option, inputs.trace
        formatter = parsed.formatter
        on_refusal = formatter.fail_item if formatter.isolates else None
        prompts = await self._preparation.prepare(parsed.requests, long=is_long(inputs), on_refusal=on_refusal)
        # The dialect knows which names have no effect with any model, the preparation which have none with this one.
        ignored = set[str]().union(*{prompt.request.ignored for prompt in prompts})
        formatter.headers.update(ignored_header(sorted(ignored)))
        splits_reasoning = any(prompt.new_reasoning is not None for prompt in prompts)
        formatter.prepared([prompt.prompt_ids for prompt in prompts], splits_reasoning=splits_reasoning)
        if any(prompt.has_grammar for prompt in prompts):
            await self._ensure_vocabulary()
        metrics = self._context.metrics
        prompt_tokens = sum(len(prompt.prompt_ids) for prompt in prompts)
        metrics.count("prompt_tokens", prompt_tokens)
        if inputs.usage is not None:
            inputs.usage.prompt_tokens += prompt_tokens
            inputs.usage.send()  # they are in flight now
        answer = TextAnswer(
            formatter,
            reply,
            sum(prompt.request.branching.n for prompt in prompts),
            progress_s=min(PROGRESS_S, option.predict_timeout / 4),
        )
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
                precedence=inputs.precedence,
                adapters=adapters,
                cache_scope=inputs.precedence.tenant if option.prefix_cache_scope == "tenant" else "",
                trace=trace,
                usage=inputs.usage,
            )
            await generate(generation, prompts, deadline)
        except ServingError as error:
            if isinstance(error, GenerationError):  # to the front end this looks like any other answer
                metrics.count("aborted_requests")
            if not reply.started:
                raise
            if call_trace is not None:
                call_trace.note({"error.type": error.kind})
            log.warning("the request failed while it was streaming: %s", error.message)
            reply.finish(formatter.error(error))

    def _about_session(self, inputs: Input) -> Output | None:
        """The answer to a request that opens or closes a session; None: it is a request in one. Reads files.

        Raises:
            PayloadError: the model has no sessions, or not this one.
            OverloadedError: the number of sessions has reached its limit.
            StorageError: the disk has no room for another session.
        """
        option = self._context.config.option
        if not option.enable_stateful_sessions:
            raise PayloadError("option.enable_stateful_sessions=false: this model has no sessions")
        properties = {
            "sessions_path": option.sessions_path,
            "sessions_expiration": str(option.sessions_expiration_s),
            "max_sessions": str(option.max_sessions),
            "max_sessions_bytes": str(option.max_sessions_bytes),
        }
        return SessionManager(properties).respond(inputs)

    async def _ensure_vocabulary(self) -> None:
        """Send the engine the tokenizer's tokens, once, before the first sequence with a grammar."""
        if self._sending is None or (self._sending.done() and self._sending.exception() is not None):
            self._sending = asyncio.ensure_future(self._send_vocabulary())
        await asyncio.shield(self._sending)

    async def _send_vocabulary(self) -> None:
        self._engine.set_vocabulary(await asyncio.to_thread(vocabulary_of, self._tokenizer))

    async def _answer_query(self, api: Dialect, inputs: Input, reply: Reply) -> None:
        query = functools.partial(api.query, inputs, self._view)
        answer = await asyncio.to_thread(query) if is_long(inputs) else query()
        reply.start(answer.status, answer.headers)
        reply.finish(answer.body)

    async def change_adapter(self, change: AdapterChange) -> None:
        """Change one of the engine's adapters."""
        await self._adapters.change(change)

    async def close(self) -> None:
        """Close the image processor, the thread that parses large bodies, and the engine."""
        self._formatters.close()
        if self._images is not None:
            await self._images.close()
        await self._engine.close()

    def _engine_died(self, reason: str) -> None:
        self._steps.report()
        self._context.fail(reason)


async def _abandon(opening: asyncio.Future[EngineClient]) -> None:
    """Close the engine, whether it is open or about to be."""
    opening.cancel()
    (engine,) = await asyncio.gather(opening, return_exceptions=True)
    if not isinstance(engine, BaseException):
        await engine.close()
