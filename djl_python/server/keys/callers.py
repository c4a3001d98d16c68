"""The callers, who send requests, and what they may have at a time.

Runs in the front end's event loop. A caller is an API key, or where the server asks for none, an address. Their tenant
is the key's name, or what a gateway's header says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from ...config import Networks, ServerConfig
from ...core.access.api_key import ANYONE, NOBODY, ApiKey
from ...core.access.scopes import Scope
from ...core.errors import RateLimitError
from ...core.turns.precedence import ANY, Precedence
from ...dialects.shared.base import Kind, Route
from ...ipc.protocol import Call
from ..metrics.metrics import OTHER_TENANTS, Metrics
from .rates import Claim, RateLimits, Rates, RequestInFlight, network_of

_FORWARDED: Final = "x-forwarded-for"
#: A longer name of a tenant is cut.
MAX_TENANT_CHARS: Final = 128


class Callers:
    """The callers of a server. Attribute `have_keys`: whether requests need one."""

    def __init__(
        self, config: ServerConfig, metrics: Metrics, rates: Rates | None = None, *, have_keys: bool = False
    ) -> None:
        self.have_keys = have_keys
        self._metrics = metrics
        self._proxies = config.trusted_proxies
        self._limits = RateLimits(config.requests_per_minute, config.tokens_per_minute, config.tokens_in_flight)
        self._tenants = (
            config.tenant_requests_per_minute,
            config.tenant_tokens_per_minute,
            config.tenant_tokens_in_flight,
        )
        self._tenant_header = config.tenant_header.lower()
        self._weights = config.tenant_weights
        self._known = {name for limits in self._tenants for name in limits.limits} | set(self._weights.weights)
        self._rates = rates or Rates()

    def unknown(self, client: str, headers: Mapping[str, str]) -> Caller:
        """The caller at the other end of a connection, whose key is not known yet, if they need one."""
        return self.caller(NOBODY if self.have_keys else ANYONE, client, headers)

    def caller(self, key: ApiKey, client: str, headers: Mapping[str, str]) -> Caller:
        """The caller with this key at the other end of a connection."""
        named = self._named(client, headers)
        tenant = named or key.name
        address = address_of(client, headers, self._proxies)
        return Caller(
            self._rates,
            self._metrics,
            key,
            address,
            self._claims(key, named, address),
            Precedence(tenant, self._weights.of(tenant)),
            # Anybody may make up names: in metrics, those that nobody has configured are one.
            tenant if tenant in self._known or (not named and tenant) else OTHER_TENANTS,
        )

    def _named(self, client: str, headers: Mapping[str, str]) -> str:
        """The tenant that a header names, if it is believed; "" if none."""
        if not self._tenant_header or (self._proxies.names and client not in self._proxies):
            return ""
        return headers.get(self._tenant_header, "")[:MAX_TENANT_CHARS]

    def _claims(self, key: ApiKey, named: str, address: str) -> tuple[Claim, ...]:
        """The accounts that a request goes on: the key's own, if its line has limits, and the tenant's.

        A key's limits are instead of the tenant's, unless a header says that another is the tenant.
        """
        own = RateLimits(key.requests_per_minute, key.tokens_per_minute, key.tokens_in_flight)
        limits = self._of(named or key.name)
        if own and not named:
            limits = RateLimits(*(None if mine is not None else most for mine, most in zip(own, limits, strict=True)))
        claims = []
        if own:
            claims.append(Claim(f"key {key.sha256}", own))
        if limits:
            tenant = named or key.name
            claims.append(Claim(f"tenant {tenant}" if tenant else f"client {network_of(address)}", limits))
        return tuple(claims)

    def _of(self, tenant: str) -> RateLimits:
        """What a tenant may have, by the server's settings."""
        if not tenant or tenant not in self._known:
            return self._limits
        return RateLimits(*(limits.of(tenant, most) for limits, most in zip(self._tenants, self._limits, strict=True)))


class Caller:
    """The sender of a request.

    Attributes:
        key: theirs.
        address: the client's.
        headers: for the answer: the rest of their rates, if they have any.
        precedence: their tenant, for their requests' turns.
    """

    def __init__(
        self,
        rates: Rates,
        metrics: Metrics,
        key: ApiKey,
        address: str,
        claims: tuple[Claim, ...],
        precedence: Precedence = ANY,
        label: str = OTHER_TENANTS,
    ) -> None:
        self.key = key
        self.address = address
        self.headers: Mapping[str, str] = {}
        self.precedence = precedence
        self._rates = rates
        self._metrics = metrics
        self._claims = claims
        self._label = label
        self._in_flight: RequestInFlight | None = None

    def admit(self, route: Route) -> None:
        """Let one more request of theirs in. Pages, which the front end answers by itself, count nothing.

        Raises:
            RateLimitError: they have to wait.
        """
        if not self._claims or route.scope is not Scope.INFER or route.kind is Kind.PAGE:
            return
        try:
            self._rates.admit(self._claims)
        except RateLimitError as refusal:
            self._metrics.rate_limited(self._label, refusal.limit)
            raise
        finally:
            self.headers = self._rates.standing(self._claims)

    def may_use(self, name: str) -> bool:
        """Whether their key may use a model of this name."""
        return self.key.may_use(name)

    def begin(self, call: Call, *, query: bool) -> Call:
        """Have a call of theirs in flight, until `ended`; returns it with the facts that its worker needs.

        Args:
            query: whether it generates nothing, and so has no tokens.

        Raises:
            RateLimitError: too many of their tokens are in flight.
        """
        limited = any(claim.limits.of_tokens for claim in self._claims)
        if limited and not query:
            try:
                self._in_flight = self._rates.begin(self._claims, len(call.body))
            except RateLimitError as refusal:
                self._metrics.rate_limited(self._label, refusal.limit)
                self.headers = self._rates.standing(self._claims)
                raise
            self._metrics.tenant_in_flight(self._label, self._in_flight.counted)
        if not (limited or self.key.name):
            return call
        name, is_manager = self.key.name, self.key.is_manager
        return msgspec.structs.replace(call, counted=True, key_name=name, is_manager=is_manager)

    def used(self, prompt_tokens: int, generated_tokens: int) -> None:
        """A request of theirs has had so many more tokens."""
        if self.key.name:
            self._metrics.key_used(self.key.name, prompt_tokens, generated_tokens)
        if self._in_flight is not None:
            before = self._in_flight.counted
            self._in_flight.spend(prompt_tokens + generated_tokens)
            self._metrics.tenant_in_flight(self._label, self._in_flight.counted - before)

    def ended(self) -> None:
        """Their call is not in flight any more, whether it has been answered or not."""
        if self._in_flight is not None:
            before = self._in_flight.counted
            self._in_flight.end()
            self._metrics.tenant_in_flight(self._label, -before)
            self._in_flight = None

    def answered(self, status: int) -> None:
        """A request of theirs has been answered."""
        if self.key.name:
            self._metrics.key_answered(self.key.name, status)


def address_of(client: str, headers: Mapping[str, str], proxies: Networks) -> str:
    """A client's address: the connection's, or, for a trusted proxy's connection, from X-Forwarded-For.

    Each proxy appends its client's address. Read from the end, the first address that is no trusted proxy is the
    client; the client may have made up the entries before it.
    """
    if client not in proxies or not (forwarded := headers.get(_FORWARDED, "")):
        return client
    hops = [hop for hop in map(_bare, forwarded.split(",")) if hop]
    return next((hop for hop in reversed(hops) if hop not in proxies), hops[0] if hops else client)


def _bare(hop: str) -> str:
    """An entry of X-Forwarded-For without the port that some proxies add."""
    hop = hop.strip()
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop
