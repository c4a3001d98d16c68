"""The answer to one call: a formatter writes its parts to a reply until it ends.

Runs in the worker's event loop. Everything from the engine's event to the bytes is one synchronous call, so that a step
of the whole batch is one turn of the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Generic

from djl_python.core.errors import ServingError
from djl_python.core.types import Delta
from djl_python.dialects.shared.base import KEEP_ALIVE_S, AnswerFormatter, Formatter, PartT
from djl_python.handler import Reply
from djl_python.usercode.errors import contained

log = logging.getLogger(__name__)

#: How often an answer that is generated but not written yet restarts predict_timeout, in seconds.
PROGRESS_S: Final = 1.0


class AnswerWriter(Generic[PartT]):
    """The answer to one call.

    Args:
        choices: how many results it has: sequences of text, or for other tasks one for each input.
        keep_alive_s: how long a stream may be quiet, in seconds.
        progress_s: how often `progressed` restarts predict_timeout, in seconds.

    Attributes:
        done: returns whether the answer has ended, successfully or not, so that it takes no more events.
    """

    def __init__(
        self,
        formatter: AnswerFormatter[PartT],
        reply: Reply,
        choices: int,
        *,
        keep_alive_s: float = KEEP_ALIVE_S,
        progress_s: float = PROGRESS_S,
    ) -> None:
        self.streams = formatter.stream
        self._formatter = formatter
        self._reply = reply
        self._open = choices
        self._keep_alive_s = keep_alive_s
        self._loop = asyncio.get_running_loop()
        self._wrote_s = self._progressed_s = self._loop.time()
        self._progress_s = progress_s
        self._done: asyncio.Future[None] = self._loop.create_future()
        self.done: Callable[[], bool] = self._done.done

    def push(self, part: PartT, *, last: bool) -> None:
        """Write a part of an answer, `last` of its choice or not; the last part of the last choice ends the answer."""
        data = self._formatter.push(part)
        if last:
            self._open -= 1
        if not self._open:
            self._end(data)
        elif self.streams:
            self._start()
            if data:
                self._reply.write(data)
                self._wrote_s = self._progressed_s = self._loop.time()

    def finish(self, data: bytes) -> None:
        """Write a whole answer, whose parts and end the formatter has made already."""
        self._start()
        self._reply.finish(data)
        self._done.set_result(None)

    def _end(self, data: bytes = b"") -> None:
        self.finish(data + self._formatter.end())  # before the start: it may add to the headers

    def progressed(self) -> None:
        """Report that the engine works on this answer. A whole answer is written only at its end, and a stream may hold
        text back, but predict_timeout is for answers that make no progress.
        """
        now_s = self._loop.time()
        if now_s >= self._progressed_s + self._progress_s:
            self._progressed_s = now_s
            self._reply.progressed()

    def fail(self, error: BaseException) -> None:
        """Fail the answer: exceptions in the engine client's callbacks fail their own answer only."""
        if self._done.done():  # nothing waits for it any more
            log.error("something failed after its answer had ended", exc_info=error)
        else:  # `wait` raises it, and the worker's service answers with it
            self._done.set_exception(contained(error))

    async def wait(self) -> None:
        """Wait until the answer has ended, keeping a quiet stream alive.

        Raises:
            Exception: the error that failed the answer.
        """
        if not (self.streams and self._formatter.keep_alive):
            await self._done
            return
        self._timer = self._loop.call_later(self._keep_alive_s, self._keep_alive)
        try:
            await self._done
        finally:
            self._timer.cancel()

    def _start(self) -> None:
        if not self._reply.started:
            self._reply.start(200, self._formatter.headers)

    def _keep_alive(self) -> None:
        """Write if the stream was quiet. One timer serves the whole stream; it is not reset for every piece."""
        try:
            if self._wrote_s + self._keep_alive_s <= self._loop.time():
                self._start()
                self._reply.keep_alive(self._formatter.keep_alive)
                self._wrote_s = self._loop.time()
            self._timer = self._loop.call_at(self._wrote_s + self._keep_alive_s, self._keep_alive)
        except BaseException as error:
            self.fail(error)


class TextAnswer(AnswerWriter[Delta]):
    """The answer to one call for text.

    Attributes:
        shows_logprobs: whether it reports its tokens' log-probabilities.
        isolates: whether a failed prompt has its error in its place; else the whole answer fails.
    """

    def __init__(
        self,
        formatter: Formatter,
        reply: Reply,
        choices: int,
        *,
        keep_alive_s: float = KEEP_ALIVE_S,
        progress_s: float = PROGRESS_S,
    ) -> None:
        super().__init__(formatter, reply, choices, keep_alive_s=keep_alive_s, progress_s=progress_s)
        self.shows_logprobs = formatter.shows_logprobs
        self.isolates = formatter.isolates
        self._items = formatter
        self._has_whole_item = False

    def write(self, delta: Delta) -> None:
        """Write a delta of a sequence; the finish of the last sequence ends the answer."""
        self._has_whole_item |= delta.finish is not None
        self.push(delta, last=delta.finish is not None)

    def fail_item(self, index: int, choices: int, error: ServingError) -> None:
        """Put an error in the place of the `index`-th prompt, which has so many choices; `isolates` is true.

        If no prompt has an answer, the error is the answer's.
        """
        self._items.fail_item(index, error)
        self._open -= choices
        if not self._open and self._has_whole_item:
            self._end()
        elif not self._open:
            self.fail(error)
