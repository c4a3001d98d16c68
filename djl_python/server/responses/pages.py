"""Answers the routes about kept responses. Runs in the front end's event loop."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from ...core.access.api_key import ApiKey
from ...core.budgets import LARGE_BODY_BYTES
from ...core.errors import ParameterError, RouteError, StorageError
from ...core.names import did_you_mean
from ...dialects.shared.base import Answer, StreamedAnswer
from ...dialects.shared.openai import responses as api
from ...dialects.shared.typed_body import read_body
from ...formats.json_framing import encode_json
from .kept import Kept
from .responses import Responses
from .store import EVENTS_KEPT_S, Store

T = TypeVar("T", bound=msgspec.Struct)
#: The query of a request, in pairs.
Query = Iterable[tuple[str, str]]
Page = Callable[[Store, Kept, Query], StreamedAnswer | Awaitable[Answer]]

_OFF: Final = "no responses are kept here: responses_max, a setting of the server, is 0"
_ID: Final = "response_id"
_NO_EVENTS: Final = (
    "stream: only of a response that was made with background=true and stream=true, until "
    f"{EVENTS_KEPT_S / 60:.0f} minutes after its end, and not after a restart of the server"
)
_IN_BRACKETS: Final = re.compile(r"\[\d*\]$")


class ResponsePages:
    """The pages, by operation."""

    def __init__(self, responses: Responses) -> None:
        self._responses = responses
        self.pages: Mapping[str, Page] = {
            api.RETRIEVE: self._retrieve,
            api.DELETE: self._delete,
            api.CANCEL: self._cancel,
            api.INPUT_ITEMS: self._input_items,
        }

    def answer(
        self, operation: str, values: Mapping[str, str], query: Query, key: ApiKey
    ) -> StreamedAnswer | Awaitable[Answer]:
        """The page, as this key sees it.

        Raises:
            RouteError: no responses are kept.
            KeptNotFoundError: none of this id is.
            ParameterError: the query is wrong.
        """
        if (store := self._responses.store) is None:
            raise RouteError(_OFF)
        return self.pages[operation](store, store.find(values[_ID], key), query)

    def _retrieve(self, store: Store, kept: Kept, query: Query) -> StreamedAnswer | Awaitable[Answer]:
        wanted = _read(api.ResponseQuery, query)
        api.check_query(wanted)
        if not wanted.stream:
            return _whole(store, kept)
        if kept.events is None:
            raise ParameterError(_NO_EVENTS, "stream")
        return kept.events.answer(-1 if wanted.starting_after is None else wanted.starting_after)

    async def _delete(self, store: Store, kept: Kept, query: Query) -> Answer:
        if (running := self._responses.running.get(kept.id)) is not None and not kept.ended:
            running.cancel()
        store.drop(kept)
        return Answer(200, encode_json(api.ResponseDeleted(id=kept.id)))

    async def _cancel(self, store: Store, kept: Kept, query: Query) -> Answer:
        if not kept.background:
            raise ParameterError(f"{_ID}: only a response with background=true can be cancelled", _ID)
        running = self._responses.running.get(kept.id)
        if kept.ended or running is None:
            return Answer(200, (await _content(store, kept))[1])
        return Answer(200, running.cancel())

    async def _input_items(self, store: Store, kept: Kept, query: Query) -> Answer:
        wanted = _read(api.InputItemsQuery, query)
        items, _ = await _content(store, kept)
        if len(items) > LARGE_BODY_BYTES:
            return Answer(200, await asyncio.to_thread(_page, items, kept.id, wanted))
        return Answer(200, _page(items, kept.id, wanted))


async def _whole(store: Store, kept: Kept) -> Answer:
    return Answer(200, (await _content(store, kept))[1])


async def _content(store: Store, kept: Kept) -> tuple[bytes, bytes]:
    try:
        return await store.content(kept)
    except OSError as exc:
        raise StorageError(f"responses_directory can't be read: {exc.strerror}") from exc


def _page(items: bytes, response_id: str, query: api.InputItemsQuery) -> bytes:
    shown = api.shown_items(items, response_id)
    if query.order == "desc":
        shown.reverse()
    ids = [item["id"] for item in shown]
    if query.after and query.after not in ids:
        raise ParameterError(f"after: there is no item with the id {query.after[:200]!r}", "after")
    start = ids.index(query.after) + 1 if query.after else 0
    page = shown[start : start + query.limit]
    ends: dict[str, Any] = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {}
    return encode_json(api.InputItemList(data=page, has_more=start + query.limit < len(shown), **ends))


def _read(into: type[T], query: Query) -> T:
    """The query; clients write a list as include[]=..., or include[0]=..."""
    given = {_IN_BRACKETS.sub("", name): value for name, value in query}
    for name in given:
        if name not in into.__struct_fields__:
            raise ParameterError(
                f"{name}: there is no such parameter{did_you_mean(name, into.__struct_fields__)}", name
            )
    return read_body(given, into, strict=False)
