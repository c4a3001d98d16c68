"""What the exchanges of a server share.

Runs in the front end's event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from ...config import ServerConfig
from ...core.access.api_key import ApiKey
from ...core.access.scopes import Scope
from ...core.errors import UnavailableError
from ...dialects.shared.base import Answer, Dialect, Kind
from ..dispatch.dispatch import Dispatch
from ..keys.callers import Caller, Callers
from ..metrics.metrics import Metrics
from ..models.served_model import ServedModel
from ..models.table import ModelTable
from ..responses.responses import Responses
from ..routes import Match, RouteTable
from ..spans import Spans
from ..view import PartialView, View
from .access import Rights
from .base_headers import BaseHeaders
from .deferred import DeferredAnswers
from .draining import Draining
from .file_answers import AnyAnswer
from .requests.bodies import Bodies, Body, Receiver
from .requests.content_coding import decoder_of
from .requests.request_head import RequestHead

#: Longest body of a page: it is parsed in the front end's event loop, where everything else waits meanwhile.
MAX_PAGE_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Services:
    """What the exchanges of a server share.

    Attributes:
        dispatch: has models answer requests.
        view: the server as dialects' pages see it.
        bodies: counts the bytes of request bodies in memory.
        deferred: the answers that are held for their clients.
        responses: those of OpenAI's API that are kept.
        own_page: makes a page that is no dialect's, from its route, the request's head and body, the client's rights,
            and the caller.
        sent_elsewhere: where a browser is sent instead of being shown a page that is meant for programs; None: nowhere.
        receiver: makes what takes an upload, of its route, the request's head and whose it is.
        callers: those that send requests.
        spans: makes those of requests.
    """

    config: ServerConfig
    routes: RouteTable
    dispatch: Dispatch
    models: ModelTable
    view: View
    metrics: Metrics
    bodies: Bodies
    deferred: DeferredAnswers
    responses: Responses
    base_headers: BaseHeaders
    draining: Draining
    own_page: Callable[[Match, RequestHead, bytes, Rights, Caller], AnyAnswer | Awaitable[AnyAnswer]]
    sent_elsewhere: Callable[[RequestHead], Answer | None]
    receiver: Callable[[Match, RequestHead, ApiKey], Receiver]
    callers: Callers
    spans: Spans

    def prepare(self, body: Body, match: Match | None, head: RequestHead, caller: Caller) -> None:
        """Admit a request, and say where its body goes, how long that may be, and how it is compressed.

        Raises:
            ServingError: it is refused.
        """
        if match is not None:
            caller.admit(match.route)
        if match is not None and match.is_upload:
            body.receiver = self.receiver(match, head, caller.key)
        else:
            most, declared = self.config.max_request_size, head.declared_length()
            body.bound(most, f"the body is larger than max_request_size, which is {most} bytes", declared)
            if match is not None and match.is_page:
                too_large = f"the body is larger than {MAX_PAGE_BYTES} bytes, which is the most at this path"
                body.bound(min(most, MAX_PAGE_BYTES), too_large, declared)
        body.decoder = decoder_of(head)

    def page(
        self, match: Match, head: RequestHead, body: Body, rights: Rights, caller: Caller
    ) -> AnyAnswer | Awaitable[AnyAnswer]:
        """The page of a route that the front end answers.

        Raises:
            ServingError: the request is refused.
        """
        if match.route.scope is Scope.MANAGE and self.draining.begun:
            raise UnavailableError("the server is shutting down")
        if body.receiver is not None:
            return body.receiver.answer()
        if (sent := self.sent_elsewhere(head)) is not None:
            return sent
        if match.dialect is None or match.route.kind is Kind.KEPT:
            return self.own_page(match, head, body.whole(), rights, caller)
        view = PartialView(self.view, rights.key) if rights.key.models else self.view
        return match.dialect.page(match.operation, view, match.values, body.whole())

    def count(self, model: ServedModel | None, dialect: Dialect | None, status: int, duration_s: float) -> None:
        """Count a request that has ended, by what was known of it."""
        if model is not None:
            model.answered(status, duration_s)
        config = None if model is None else model.config
        self.metrics.answered(
            config.name if config is not None else "",
            config.version if config is not None else "",
            dialect.name if dialect is not None else "",
            status,
            duration_s,
        )
