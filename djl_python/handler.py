"""What handlers are written against: Handler, Context and Reply.

Runs in the worker. A handler answers calls; it does not know sockets, processes or HTTP servers. User code usually
needs none of this: a `model.py` with `handle(inputs)` is wrapped by `djl_python.worker.entry_point`.
"""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .config import ModelConfig
    from .inputs import Input


class Reply(Protocol):
    """One call's way back to its client. Writing after `finish`, or after the client has gone, does nothing."""

    @property
    def started(self) -> bool:
        """Whether the status line has left: from then on an error can only be written into the body."""
        ...

    @property
    def finished(self) -> bool:
        """Whether the body has ended, or the client has gone."""
        ...

    def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Send status and headers, once."""
        ...

    def write(self, data: bytes) -> None:
        """Send a piece of the body. Pieces written in one turn of the event loop share a frame."""
        ...

    def keep_alive(self, data: bytes) -> None:
        """Send a piece of the body that says nothing, so that a quiet connection stays open. It is no progress."""
        ...

    async def drain(self) -> None:
        """Wait while the client has megabytes to read. Without it, who writes faster than is read is cut off."""
        ...

    def finish(self, data: bytes = b"") -> None:
        """Send the last piece."""
        ...


class Metrics(Protocol):
    """Where a handler counts. Names are those of `djl_python.server.metrics`.

    A wrong name or number raises TypeError or ValueError here: a counter can't shrink, and no sum can have infinity or
    NaN in it.
    """

    def count(self, name: str, amount: float = 1) -> None: ...

    def gauge(self, name: str, value: float) -> None: ...

    def observe(self, name: str, *values: float) -> None: ...


@dataclass(frozen=True)
class Context:
    """What a handler is told when it loads.

    `properties` is what DJL's `Input.get_properties()` gives: every key of serving.properties and OPTION_*, without
    the `option.` prefix, as strings. `progress(what, done, total)` shows on the server's start-up lines;
    `done` and `total` are integers.
    `fail(message)` says that the handler can no longer answer: the worker reports it and ends, and a new one starts.
    `await run(owners, function, *args, **kwargs)` calls a synchronous function of the user's, in the one thread that
    the worker has for them. `owners` are the Inputs of the calls it is for: where it does not come back when the time
    of one of them is up, the worker ends, and a new one starts.
    """

    name: str
    version: str
    model_dir: Path
    config: ModelConfig
    metrics: Metrics
    progress: Callable[[str, int, int], None]
    fail: Callable[[str], None]
    run: Callable[..., Awaitable[Any]]
    properties: Mapping[str, str] = field(default_factory=dict)


class Handler(abc.ABC):
    """A model. One instance lives in each worker."""

    #: How many calls the worker should have at once; the front end queues the rest.
    capacity: int = 1

    #: How many queries (`dialects.base.Kind.QUERY`) besides; 0: to this handler they are calls like others.
    queries: int = 0

    @abc.abstractmethod
    async def load(self, context: Context) -> None:
        """Make ready. Raise ModelLoadError (or anything: the traceback is shown) if that can't be done."""

    @abc.abstractmethod
    async def serve(self, inputs: Input, reply: Reply) -> None:
        """Answer one call. Many run at once.

        Cancelled (asyncio.CancelledError) when the client goes or the time is up. What it raises is answered in the
        dialect of the call and costs no other call anything.
        """

    async def close(self) -> None:
        """Let go of what `load` took."""
        return
