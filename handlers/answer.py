"""The answer to one call: its parts are written to it, through one formatter and one reply, until it ends.

Runs in the worker's event loop. Everything from the engine's event to the bytes is one synchronous call, so that a step
of the whole batch is one turn of the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Generic

from djl_python.core.types import Delta
from djl_python.dialects.shared.base import KEEP_ALIVE_S, AnswerFormatter, Formatter, PartT
from djl_python.handler import Reply
from djl_python.usercode.errors import contained

log = logging.getLogger(__name__)


class AnswerWriter(Generic[PartT]):
    """The answer to one call.

    Args:
        choices: how many answers it consists of: sequences of text, or of another task one for each input.
        keep_alive_s: how long a stream may be quiet, in seconds.

    Attributes:
        done: returns whether the answer has ended, successfully or not, so that it takes no more events.
    """

    def __init__(
        self, formatter: AnswerFormatter[PartT], reply: Reply, choices: int, *, keep_alive_s: float = KEEP_ALIVE_S
    ) -> None:
        self.streams = formatter.stream
        self._formatter = formatter
        self._reply = reply
        self._open = choices
        self._keep_alive_s = keep_alive_s
        self._loop = asyncio.get_running_loop()
        self._wrote_s = self._loop.time()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self.done: Callable[[], bool] = self._done.done

    def push(self, part: PartT, *, last: bool) -> None:
        """Write a part of an answer, `last` of its choice or not; the last part of the last choice ends the answer."""
        data = self._formatter.push(part)
        if last:
            self._open -= 1
        if not self._open:
            data += self._formatter.end()  # before the start: it may add to the headers
            self._start()
            self._reply.finish(data)
            self._done.set_result(None)
        elif self.streams:
            self._start()
            if data:
                self._reply.write(data)
                self._wrote_s = self._loop.time()

    def fail(self, error: BaseException) -> None:
        """Make the answer fail: what the engine client's callbacks raise fails their answer and nothing else."""
        if self._done.done():  # nothing waits for it any more
            log.error("something failed after its answer had ended", exc_info=error)
        else:  # `wait` raises it, and the worker's service answers with it
            self._done.set_exception(contained(error))

    async def wait(self) -> None:
        """Wait until the answer has ended, keeping a quiet stream alive.

        Raises:
            Exception: what made the answer fail.
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
    """

    def __init__(self, formatter: Formatter, reply: Reply, choices: int, *, keep_alive_s: float = KEEP_ALIVE_S) -> None:
        super().__init__(formatter, reply, choices, keep_alive_s=keep_alive_s)
        self.shows_logprobs = formatter.shows_logprobs

    def write(self, delta: Delta) -> None:
        """Write a delta of a sequence; the finish of the last sequence ends the answer."""
        self.push(delta, last=delta.finish is not None)
