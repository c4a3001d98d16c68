"""Submits a request to a pool: finds its model, loads it on demand, and makes the worker's call.

Runs in the front end's event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import TypeVar

from ...core.budgets import LARGE_BODY_BYTES
from ...core.errors import ForbiddenError, ServingError
from ...dialects.shared.base import Answer, Dialect
from ...formats.json_fields import UnclearError, find_field
from ...formats.json_framing import encode_json
from ...ipc.protocol import Call
from ..models.pool.flights import Client, Flight, next_id
from ..models.residence.residence import Residence
from ..models.routing.trail import NO_TRAIL
from ..models.served_model import ServedModel
from ..models.table import ModelTable
from ..spans import Span
from .beginnings import trail_in
from .hold import Hold
from .lazy_models import LazyModels
from .request import ModelRequest
from .turn import precedence_of

T = TypeVar("T")


class Dispatch:
    """The models of a server, for requests.

    Args:
        lazy: loads models that nobody has registered; None: nothing does.
        may_load: whether models may be loaded now.
        residence: loads registered models that are not; None: all are.
    """

    def __init__(
        self,
        dialects: Mapping[str, Dialect],
        models: ModelTable,
        lazy: LazyModels | None = None,
        may_load: Callable[[], bool] = lambda: True,
        residence: Residence | None = None,
    ) -> None:
        self._dialects = dialects
        self._models = models
        self._lazy = lazy
        self._may_load = may_load
        self._residence = residence

    def model_of(self, request: ModelRequest, hold: Hold) -> ServedModel | Awaitable[ServedModel]:
        """The model that a request means: at once, unless its body is large, or the model has to be loaded.

        Args:
            hold: to be closed when the request has been submitted, or is not going to be.

        Raises, and the awaitable does:
            ModelNotFoundError: there is none, or the sender may not use it.
            ModelNotNamedError: several are loaded, and none is the default.
            PayloadError, ParameterError: the body is to name it, and can't be read.
            UnavailableError: it does not load, or too many are loaded already.
        """
        name, dialect = request.match.model, request.dialect
        names = not name and (self._models.bodies_choose or self._lazy is not None)
        if len(request.body) > LARGE_BODY_BYTES and (dialect.keep_alive_field or (names and dialect.model_field)):
            return self._model_of_large(request, hold, names=names)
        if names:
            name = self._in_body(dialect.model_of(request.body) or "")
        kept_s = dialect.keep_alive_s(request.body) if dialect.keep_alive_field else None
        return self._kept(self._named(request, hold, name), hold, kept_s if request.manages else None)

    def unloading(self, request: ModelRequest) -> tuple[ServedModel, Answer] | None:
        """Have a model unloaded once it is idle, if that is all that a request wants: its model, and its answer.

        Raises as `model_of`, and:
            ForbiddenError: the sender may not manage models: others would wait until it is loaded again.
        """
        answer = request.dialect.unloading(request.match.operation, request.body)
        if answer is None or self._residence is None:
            return None
        may_use = request.sender.may_use
        named = request.dialect.model_of(request.body) or "" if self._models.several else ""
        model = self._models.meant(named, may_use=may_use)
        if not request.manages:
            raise ForbiddenError("keep_alive: unloading a model is for those who may manage models")
        self._residence.keep(model, 0.0)
        return model, answer

    def answering(self, request: ModelRequest, model: ServedModel) -> Dialect:
        """The dialect that answers a request for this model, where APIs share the path."""
        operation = request.match.operation
        return self._dialects[request.dialect.answering_dialect(operation, model.config, model.info.task, request.body)]

    def submit(self, request: ModelRequest, model: ServedModel, dialect: Dialect, client: Client, span: Span) -> Flight:
        """Have the model answer; `client` hears of the answer, see `Pool.submit` and `Pool.submit_batch`.

        Args:
            dialect: the one that answers, from `answering`, which may read the body.

        Raises:
            UnavailableError: the model is loading or has failed.
            OverloadedError: every worker is busy and the queue is full, or longer than the request may wait.
            RateLimitError: its sender has too many tokens in flight.
            ParameterError: a header about its turn is wrong.
        """
        match = request.match
        precedence = precedence_of(
            request.sender.precedence, request.headers, request.body, background=request.background
        )
        call = Call(
            id=next_id(),
            dialect=dialect.name,
            operation=match.operation,
            method=request.method,
            path=request.path,
            query=request.query,
            headers={**request.headers, **span.call_headers, "x-request-id": request.request_id},
            body=request.body,
            waited_s=0.0 if request.background else time.monotonic() - request.begun_s,
            traced=span.recorded,
            precedence=precedence,
            context=request.context,
        )
        sender, query, pool, trail = request.sender, match.is_query, model.pool, NO_TRAIL
        if pool.workers.reads_trails and not query:
            trail = trail_in(request.headers, request.body, request.context, prompts=pool.workers.shares_prefixes)
        call = sender.begin(call, query=query)
        if request.background:
            return pool.submit_batch(call, client, trail)
        try:
            return pool.submit(
                call,
                client,
                query=query,
                begins_within_s=_left_s(request),
                trail=trail,
                on_end=sender.ended,
            )
        except ServingError:
            sender.ended()
            raise

    # ------------------------------------------------------------------------------------ inside

    async def _model_of_large(self, request: ModelRequest, hold: Hold, *, names: bool) -> ServedModel:
        """Other requests have their turn while the body is searched.

        Args:
            names: whether it is to name the model.
        """
        name, dialect, kept_s = request.match.model, request.dialect, None
        if names:
            name = self._in_body(dialect.model_of(await _field_alone(request.body, dialect.model_field)) or "")
        if dialect.keep_alive_field:
            kept_s = dialect.keep_alive_s(await _field_alone(request.body, dialect.keep_alive_field))
        loaded = self._kept(self._named(request, hold, name), hold, kept_s if request.manages else None)
        return loaded if isinstance(loaded, ServedModel) else await loaded

    def _in_body(self, named: str) -> str:
        """What counts of a name in a body: where all models have the same one, any but an adapter's stands for it."""
        return named if self._models.several or self._lazy is not None or self._models.adapted(named) else ""

    def _kept(
        self, model: ServedModel | Awaitable[ServedModel], hold: Hold, kept_s: float | None
    ) -> ServedModel | Awaitable[ServedModel]:
        """The model, which stays loaded as long as its request says, if that says it."""
        if kept_s is None or self._residence is None:
            return model
        if isinstance(model, ServedModel):
            hold.callback(self._residence.keep, model, kept_s)
            return model
        return self._kept_once_loaded(model, self._residence, hold, kept_s)

    async def _kept_once_loaded(
        self, loading: Awaitable[ServedModel], residence: Residence, hold: Hold, kept_s: float
    ) -> ServedModel:
        model = await loading
        hold.callback(residence.keep, model, kept_s)
        return model

    def _named(self, request: ModelRequest, hold: Hold, name: str) -> ServedModel | Awaitable[ServedModel]:
        """The model of this name, or with an adapter of this name; "" where neither path nor body names one."""
        name = name or request.named("model_name")
        version = request.match.version or request.named("model_version")
        adapted = self._models.adapted(name, request.sender.may_use)
        owner, lazy = adapted[0].config.name if adapted else name, self._lazy
        if lazy is None or not name or version not in ("", request.dialect.unversioned) or lazy.has(owner):
            return self._selected(request, hold, name, version)
        if not self._may_load():
            return self._selected(request, hold, name, version)
        return self._loaded(lazy, request, hold, name, owner)

    async def _loaded(self, lazy: LazyModels, request: ModelRequest, hold: Hold, name: str, owner: str) -> ServedModel:
        if request.sender.may_use(owner):
            hold.model = lambda: next(iter(self._models.versions(owner)), None)
            await lazy.load(owner, request.named("model_url"))
        selected = self._selected(request, hold, name, "")
        return selected if isinstance(selected, ServedModel) else await selected

    def _selected(
        self, request: ModelRequest, hold: Hold, name: str, version: str
    ) -> ServedModel | Awaitable[ServedModel]:
        model = self._models.meant(name, version, request.dialect.unversioned, request.sender.may_use)
        hold.model = lambda: model
        if self._residence is None:
            return model
        if self._residence.absent(model) and self._may_load():
            return self._residence.use(model, hold, request.timeout_s)
        self._residence.stay(model, hold)
        return model


async def _field_alone(body: bytes, field: str) -> bytes:
    """An object with this field of a large one alone, {} without it; the whole body where only parsing shows it."""
    try:
        value = await _in_turns(find_field(body, field))
    except UnclearError:
        return body
    return b"{}" if value is None else b"{%b:%b}" % (encode_json(field), value)


def _left_s(request: ModelRequest) -> float | None:
    """The time until a request's own deadline, in seconds; None: it has none."""
    timeout_s = request.timeout_s
    return None if timeout_s is None else max(0.0, timeout_s - (time.monotonic() - request.begun_s))


async def _in_turns(steps: Generator[None, None, T]) -> T:
    """What a generator returns; between its steps the event loop goes on."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)
