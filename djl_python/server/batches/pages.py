"""Answers the routes of files and batches. Runs in the front end's event loop.

Errors name the path of the field; the exchange writes them as the route's dialect has them.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from ...config import ServerConfig
from ...core.access.api_key import ApiKey
from ...core.errors import ParameterError, RouteError, ServingError, StorageError, UnavailableError
from ...dialects.shared import batches as api
from ...dialects.shared.base import Answer, Kind
from ...dialects.shared.request_body import object_of
from ...dialects.shared.typed_body import read_body
from ...formats.json_framing import encode_json
from ..http.file_answers import FileAnswer
from ..http.requests.request_head import RequestHead
from ..keys.callers import Caller
from ..metrics.metrics import Metrics
from ..routes import RouteTable
from ..spans import NO_SPANS, Spans
from .calls import Calls
from .fields import check_known, read_texts
from .jobs import Jobs
from .measures import measure
from .store import Store
from .uploads import Upload

T = TypeVar("T", bound=msgspec.Struct)
U = TypeVar("U")

_OFF: Final = "there are no files and batches here: batch_directory, a setting of the server, says where to keep them"

Page = Callable[[Mapping[str, str], RequestHead, bytes, Caller], "Answer | Awaitable[Answer | FileAnswer]"]


class Batches:
    """The files and batches of a server; without a `batch_directory`, their routes answer that there are none.

    Attributes:
        store: where they are kept, if there is a `batch_directory`.

    Raises:
        ConfigError: the directory can't be used.
    """

    def __init__(
        self, config: ServerConfig, routes: RouteTable, calls: Calls, metrics: Metrics, spans: Spans = NO_SPANS
    ) -> None:
        self._pages: Mapping[str, Page] = {}
        self._closed = False
        self._max_file_bytes = config.batch_max_file_bytes
        self.store: Store | None = None
        self._jobs: Jobs | None = None
        if config.batch_directory:
            self.store = Store(config)
            endpoints = _endpoints(routes)
            self._jobs = Jobs(
                self.store,
                calls.send,
                endpoints,
                max_running=config.batch_max_running,
                max_requests=config.batch_max_requests,
            )
            self._pages = _Pages(self.store, self._jobs, endpoints, spans).pages
            measure(self.store, metrics)

    def start(self) -> None:
        """Go on with what an earlier server began."""
        if self._jobs is not None:
            self._jobs.start()

    async def close(self) -> None:
        """Stop, and answer no more; every batch can go on later."""
        self._closed = True
        if self._jobs is not None and self.store is not None:
            await self._jobs.close()
            await self.store.close()

    def receiver(self, head: RequestHead, key: ApiKey) -> Upload:
        """The receiver of a file that a request with this key uploads.

        Raises:
            RouteError: there is no `batch_directory`.
            UnavailableError: the server is shutting down.
            MediaTypeError, PayloadError, TooLargeError: see `Upload`.
        """
        return Upload(self._open(), head, self._max_file_bytes, key.name)

    def answer(
        self, operation: str, values: Mapping[str, str], head: RequestHead, body: bytes, caller: Caller
    ) -> Answer | Awaitable[Answer | FileAnswer]:
        """The page of an operation of `dialects.shared.batches` other than uploads, as the caller's key sees it.

        Raises:
            RouteError: there is no `batch_directory`.
            UnavailableError: the server is shutting down.
        """
        self._open()
        return self._pages[operation](values, head, body, caller)

    def _open(self) -> Store:
        if self.store is None:
            raise RouteError(_OFF)
        if self._closed:
            raise UnavailableError("the server is shutting down")
        return self.store


def _endpoints(routes: RouteTable) -> Sequence[str]:
    """Where the requests of a batch may go: the routes that generate, of the APIs that have batches."""
    have_batches = {dialect for route, dialect in routes.rows if route.operation == api.CREATE_BATCH}
    generating = (route for route, dialect in routes.rows if dialect in have_batches and route.kind is Kind.GENERATE)
    return [route.path for route in generating if "{" not in route.path]


class _Pages:
    """What answers, by operation."""

    def __init__(self, store: Store, jobs: Jobs, endpoints: Sequence[str], spans: Spans) -> None:
        self._store = store
        self._spans = spans
        self._jobs = jobs
        self._endpoints = endpoints
        self.pages: Mapping[str, Page] = {
            api.LIST_FILES: self._list_files,
            api.FILE: lambda values, head, body, caller: _json(store.file(values["file_id"], caller.key)),
            api.DELETE_FILE: self._delete,
            api.FILE_CONTENT: self._content,
            api.CREATE_BATCH: self._create,
            api.LIST_BATCHES: self._list_batches,
            api.BATCH: lambda values, head, body, caller: _json(store.state(values["batch_id"], caller.key).batch),
            api.CANCEL_BATCH: self._cancel,
        }

    # ------------------------------------------------------------------------------------ files

    def _list_files(self, values: Mapping[str, str], head: RequestHead, body: bytes, caller: Caller) -> Answer:
        query = _query(api.FileQuery, head)
        files = [file for file in self._store.files(caller.key) if query.purpose in ("", file.purpose)]
        if query.order == "desc":
            files.reverse()
        page, more = _page(files, query.after, query.limit)
        return _json(api.FileList(data=page, has_more=more, **_ends(page)))

    async def _delete(self, values: Mapping[str, str], head: RequestHead, body: bytes, caller: Caller) -> Answer:
        file_id = self._store.file(values["file_id"], caller.key).id
        if (batch := self._store.needed.get(file_id)) is not None:
            raise ParameterError(f"file_id: batch {batch}, which has not ended, reads this file", "file_id")
        await _on_disk(self._store.delete(file_id))
        return _json(api.FileDeleted(id=file_id))

    async def _content(self, values: Mapping[str, str], head: RequestHead, body: bytes, caller: Caller) -> FileAnswer:
        return FileAnswer(self._store.path(self._store.file(values["file_id"], caller.key).id))

    # ------------------------------------------------------------------------------------ batches

    async def _create(self, values: Mapping[str, str], head: RequestHead, body: bytes, caller: Caller) -> Answer:
        given = object_of(body)
        check_known(given, api.BatchRequest)
        wanted = read_body(given, api.BatchRequest)
        if wanted.endpoint not in self._endpoints:
            raise ParameterError(
                f"endpoint: expected {' or '.join(self._endpoints)}, got {wanted.endpoint[:200]!r}", "endpoint"
            )
        try:
            file = self._store.file(wanted.input_file_id, caller.key)
        except ServingError as exc:
            raise ParameterError(f"input_file_id: {exc.message}", "input_file_id") from exc
        if file.purpose != "batch":
            raise ParameterError('input_file_id: expected a file whose purpose is "batch"', "input_file_id")
        trace = functools.partial(self._spans.batch_created, head.headers)
        return _json(await _on_disk(self._jobs.create(wanted, trace, caller.key, caller.precedence)))

    def _list_batches(self, values: Mapping[str, str], head: RequestHead, body: bytes, caller: Caller) -> Answer:
        query = _query(api.BatchQuery, head)
        newest = [state.batch for state in reversed(self._store.states(caller.key))]
        page, more = _page(newest, query.after, query.limit)
        return _json(api.BatchList(data=page, has_more=more, **_ends(page)))

    async def _cancel(self, values: Mapping[str, str], head: RequestHead, body: bytes, caller: Caller) -> Answer:
        batch_id = self._store.state(values["batch_id"], caller.key).batch.id
        return _json(await _on_disk(self._jobs.cancel(batch_id)))


# ------------------------------------------------------------------------------------------------ inside


def _query(into: type[T], head: RequestHead) -> T:
    return read_texts(dict(head.query), into)


async def _on_disk(work: Awaitable[U]) -> U:
    """What comes of work that writes.

    Raises:
        StorageError: it can't write.
    """
    try:
        return await work
    except OSError as exc:
        raise StorageError.of(exc) from exc


def _page(entries: list[Any], after: str, limit: int) -> tuple[list[Any], bool]:
    """The page behind an id, and whether there are more."""
    ids = [entry.id for entry in entries]
    if after and after not in ids:
        raise ParameterError(f"after: there is nothing with the id {after[:200]!r}", "after")
    start = ids.index(after) + 1 if after else 0
    return entries[start : start + limit], start + limit < len(entries)


def _ends(page: Sequence[Any]) -> dict[str, Any]:
    return {"first_id": page[0].id, "last_id": page[-1].id} if page else {}


def _json(value: object) -> Answer:
    return Answer(200, encode_json(value))
