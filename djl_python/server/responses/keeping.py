"""The response to one request, from the request on until it is kept. Runs in the front end's event loop."""

from __future__ import annotations

from ...core.access.api_key import ApiKey
from .kept import Kept
from .store import Store


class Keeping:
    """The response to one request, which is to be kept.

    Attributes:
        background: whether the client does not wait for it.
        streams: whether its answer is a stream.
        kept: it; None: nothing is kept of it yet.
    """

    def __init__(
        self, store: Store, response_id: str, items: bytes, previous: str, *, background: bool, streams: bool
    ) -> None:
        self.background = background
        self.streams = streams
        self.kept: Kept | None = None
        self._store = store
        self._id, self._items, self._previous = response_id, items, previous

    def begin(self, key: ApiKey, response: bytes = b"", status: str = "") -> Kept:
        """Make room for it; see `Store.begin`."""
        self.kept = self._store.begin(
            self._id, key, self._items, previous=self._previous, response=response, status=status
        )
        self._items = b""
        return self.kept

    def end(self) -> None:
        """Its client has gone, or has all of it: a response that is not complete is kept no longer."""
        if self.kept is not None and not (self.background or self.kept.ended):
            self._store.drop(self.kept)
