"""Dynamic batching: calls that arrive close together become one call of the handler.

Runs in the worker's event loop. `DynamicBatcher` gathers items and distributes answers, whatever their types; `join`
and `split` implement DJL's form of a batch: one Input with keys `batch_000.data`, one Output with an entry per item.

An error belongs to one call. When the batch function raises, its items are run again one by one, so that only the item
at fault fails. The handler then sees items twice: a handler whose calls have side effects should not be batched. When
the batch function returns, nothing is run again, even if every answer is an error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .batch_keys import batch_key, item_of
from .errors import HandlerError
from .inputs import BATCH_SIZE, Input
from .outputs import Output
from .user_errors import contained, one_line

T = TypeVar("T")
R = TypeVar("R")

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Waiting(Generic[T, R]):
    """A call that has not been answered; `at_s` is its arrival on the event loop's clock, in seconds."""

    item: T
    answer: asyncio.Future[R]
    at_s: float

    def settle(self, answer: R | BaseException) -> None:
        """Hand over the answer, unless the caller has gone."""
        if self.answer.done():
            return
        if isinstance(answer, BaseException):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)


class DynamicBatcher(Generic[T, R]):
    """Gathers up to `batch_size` items, waiting at most `max_batch_delay_ms` after the first; one batch runs at a time.

    `run(items)` returns an answer for each item, in order; an answer that is an exception is raised to its caller.
    If `run` raises, the items are run again one by one; what it raises for one item is raised to that item's caller.
    """

    def __init__(
        self,
        run: Callable[[Sequence[T]], Coroutine[Any, Any, Sequence[R | Exception]]],
        batch_size: int,
        max_batch_delay_ms: int,
        discard: Callable[[R | Exception], None] = lambda _: None,
    ) -> None:
        """`discard` is called with each answer whose caller has gone."""
        self._run = run
        self._discard = discard
        self._batch_size = batch_size
        self._delay_s = max_batch_delay_ms / 1000
        self._waiting: list[_Waiting[T, R]] = []
        self._arrived = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None

    async def submit(self, item: T) -> R:
        """The answer to `item`. Cancelling this call removes the item, unless its batch has begun."""
        loop = asyncio.get_running_loop()
        waiting: _Waiting[T, R] = _Waiting(item, loop.create_future(), loop.time())
        self._waiting.append(waiting)
        self._arrived.set()
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        try:
            return await waiting.answer
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    async def close(self) -> None:
        """Stop, and cancel the callers that wait."""
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.wait((self._worker,))
        for waiting in self._waiting:
            waiting.answer.cancel()

    async def _work(self) -> None:
        try:
            while self._waiting:
                await self._gather()
                batch = self._waiting[: self._batch_size]
                del self._waiting[: self._batch_size]
                if batch:
                    try:
                        await self._answer(batch)
                    finally:  # no caller is left without an answer, even when this task is cancelled
                        for waiting in batch:
                            waiting.answer.cancel()
        finally:
            self._worker = None

    async def _gather(self) -> None:
        """Wait until a batch is full, its first item has waited long enough, or no item is waiting."""
        while self._waiting and len(self._waiting) < self._batch_size:
            self._arrived.clear()
            try:
                async with asyncio.timeout_at(self._waiting[0].at_s + self._delay_s):
                    await self._arrived.wait()
            except TimeoutError:
                return

    async def _answer(self, batch: Sequence[_Waiting[T, R]]) -> None:
        # As a task, so that its exception can be inspected.
        run = asyncio.ensure_future(self._run([waiting.item for waiting in batch]))
        try:
            await asyncio.wait((run,))
        finally:
            run.cancel()
        failure = contained(asyncio.CancelledError()) if run.cancelled() else run.exception()
        if failure is None:
            for waiting, answer in zip(batch, run.result(), strict=True):
                if waiting.answer.done():
                    self._discard(answer)
                waiting.settle(answer)
        elif len(batch) == 1:
            batch[0].settle(failure)
        else:
            log.warning(
                "a batch of %d failed (%s): its calls are run one by one",
                *(len(batch), one_line(failure)),
            )
            for waiting in batch:
                if not waiting.answer.done():
                    await self._answer([waiting])


# ------------------------------------------------------------------------------------------------ DJL's form


def join(inputs: Sequence[Input]) -> Input:
    """One Input for several calls: `batch_size`, and every property and content entry under `batch_000.<key>`."""
    first = inputs[0]
    batch = Input()
    batch.function_name = first.function_name
    batch.operation, batch.dialect, batch.path = first.operation, first.dialect, first.path
    batch.model_name, batch.model_version = first.model_name, first.model_version
    batch.request_id = ", ".join(item.request_id for item in inputs)
    batch.properties[BATCH_SIZE] = str(len(inputs))
    batch.bodies = tuple(item.body for item in inputs)
    for index, item in enumerate(inputs):
        for key, value in item.properties.items():
            batch.properties[batch_key(key, index)] = value
        for content_key, data in item.content:
            batch.content.add(batch_key(content_key or "data", index), data)
    return batch


def is_split(output: Output) -> bool:
    """Whether any key of the output's entries says which item of a batch the entry answers."""
    return any(item_of(key) for key, _ in output.content)


def split(output: Output, size: int) -> list[Output]:
    """Split the answer to a batch into one Output per item, in order.

    An entry is matched by its `batch_000.` key, or by its position if it has none. A property with such a key applies
    to that item ("batch_000.code" is its status), any other to every item.

    Raises:
        HandlerError: a stream, not exactly one entry per item (says what to do), or a status that is no number.
    """
    if output.stream_content is not None:
        raise HandlerError("a batch cannot be streamed: set batch_size=1, or add an entry for each item")
    entries = output.content.size()
    if entries != size:
        raise HandlerError(
            f"Batch output size mismatch, expected: {size}, actual: {entries}. With batch_size > 1 the handler gets "
            "several requests in one Input: take inputs.get_batches(), and add one entry for each with "
            "outputs.add(value, batch_index=i); or set batch_size=1"
        )
    answers = [Output(output.code, output.message) for _ in range(size)]
    for position, (key, value) in enumerate(output.content):
        index, own_key = item_of(key) or (position, key)
        if index >= size:
            raise HandlerError(f"Unexpected batch output key: {key}, the batch has {size} items")
        if not answers[index].content.is_empty():
            raise HandlerError(f"Batch output size mismatch: two entries for item {index} of a batch of {size}")
        answers[index].content.add(own_key, value)
        answers[index].content_type = output.item_content_types.get(index, output.content_type)
    for key, value in output.properties.items():
        if found := item_of(key):
            if found[0] < size:
                _set_property(answers[found[0]], found[1].lower(), value)
        else:
            for answer in answers:
                answer.properties.setdefault(key.lower(), value)
    return answers


def _set_property(answer: Output, key: str, value: str) -> None:
    if key != "code":
        answer.properties[key] = value
    elif value.isdecimal():
        answer.code = int(value)
    else:
        raise HandlerError(f"the code of a batch's item is {value!r}, expected an HTTP status")
