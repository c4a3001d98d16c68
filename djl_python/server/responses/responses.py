"""What the front end does about a request for a response: finds those before it, and has it kept, or made later.

Runs in its event loop; large bodies are read in threads. The response has its id before a worker has the request, which
gets the items of earlier responses beside the body (`Call.context`): workers keep nothing, and any of them may answer.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
from collections.abc import Awaitable
from dataclasses import replace

from ...config import ServerConfig
from ...core.access.api_key import ApiKey
from ...core.budgets import LARGE_BODY_BYTES
from ...core.errors import ParameterError, PayloadError, ServingError, StorageError
from ...dialects.shared.base import Answer, Dialect, StreamedAnswer
from ...dialects.shared.openai.responses import KeptRequest, all_items, context_of, queued_events, read_kept
from ..dispatch.dispatch import Dispatch
from ..dispatch.request import ModelRequest
from ..keys.callers import Caller
from ..models.pool.flights import Client
from ..models.served_model import ServedModel
from ..spans import Span
from .background import BackgroundResponse
from .events import EventLog
from .keeping import Keeping
from .kept import Kept
from .recording import Recording
from .store import Store

_PREVIOUS = "previous_response_id"


class Responses:
    """The responses of a server.

    Attributes:
        store: where they are kept; None with `responses_max=0`: nowhere.
        running: those that are being made in the background, by id.

    Raises:
        ConfigError: `responses_directory` can't be used.
    """

    def __init__(self, config: ServerConfig, dispatch: Dispatch) -> None:
        self.store = Store(config) if config.responses_max else None
        self.running: dict[str, BackgroundResponse] = {}
        self._dispatch = dispatch
        self._max_bytes = config.max_request_size

    async def close(self) -> None:
        """Write what has not been written yet."""
        if self.store is not None:
            await self.store.close()

    def prepared(self, request: ModelRequest, key: ApiKey) -> ModelRequest | Awaitable[ModelRequest]:
        """The request with what the worker needs of earlier responses; at once unless there are some.

        Raises, and the awaitable does:
            KeptNotFoundError: a response that it goes on with is not kept.
            ParameterError, PayloadError: it can't go on with that.
            StorageError: that can't be read.
        """
        if self.store is None or request.dialect.keeps != request.match.operation:
            return request
        if len(request.body) > LARGE_BODY_BYTES:
            return self._read_large(self.store, request, key)
        return self._with(self.store, request, read_kept(request.body), key)

    def client(self, request: ModelRequest, client: Client, key: ApiKey) -> Client:
        """The client of a request's call: `client`, or one that keeps the response on its way there.

        Raises:
            TooLargeError, OverloadedError: see `Store.begin`.
        """
        keeping = request.keeping
        if not isinstance(keeping, Keeping) or self.store is None:
            return client
        return Recording(client, self.store, keeping.begin(key))

    async def begin(
        self, request: ModelRequest, model: ServedModel, dialect: Dialect, caller: Caller, span: Span
    ) -> Answer | StreamedAnswer:
        """Have a response made in the background; the answer for the client that asks for it: as it is now, or a
        stream of it, which the client may leave.

        Raises:
            PayloadError, ParameterError: the request is wrong.
            TooLargeError, OverloadedError: see `Store.begin` and `Pool.submit`.
            UnavailableError: the model can't answer.
        """
        try:
            return await self._begin(request, model, dialect, caller, span)
        except ServingError as error:
            span.failed(error)
            span.ended(error.status)
            raise

    async def _begin(
        self, request: ModelRequest, model: ServedModel, dialect: Dialect, caller: Caller, span: Span
    ) -> Answer | StreamedAnswer:
        keeping = request.keeping
        assert isinstance(keeping, Keeping) and self.store is not None
        queued = await asyncio.to_thread(dialect.queued, request.body, request.context, model.config)
        kept = keeping.begin(caller.key, queued, "queued")
        kept.events = events = EventLog() if keeping.streams else None
        if events is not None and not self.store.grow(kept, events.add(queued_events(queued))):
            self.store.drop(kept)
            raise self.store.full()
        over = functools.partial(self.running.pop, kept.id, None)
        made = BackgroundResponse(self.store, kept, queued, request, model, caller, span, events, over)
        try:
            made.flight = self._dispatch.submit(request, model, dialect, made, span)
        except ServingError:
            self.store.drop(kept)
            raise
        if not made.ended:
            self.running[kept.id] = made
        return Answer(200, queued) if events is None else events.answer()

    # ------------------------------------------------------------------------------------ inside

    async def _read_large(self, store: Store, request: ModelRequest, key: ApiKey) -> ModelRequest:
        made = self._with(store, request, await asyncio.to_thread(read_kept, request.body), key)
        return made if isinstance(made, ModelRequest) else await made

    def _with(
        self, store: Store, request: ModelRequest, wanted: KeptRequest | None, key: ApiKey
    ) -> ModelRequest | Awaitable[ModelRequest]:
        if wanted is None:
            return request
        previous = wanted.previous_response_id
        if isinstance(previous, str):
            return self._following(store, request, wanted, store.chain(previous, key, _PREVIOUS))
        return _prepared(store, request, wanted, "", b"")

    async def _following(
        self, store: Store, request: ModelRequest, wanted: KeptRequest, chain: list[Kept]
    ) -> ModelRequest:
        last = chain[-1]
        if not last.ended:
            raise ParameterError(
                f"{_PREVIOUS}: response {last.id} is {last.status}, expected one that has ended", _PREVIOUS
            )
        size = sum(kept.content_size for kept in chain)
        if len(request.body) + size > self._max_bytes:
            raise PayloadError(
                f"{_PREVIOUS}: the responses before this one have {size} bytes and this request {len(request.body)}, "
                f"expected at most {self._max_bytes} together (max_request_size)",
                _PREVIOUS,
            )
        try:
            contents = [await store.content(kept, _PREVIOUS) for kept in chain]
        except OSError as exc:
            raise StorageError(f"responses_directory can't be read: {exc.strerror}") from exc
        if size > LARGE_BODY_BYTES:
            items = await asyncio.to_thread(_joined, contents)
        else:
            items = _joined(contents)
        return _prepared(store, request, wanted, last.id, items)


def _joined(contents: list[tuple[bytes, bytes]]) -> bytes:
    return b",".join(filter(None, (all_items(items, response) for items, response in contents)))


def _prepared(store: Store, request: ModelRequest, wanted: KeptRequest, previous: str, items: bytes) -> ModelRequest:
    response_id = f"resp_{secrets.token_hex(16)}"
    context = context_of(response_id, items, kept=wanted.is_kept)
    if not wanted.is_kept:
        return replace(request, context=context)
    keeping = Keeping(
        store,
        response_id,
        wanted.items,
        previous,
        background=wanted.background is True,
        streams=wanted.stream is True,
    )
    return replace(request, context=context, keeping=keeping)
