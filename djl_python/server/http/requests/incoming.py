"""A request whose head has come: whose it is, which route it is for, and whether it may have that.

Runs in the front end's event loop.
"""

from __future__ import annotations

import os
import time

from ....core.errors import MethodError, RouteError, ServingError
from ....dialects.shared.base import Answer, Dialect
from ....formats.json_framing import JSON
from ...dispatch.request import ModelRequest
from ...keys.callers import Caller
from ...keys.keyring import CREDENTIALS
from ...routes import Match
from ..access import Access, Rights
from ..services import Services
from .bodies import Body
from .request_head import RequestHead


class IncomingRequest:
    """A request from its head on.

    Args:
        access: the rights of clients at its address.
        client: the IP address that it comes from, or "unix".

    Attributes:
        id: shown in logs and in the answer.
        received_at: when its head, or then its last byte, has come, in `time.monotonic`'s seconds.
        match: its route; None: it has none, see `refusal`, or is OPTIONS.
        dialect: the one that answers it, or its refusal; None: the front end.
        refusal: why it is refused, if that was found before its whole body was read.
    """

    def __init__(self, services: Services, access: Access, client: str, head: RequestHead) -> None:
        self.received_at = time.monotonic()
        self.head = head
        self.caller: Caller = services.callers.unknown(client, head.headers)
        self.body = Body(services.bodies)
        self.match: Match | None = None
        self.dialect: Dialect | None = None
        self.refusal: ServingError | None = None
        self._services = services
        self._access = access
        self._client = client
        given = head.headers.get(services.base_headers.request_id.lower(), "")
        # It goes into logs: terminals obey some bytes beyond ASCII.
        self.id = given if given and given.isascii() and given.isprintable() else os.urandom(16).hex()

    def admit(self) -> None:
        """Find the route, and say where the body goes.

        Raises:
            ServingError: there is no route, or the client may not have it now.
        """
        head = self.head
        self.route()
        head.check_host()
        if self.match is not None:
            any_type = self.dialect is not None and self.dialect.any_content_type
            route, key = self.match.route, self.caller.key
            self._access.check(route, head.method, head.headers, self._client, key, any_type=any_type)
            if any_type:
                head.take_for(JSON)
        self._services.prepare(self.body, self.match, head, self.caller)

    def route(self) -> None:
        """Find the route and the caller.

        Raises:
            RouteError, MethodError: there is no route.
            ServingError: the caller's key is not one.
        """
        routes, path, method = self._services.routes, self.head.path, self.head.method
        if method == "OPTIONS" and routes.methods(path):
            return
        try:
            self.match = routes.match(method, path)
        except (RouteError, MethodError):
            self.dialect = routes.dialect_at(path)
            raise
        self.dialect = self.match.dialect
        headers = self.head.headers
        if (callers := self._services.callers).have_keys:
            self.caller = callers.caller(self._access.key_of(self.match.route, headers), self._client, headers)
            self.head.drop(CREDENTIALS)  # nothing after this needs them

    @property
    def is_upload(self) -> bool:
        """Whether its body is passed on as it comes."""
        return self.match is not None and self.match.is_upload

    @property
    def rights(self) -> Rights:
        """What its sender may do."""
        return self._access.rights(self.head.headers, self._client, self.caller.key)

    @property
    def allowed(self) -> str:
        """The methods of its path, for the header `allow`."""
        return ", ".join(self._services.routes.methods(self.head.path))

    def preflight(self) -> Answer:
        """The answer to OPTIONS, which browsers send before a page's requests to another server."""
        cors, methods = self._services.base_headers.cors, self._services.routes.methods(self.head.path)
        return Answer(200, b"", {"allow": self.allowed, **cors.preflight(self.head.headers, methods)})

    def give_body_away(self) -> None:
        """Have the body be somebody else's, who lets it go."""
        self.body = Body(self._services.bodies)

    def for_model(self, match: Match, dialect: Dialect) -> ModelRequest:
        """The request for a model that this is; it is complete."""
        head = self.head
        return ModelRequest(
            match=match,
            dialect=dialect,
            sender=self.caller,
            request_id=self.id,
            method=head.method,
            path=head.path,
            query=head.query,
            headers=head.headers,
            body=self.body.whole(),
            manages=bool(dialect.keep_alive_field) and self.rights.manages,
        )
