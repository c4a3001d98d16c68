"""What the sequences of a call write to: one formatter, one reply, and the end of both.

Runs in the worker's event loop. From the engine's event to the bytes everything is one synchronous call, so that a
step of the whole batch is one turn of the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType

from djl_python.dialects.base import KEEP_ALIVE_S, Formatter
from djl_python.handler import Reply
from djl_python.types import Delta
from djl_python.user_errors import contained

log = logging.getLogger(__name__)


class AnswerWriter:
    """The answer to one call.

    It is a context manager without state, for the callbacks of the engine client: what is raised in it fails this
    answer and nothing else.

    Args:
        choices: how many sequences it has.
        keep_alive_s: how long a stream may be quiet.

    Attributes:
        done: tells whether it has ended, well or not: nothing more is wanted.
    """

    def __init__(self, formatter: Formatter, reply: Reply, choices: int, *, keep_alive_s: float = KEEP_ALIVE_S) -> None:
        self.streams = formatter.stream
        self.shows_logprobs = formatter.shows_logprobs
        self._formatter = formatter
        self._reply = reply
        self._open = choices
        self._keep_alive_s = keep_alive_s
        self._loop = asyncio.get_running_loop()
        self._wrote_s = self._loop.time()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self.done: Callable[[], bool] = self._done.done

    def push(self, delta: Delta) -> None:
        """What has come of a sequence; the last one's finish is the answer's."""
        data = self._formatter.push(delta)
        if delta.finish is not None:
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

    async def wait(self) -> None:
        """Until the end, keeping a quiet stream alive.

        Raises:
            Exception: what made it fail.
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
        """One timer for the whole stream: it looks when the last piece left, pieces do not move it."""
        with self:
            if self._wrote_s + self._keep_alive_s <= self._loop.time():
                self._start()
                self._reply.keep_alive(self._formatter.keep_alive)
                self._wrote_s = self._loop.time()
            self._timer = self._loop.call_at(self._wrote_s + self._keep_alive_s, self._keep_alive)

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is None:
            pass
        elif self._done.done():  # nobody waits for it any more
            log.error("something failed after its answer had ended", exc_info=error)
        else:  # the worker's service waits for it, and answers it
            self._done.set_exception(contained(error))
        return True
