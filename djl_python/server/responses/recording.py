"""Keeps a response while its client gets it. Runs in the front end's event loop."""

from __future__ import annotations

from ...core.errors import ServingError
from ...dialects.shared.openai.responses import response_in, status_of
from ...formats.forms import media_type
from ...formats.json_framing import SSE
from ...ipc.protocol import Trace, UsageReport
from ..models.pool.flights import Client
from .kept import Kept
from .store import Store

_OK = 200


class Recording:
    """What comes of one call, for its client and for the store. Is the pool's `Client`.

    Args:
        client: the one that gets the answer.
        kept: where the response goes once it is complete.
    """

    def __init__(self, client: Client, store: Store, kept: Kept) -> None:
        self._client = client
        self._store = store
        self._kept = kept
        self._status = 0
        self._streams = False
        self._pieces: list[bytes] = []  # the whole answer; of a stream, the last event

    def sent(self) -> None:
        """A worker has the call."""
        self._client.sent()

    def start(self, status: int, headers: dict[str, str]) -> None:
        """The answer begins."""
        lowered = {name.lower(): value for name, value in headers.items()}
        self._status, self._streams = status, media_type(lowered.get("content-type", "")) == SSE
        self._client.start(status, headers)

    def body(self, data: bytes, last: bool) -> None:
        """Pass on a piece. A response can be found as soon as its client knows that it is complete."""
        self._pieces.append(data)
        if self._streams:
            self._pieces = [_last_event(b"".join(self._pieces))]
        if last:
            self._record()
        self._client.body(data, last)

    def noted(self, notes: Trace) -> None:
        """Pass it on."""
        self._client.noted(notes)

    def used(self, usage: UsageReport) -> None:
        """Pass it on."""
        self._client.used(usage)

    def break_off(self) -> None:
        """An incomplete answer is not kept."""
        self._store.drop(self._kept)
        self._client.break_off()

    def fail(self, error: ServingError) -> None:
        """An answer without its end is not kept."""
        self._store.drop(self._kept)
        self._client.fail(error)

    def _record(self) -> None:
        answer, self._pieces = b"".join(self._pieces), []
        response = response_in(answer) if self._streams else answer
        status = status_of(response) if self._status == _OK else ""
        if status:
            self._store.update(self._kept, response, status)
        else:
            self._store.drop(self._kept)


def _last_event(data: bytes) -> bytes:
    """The event with which a stream's bytes so far end, complete or not."""
    return data[data.rfind(b"\n\n", 0, max(0, len(data) - 2)) + 2 :] if b"\n\n" in data[:-2] else data
