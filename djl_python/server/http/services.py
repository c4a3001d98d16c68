"""What the exchanges of a server share.

Runs in the front end's event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ...config import ServerConfig
from ...dialects.shared.base import Answer, Dialect, ServerView
from ..metrics import Metrics
from ..models.lazy_models import LazyModels
from ..models.served_model import ServedModel
from ..models.table import ModelTable
from ..routes import Match, RouteTable
from ..spans import Spans
from .access import Rights
from .base_headers import BaseHeaders
from .bodies import Bodies, Body, Receiver
from .content_coding import decoder_of
from .deferred import DeferredAnswers
from .draining import Draining
from .file_answers import FileAnswer
from .request_head import RequestHead

#: Longest body of a page: it is parsed in the front end's event loop, where everything else waits meanwhile.
MAX_PAGE_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Services:
    """What the exchanges of a server share.

    Attributes:
        view: the server as dialects' pages see it.
        bodies: counts the bytes of request bodies in memory.
        deferred: the answers that are held for their clients.
        own_page: makes a page that is none of a dialect's, of its route, the request's head and body, and the
            client's rights.
        receiver: makes what takes an upload, of its route and the request's head.
        lazy: loads models that nobody has registered; None: nothing does.
        spans: makes those of requests.
    """

    config: ServerConfig
    routes: RouteTable
    dialects: Mapping[str, Dialect]
    models: ModelTable
    view: ServerView
    metrics: Metrics
    bodies: Bodies
    deferred: DeferredAnswers
    base_headers: BaseHeaders
    draining: Draining
    own_page: Callable[[Match, RequestHead, bytes, Rights], Answer | Awaitable[Answer | FileAnswer]]
    receiver: Callable[[Match, RequestHead], Receiver]
    lazy: LazyModels | None
    spans: Spans

    def prepare(self, body: Body, match: Match | None, head: RequestHead) -> None:
        """Say where the body of a request goes, how long it may be, and how it is compressed.

        Raises:
            ServingError: it is refused.
        """
        if match is not None and match.is_upload:
            body.receiver = self.receiver(match, head)
        else:
            most, declared = self.config.max_request_size, head.declared_length()
            body.bound(most, f"the body is larger than max_request_size, which is {most} bytes", declared)
            if match is not None and match.is_page:
                too_large = f"the body is larger than {MAX_PAGE_BYTES} bytes, which is the most at this path"
                body.bound(min(most, MAX_PAGE_BYTES), too_large, declared)
        body.decoder = decoder_of(head)

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
