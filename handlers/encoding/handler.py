"""The built-in handler of models that read whole texts: any dialect in, the engine of encoders, any dialect out.

Runs in the worker's event loop, without torch. A request is parsed, its texts are tokenized (`texts`), the engine
computes what they need (`work`), and the results are written in the order of the request's texts.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from djl_python.config import task_of
from djl_python.core import budgets
from djl_python.core.errors import GenerationError, PayloadError, PredictTimeoutError, TaskError
from djl_python.core.text_tasks import Granularity
from djl_python.dialects.shared.base import AnswerFormatter, Dialect, ParsedTask
from djl_python.engine.encoder_client import EncoderClient
from djl_python.engine.encoding.settings import Head
from djl_python.engine.process import Hooks
from djl_python.handler import Context, Handler, Reply
from djl_python.inputs import Input
from djl_python.ipc.encodings import EncodeRequest, EncoderInput
from djl_python.sources import local_path
from djl_python.text.tokens.tokenizer import Tokenizer

from ..answer import PROGRESS_S, AnswerWriter
from ..calls import is_long, speaker
from ..decoding.deadline import Deadline
from ..large_bodies import LargeBodies
from ..step_metrics import StepMetrics
from .checkpoint import EncoderCheckpoint
from .checks import check, check_files, head_of, without_effect
from .classes import CLASSES
from .embeddings import DENSE, SPARSE
from .masks import MASKS
from .spans import SPANS
from .tags import TAGS
from .texts import Texts
from .view import EncoderView
from .work import Numbers, Plan, Planners, Work

log = logging.getLogger(__name__)

#: The requests that models of each head take.
_PLANNERS: Final[Mapping[Head, Planners]] = {
    Head.EMBEDDING: DENSE,
    Head.CLASSES: CLASSES,
    Head.TOKEN_CLASSES: TAGS,
    Head.SPANS: SPANS,
    Head.MASKED: {**MASKS, **SPARSE},
}
_TEXT: Final = "What is deep learning?"
_OTHERS: Final = ("Deep learning trains networks of many layers.", "The cat sat on the mat.")
#: A body of each task for /invocations.
_EXAMPLES: Final[Mapping[str, Mapping[str, Any]]] = {
    "feature-extraction": {"inputs": _TEXT},
    "sentence-similarity": {"inputs": {"source_sentence": _TEXT, "sentences": _OTHERS}},
    "text-ranking": {"query": _TEXT, "texts": _OTHERS},
    "text-classification": {"inputs": _TEXT},
    "zero-shot-classification": {"inputs": _TEXT, "parameters": {"candidate_labels": ["science", "cooking"]}},
    "token-classification": {"inputs": "Ada Lovelace lived in London."},
    "question-answering": {"inputs": {"question": _TEXT, "context": _OTHERS[0]}},
}
#: Calls taken at once: the engine chooses among them by their lengths, and the front end can't.
_CALLS: Final = 512
#: An answer of more numbers is made beside the event loop, where 1 ms is enough for so many.
_NUMBERS_AT_ONCE: Final = 8_192
#: Queries taken in addition.
_QUERIES: Final = 16


class EncodingHandler(Handler):
    """Embeddings, scores and labels of texts, with any encoder, or a decoder that has such a head.

    Args:
        open_engine: opens the engine; `EncoderClient.open`, or a fake of the same shape.
    """

    queries = _QUERIES

    def __init__(self, open_engine: Callable[..., Awaitable[EncoderClient]] = EncoderClient.open) -> None:
        self._open_engine = open_engine
        self._bodies, self._answers = LargeBodies(), LargeBodies()
        self._context: Context
        self._engine: EncoderClient
        self._steps: StepMetrics
        self._texts: Texts
        self._checkpoint: EncoderCheckpoint
        self._planners: Planners
        self._view: EncoderView
        self.task = ""
        self._head: Head

    async def load(self, context: Context) -> None:
        """Load the tokenizer here and the model in the engine, at the same time.

        Raises:
            ModelLoadError, ConfigError: the checkpoint or a setting is wrong.
        """
        config, option = context.config, context.config.option
        self._context = context
        self._steps = StepMetrics(context.metrics)
        check(config)
        for remark in without_effect(config):
            log.warning("%s", remark)
        cache_dir = Path(config.cache_dir) if config.cache_dir else None
        path = await asyncio.to_thread(local_path, option.model_id, option.revision, context.model_dir, cache_dir)
        self.task = task_of(config, path).name
        check_files(config, self.task, path)  # a checkpoint that was just fetched is not checked yet
        head = self._head = head_of(self.task, path)
        self._checkpoint = EncoderCheckpoint.read(path, option)
        self._planners = _PLANNERS[head]
        hooks = Hooks(context.progress, self._steps.step, self._engine_died, context.metrics.engine, context.answers)
        opening = asyncio.ensure_future(self._open_engine(config, path, head, hooks))
        try:
            tokenizer = await asyncio.to_thread(Tokenizer.load, path, trust_remote_code=option.trust_remote_code)
            self._engine = await opening
        except BaseException:
            await _abandon(opening)
            raise
        limits = self._engine.limits
        # A setting of the length of texts overrides the checkpoint's.
        own = None if option.max_model_len is not None else self._checkpoint.max_tokens
        limit = min(most for most in (limits.max_model_len, own, option.max_input_tokens) if most is not None)
        self._texts = Texts(tokenizer, self._checkpoint, limit)
        self.at_once = limits.max_batch_size
        self.capacity = max(self.at_once, min(config.serving.job_queue_size, _CALLS))
        self.example = _EXAMPLES.get(self.task) or {
            "inputs": f"The cat sat on the {tokenizer.special_tokens.get('mask_token', '[MASK]')}."
        }
        self.engine_info = msgspec.structs.replace(limits.info, max_model_len=limit)
        shown = msgspec.structs.replace(limits, info=self.engine_info)
        self._view = EncoderView(config, self.task, self._texts, self._checkpoint, shown, self.capacity)

    async def serve(self, inputs: Input, reply: Reply) -> None:
        """Parse, tokenize, compute; or answer a query.

        Raises:
            PayloadError, ParameterError: the request is not what its dialect takes, or does not fit the model.
            PredictTimeoutError: the request's own deadline has passed.
            GenerationError: the engine failed.
        """
        arrived_s = time.perf_counter()
        api, queries = speaker(inputs.dialect)
        if inputs.operation in queries:
            await self._answer_query(api, inputs, reply)
            return
        deadline = Deadline.of(inputs, arrived_s)
        body = inputs.content.value_at(0) if inputs.content.size() else b""
        parsed = await self._bodies.parse(len(body), api.parse_task, self.task, inputs, self._context.config)
        try:
            async with _until(deadline):
                await self._answer(parsed, inputs, reply)
        except GenerationError:
            self._context.metrics.count("aborted_requests")
            raise

    async def _answer(self, parsed: ParsedTask[Any, Any], inputs: Input, reply: Reply) -> None:
        if not parsed.requests:
            raise PayloadError("expected at least one text")
        make = functools.partial(self._plan, parsed.requests)
        plan = await asyncio.to_thread(make) if is_long(inputs) else make()
        tokens = sum(len(encoder_input.ids) for encoder_input in plan.inputs)
        self._context.metrics.count("prompt_tokens", tokens)
        if inputs.usage is not None:
            inputs.usage.prompt_tokens += tokens
            inputs.usage.send()  # they are in flight now
        predict_timeout = self._context.config.option.predict_timeout
        answer = AnswerWriter(parsed.formatter, reply, 1, progress_s=min(PROGRESS_S, predict_timeout / 4))
        precedence = inputs.precedence
        if parsed.priority is not None:
            precedence = msgspec.structs.replace(precedence, priority=parsed.priority)
        request = EncodeRequest(plan.inputs, http_request_id=inputs.request_id, precedence=precedence)
        outputs = await self._engine.encode(request, on_progress=answer.progressed)
        write = functools.partial(_written, parsed.formatter, plan, outputs)
        answer.finish(await self._answers.run(write) if _takes_long(self._head, plan, outputs) else write())

    def _plan(self, requests: Sequence[Any]) -> Plan:
        works, texts = list[Work](), self._texts.of_request()
        for request in requests:
            planner = self._planners.get(type(request))
            if planner is None:
                name = self._context.config.name
                raise TaskError(f"model {name!r} is for {self.task}, and this request is not")
            works.append(planner(texts, self._checkpoint, request))
            if self._head is Head.SPANS and (excess := budgets.TEXTS.excess(sum(len(work.inputs) for work in works))):
                raise PayloadError(f"{excess}: each piece of a context is one")
        if excess := budgets.FILLINGS.excess(sum(work.fillings for work in works)):
            raise PayloadError(f"{excess}: top_k for each mask")
        _check_size(self._head, [encoder_input for work in works for encoder_input in work.inputs])
        return Plan.of(works)

    async def _answer_query(self, api: Dialect, inputs: Input, reply: Reply) -> None:
        query = functools.partial(api.query, inputs, self._view)
        answer = await asyncio.to_thread(query) if is_long(inputs) else query()
        reply.start(answer.status, answer.headers)
        reply.finish(answer.body)

    async def close(self) -> None:
        """Close the engine, and the threads for large bodies and long answers."""
        self._bodies.close()
        self._answers.close()
        await self._engine.close()

    def _engine_died(self, reason: str) -> None:
        self._steps.report()
        self._context.fail(reason)


def _written(formatter: AnswerFormatter[Any], plan: Plan, outputs: Sequence[Numbers]) -> bytes:
    """The answer. Each result is written when it is made: together they may take a hundred times what is written."""
    pieces = [formatter.push(work.finish([outputs[at] for at in places])) for work, places in plan.steps]
    return b"".join([*pieces, formatter.end()])


def _takes_long(head: Head, plan: Plan, outputs: Sequence[Numbers]) -> bool:
    """Whether the event loop would wait for long while an answer is made of these numbers."""
    used = [outputs[at] for _, places in plan.steps for at in places]
    if head is Head.SPANS:  # every token may begin an answer, and end it
        return sum(len(logits) ** 2 for logits in used) > _NUMBERS_AT_ONCE
    return sum(numbers.size for numbers in used) > _NUMBERS_AT_ONCE


def _check_size(head: Head, inputs: Sequence[EncoderInput]) -> None:
    """Refuse a request for more numbers than a worker can hold, before any of them is computed.

    Labels of tokens and spans are few numbers a token, and have no limit of their own.

    Raises:
        PayloadError: it asks for too many vectors.
    """
    excess = ""
    if head is Head.EMBEDDING:
        tokens = sum(
            len(encoder_input.ids) for encoder_input in inputs if encoder_input.granularity is Granularity.TOKENS
        )
        excess = budgets.TOKEN_VECTORS.excess(tokens)
    elif head is Head.MASKED:
        excess = budgets.WIDE_VECTORS.excess(sum(len(encoder_input.positions) or 1 for encoder_input in inputs))
    if excess:
        raise PayloadError(excess)


@contextlib.asynccontextmanager
async def _until(deadline: Deadline | None) -> Any:
    """End work that takes longer than the request allows.

    Raises:
        PredictTimeoutError: it took longer.
    """
    try:
        async with asyncio.timeout(None if deadline is None else deadline.left_s()):
            yield
    except TimeoutError as exc:
        assert deadline is not None
        raise PredictTimeoutError(f"no answer within the {deadline.timeout_s:g} s that the request allows") from exc


async def _abandon(opening: asyncio.Future[EncoderClient]) -> None:
    """Close the engine, whether it is open or about to be."""
    opening.cancel()
    (engine,) = await asyncio.gather(opening, return_exceptions=True)
    if not isinstance(engine, BaseException):
        await engine.close()
