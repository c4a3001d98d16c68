"""The spans of requests, as the code that answers requests sees them. Without traces they do nothing.

Runs in the front end's event loop. `tracing` has those that are recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from ..config import ModelConfig
from ..core.errors import ServingError
from ..ipc.protocol import Trace


class RequestHead(Protocol):
    """The part of a request's head that spans read; names of headers are in lower case."""

    @property
    def method(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def headers(self) -> Mapping[str, str]: ...


@dataclass(frozen=True)
class Batched:
    """A batch's request. `created` is what `Spans.batch_created` gave for the batch."""

    url: str
    request_id: str
    batch_id: str
    custom_id: str
    created: Mapping[str, str]


class Span:
    """The span of one request, which ends once. This one is recorded nowhere.

    Attributes:
        log_extra: the trace's id, for log records.
        recorded: whether it keeps events.
        call_headers: the context to pass on with the request.
        answer_headers: of the answer.
    """

    log_extra: Mapping[str, str] = {}
    recorded: bool = False
    call_headers: Mapping[str, str] = {}
    answer_headers: Mapping[str, str] = {}

    def admitted(self, config: ModelConfig) -> None:
        """It is admitted, and waits for a worker."""

    def dispatched(self) -> None:
        """A worker has it."""

    def noted(self, notes: Trace) -> None:
        """The worker has noted something."""

    def failed(self, error: ServingError) -> None:
        """The front end answers it with an error."""

    def ended(self, status: int, abandoned: str = "") -> None:
        """The answer has ended: nothing more is added.

        Args:
            abandoned: why, where the client has not taken all of it: "disconnect" or "slow_reader"; of a batch's
                request "cancelled".
        """


NO_SPAN: Final = Span()


class Spans:
    """Makes the spans of a server's requests. These are recorded nowhere."""

    def begin(self, head: RequestHead, route: str, request_id: str, received_s: float) -> Span:
        """The span of a request, whose headers may have its parent's context.

        Args:
            route: the pattern of its path.
            received_s: when it was complete, by time.monotonic.
        """
        return NO_SPAN

    def batch_created(self, headers: Mapping[str, str], batch_id: str) -> Mapping[str, str]:
        """Record that a request, whose headers may have its parent's context, has created a batch.

        Returns:
            The context to which spans of the batch's requests link, as headers. It can be kept on a disk.
        """
        return {}

    def begin_batched(self, request: Batched) -> Span:
        """The span of a batch's request, which now waits for a worker."""
        return NO_SPAN

    async def close(self) -> None:
        """Send the remaining spans; no span begins after that."""


NO_SPANS: Final = Spans()
