"""The interfaces of handlers: Handler, Context, Reply and Metrics.

Runs in the worker. A handler answers calls; it knows nothing of sockets, processes or HTTP servers. User code usually
needs none of this: a `model.py` with `handle(inputs)` is wrapped by `djl_python.worker.entry_point`.
"""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from .config import ModelConfig
from .core.engine_info import EngineInfo
from .core.errors import ParameterError
from .core.metrics import MetricFamily
from .inputs import Input
from .ipc.protocol import AdapterChange, Defaults


class Reply(Protocol):
    """Sends one call's answer to its client. Writing after `finish`, or after the client has gone, does nothing."""

    @property
    def started(self) -> bool:
        """Whether the status line has been sent: from then on an error can only be written into the body."""
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
        """Send a piece of the body that only keeps a quiet connection open; it does not restart predict_timeout."""
        ...

    def progressed(self) -> None:
        """Restart predict_timeout: the answer progresses, though no part of it can be written yet."""
        ...

    async def drain(self) -> None:
        """Wait while the client has megabytes left to read. Without this, a client that reads too slowly is cut off."""
        ...

    def finish(self, data: bytes = b"") -> None:
        """Send the last piece."""
        ...


class Metrics(Protocol):
    """Records a handler's metrics. Names are those of `djl_python.server.metrics.specs`.

    Each method raises TypeError or ValueError for a name that is not text and a value that is not a number; `count` and
    `observe` take finite numbers only, and `count` none below 0.
    """

    def count(self, name: str, amount: float = 1) -> None: ...

    def gauge(self, name: str, value: float) -> None: ...

    def observe(self, name: str, *values: float) -> None: ...

    def engine(self, families: list[MetricFamily]) -> None:
        """Show the metrics that an engine keeps itself, instead of those that it had before."""
        ...


@dataclass(frozen=True)
class Context:
    """What a handler is given when it loads.

    `properties` is what DJL's `Input.get_properties()` returns: every key of serving.properties and OPTION_*, without
    the `option.` prefix, as strings, with `model_dir`, and `device_id`: the index of the worker's GPU, or -1 for a CPU.
    `progress(what, done, total)` shows loading progress in the server's start-up lines; `done` and `total` are
    integers. `fail(message)` says that the handler can no longer answer: the worker reports it and ends, and a new one
    starts. `answers(False)` says that it can't answer for the time being: the worker is not ready, and gets no
    requests, until `answers(True)`. `await run(owners, function, *args, **kwargs)` calls a synchronous user function in
    the worker's only thread for such functions. `owners` are the Inputs of the calls that the function runs for: if it
    has not returned when one of these calls times out, the worker ends, and a new one starts.
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
    answers: Callable[[bool], None] = lambda yes: None


class Handler(abc.ABC):
    """Answers the calls to a model. Each worker has one instance."""

    #: How many calls the worker should have at once; the front end queues the rest.
    capacity: int = 1

    #: How many of these really run at once, where that is fewer: others wait in the worker for a place. 0: all of them.
    at_once: int = 0

    #: How many queries (`dialects.base.Kind.QUERY`) it should have in addition; 0: queries count as calls.
    queries: int = 0

    #: What the model does, by the name of transformers' pipeline, where it reads text without generating any
    #: (`core.text_tasks`); "": it generates text, or does what the user's handler does.
    task: str = ""

    #: What runs the model, where an engine does: shown in the ready line, on pages that describe it, and as a metric.
    engine_info: EngineInfo | None = None

    #: A JSON body that it answers, for the command that is printed when the server is ready; None: nobody knows one.
    example: Mapping[str, Any] | None = None

    #: What requests have that say nothing of a field, for pages that show it; None: nobody knows.
    defaults: Defaults | None = None

    @abc.abstractmethod
    async def load(self, context: Context) -> None:
        """Load the model. Raise ModelLoadError, or anything else (its traceback is shown), if that fails."""

    @abc.abstractmethod
    async def serve(self, inputs: Input, reply: Reply) -> None:
        """Answer one call. Many run concurrently.

        Cancelled (asyncio.CancelledError) when the client disconnects or the call times out. An exception is answered
        in the dialect of the call and affects no other call.
        """

    async def change_adapter(self, change: AdapterChange) -> None:
        """Register, update or unregister an adapter of the model. Handlers without adapters need not override it.

        An adapter that is unregistered still answers the calls that have it.

        Raises:
            ServingError: the change failed, and nothing has changed.
        """
        raise ParameterError(
            "this model's handler has no adapters; option.enable_lora=true serves LoRA adapters of a language model, "
            "and a model.py with register_adapter(inputs) its own"
        )

    async def close(self) -> None:
        """Release what `load` acquired."""
        return
