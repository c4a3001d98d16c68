"""A request for a model, wherever it comes from.

Runs in the front end's event loop.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ...core.turns.deadline import DEADLINE_HEADER, timeout_of
from ...core.turns.precedence import Precedence
from ...dialects.shared.base import Dialect
from ...ipc.protocol import Call
from ..routes import Match


class Sender(Protocol):
    """The sender of a request: their rights, and the facts about them that a worker needs."""

    @property
    def precedence(self) -> Precedence:
        """The tenant whose share their requests count towards, and how urgent these are."""
        ...

    def may_use(self, name: str) -> bool:
        """Whether they may use a model of this name; for them, there are no others."""
        ...

    def begin(self, call: Call, *, query: bool) -> Call:
        """Have a call in flight, until `ended`; returns it with the facts about its sender that its worker needs.

        Args:
            query: whether it generates nothing.

        Raises:
            RateLimitError: the sender has too many tokens in flight.
        """
        ...

    def ended(self) -> None:
        """The call that has begun is not in flight any more."""
        ...


class BeingKept(Protocol):
    """A response that is to be kept (`server/responses`).

    Attributes:
        background: whether the client does not wait for it.
    """

    background: bool

    def end(self) -> None:
        """The client has gone, or has all of it: what is not complete is kept no longer."""
        ...


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """A request of a GENERATE or QUERY route.

    Attributes:
        match: the route.
        dialect: the route's.
        path: still percent-encoded.
        query: in pairs.
        headers: by their names in lower case; `request_id` is added to those that the worker gets.
        body: decompressed.
        background: whether others go before it, as before a batch's.
        begun_s: when it was complete, in `time.monotonic`'s seconds.
        context: what its worker gets beside the body; see `Call`.
        keeping: the response to it that is to be kept; None: none is.
        manages: whether its sender may manage models, and so says how long this one stays loaded.
    """

    match: Match
    dialect: Dialect
    sender: Sender
    request_id: str
    method: str
    path: str
    query: tuple[tuple[str, str], ...]
    headers: Mapping[str, str]
    body: bytes
    background: bool = False
    begun_s: float = field(default_factory=time.monotonic)
    context: bytes = b""
    keeping: BeingKept | None = None
    manages: bool = False

    @property
    def timeout_s(self) -> float | None:
        """The request's own deadline, in seconds from `begun_s` on; None: it has none, or a worker will refuse it."""
        return timeout_of(self.headers.get(DEADLINE_HEADER, ""))

    def named(self, what: str) -> str:
        """The value of a query parameter, or else of a header, of this name; "" without either."""
        return dict(self.query).get(what) or self.headers.get(what, "")
