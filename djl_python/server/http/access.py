"""The rights of clients at each of the server's addresses.

Runs in the front end's event loop. Loading a model runs its code, and descriptions have paths: where nothing opens
them, only clients on this machine get to the routes that manage. Pages of others in their browsers get to none. Where
    the server asks for API keys, a key alone decides what its bearer may do: pages of others don't have it.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ...config import Address, ServerConfig
from ...core.access.api_key import ANYONE, NOBODY, ApiKey
from ...core.access.scopes import Scope
from ...core.errors import ForbiddenError, RouteError
from ...dialects.shared.base import Kind, Route
from ..access.clients import UNIX, is_local
from ..access.pages import Pages
from ..keys.keyring import Keyring


class Door(enum.Enum):
    """The kinds of addresses of the server, by the routes that they offer."""

    INFERENCE = enum.auto()  # all but management, which has an address of its own
    LOCAL = enum.auto()  # everything; management for clients on this machine
    OPEN = enum.auto()  # everything, for every client
    MANAGEMENT = enum.auto()  # management, and pages that only show


@dataclass(frozen=True)
class Rights:
    """What a client may do at the address that it uses: manage models, and have them answer; and with which key."""

    manages: bool
    generates: bool
    key: ApiKey = ANYONE


def doors(config: ServerConfig) -> Mapping[Door, Address]:
    """The addresses to listen on."""
    inference, management = config.inference_address, config.management_address
    if management is not None and management != inference:
        return {Door.INFERENCE: inference, Door.MANAGEMENT: management}
    opened = management is not None or config.management_access == "open"
    return {Door.OPEN if opened else Door.LOCAL: inference}


def keyless_scopes(config: ServerConfig) -> Collection[Scope]:
    """The scopes of routes that need no key where others do."""
    return {Scope.PUBLIC, Scope.PROBE} | ({Scope.METRICS} if config.metrics_access == "open" else set())


class Access:
    """The rights of the clients of one address."""

    def __init__(self, door: Door, config: ServerConfig, keyring: Keyring | None = None) -> None:
        self._keyring = keyring or Keyring()
        self._keyless = keyless_scopes(config)
        self._door = door
        self._pages = Pages(doors(config)[door], config, manages_locally=door is Door.LOCAL)

    def key_of(self, route: Route, headers: Mapping[str, str]) -> ApiKey:
        """The key of a request: `ANYONE` where the server asks for no keys, `NOBODY` where the route needs none.

        Raises:
            UnauthorizedError: it needs a key, and has none that is valid.
        """
        if not self._keyring.required:
            return ANYONE
        return NOBODY if route.scope in self._keyless else self._keyring.key_of(headers)

    def check(
        self,
        route: Route,
        method: str,
        headers: Mapping[str, str],
        client: str,
        key: ApiKey = ANYONE,
        *,
        any_type: bool = False,
    ) -> None:
        """Check that the client may use the route.

        Args:
            headers: the request's, by their names in lower case.
            client: the other end of the connection: an IP address, or `UNIX`.
            key: what `key_of` gave.
            any_type: whether the route's API takes bodies of any content type.

        Raises:
            RouteError: it is not at this address.
            ForbiddenError: it is not for this client.
        """
        what, manages = f"{method} {route.path}", route.scope is Scope.MANAGE
        if not manages and self._door is Door.MANAGEMENT and route.kind is not Kind.PAGE:
            raise RouteError(f"{route.path} is at inference_address, and this is management_address")
        has_key = self._keyring.required and route.scope not in self._keyless
        if manages and not has_key:
            self._check_manages(what, method, headers, client)
        elif manages:
            self._check_door(what)
        elif client != UNIX and not has_key:
            self._pages.check(route.scope, method, headers, any_type=any_type)
        if has_key and not key.allows(route.scope):
            raise ForbiddenError(
                f"{what} needs an API key with the scope {route.scope.value}; the key {key.name!r} has "
                f"{', '.join(scope.value for scope in key.scopes)}"
            )

    def rights(self, headers: Mapping[str, str], client: str, key: ApiKey = ANYONE) -> Rights:
        """What the client may do, for pages that offer it; arguments as in `check`."""
        generates = self._door is not Door.MANAGEMENT
        if self._keyring.required:
            manages = key.is_manager and self._door is not Door.INFERENCE
            return Rights(manages, generates and key.allows(Scope.INFER), key)
        try:
            self._check_manages("managing", "GET", headers, client)
        except ForbiddenError:
            manages = False
        else:
            manages = True
        return Rights(manages, generates)

    def _check_door(self, what: str) -> None:
        if self._door is Door.INFERENCE:
            raise ForbiddenError(f"{what} is answered at management_address only")

    def _check_manages(self, what: str, method: str, headers: Mapping[str, str], client: str) -> None:
        self._check_door(what)
        if self._door is Door.LOCAL and not is_local(headers, client):
            raise ForbiddenError(
                f"{what} is for clients on the server's machine: management_access=open opens it to "
                "all, and management_address gives it an address of its own"
            )
        if client != UNIX:
            self._pages.check(Scope.MANAGE, method, headers)
