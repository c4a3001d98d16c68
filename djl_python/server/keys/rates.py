"""How many requests and tokens each account may have in a minute, and how many tokens in flight.

Runs in the front end's event loop. An account is a tenant's, an API key's or an address's. It has a token bucket for
each limit a minute: that holds what a minute brings, and fills evenly. A request is taken from it when it comes, its
tokens when the worker reports them. So the bucket of tokens may go below zero: then the next request waits until it is
refilled.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ...core.errors import RateLimitError
from .in_flight import RequestTokens, TokensInFlight, seconds_until_paid

#: Most accounts that are remembered: beyond that, the one idle for longest is forgotten.
MAX_ACCOUNTS: Final = 65_536
_MINUTE_S: Final = 60.0
#: The network's bits of an IPv6 address: a client usually owns a whole network.
_IPV6_NETWORK_BITS: Final = 64
#: What a bucket has to have left for a request. How many tokens it will be nobody knows.
_NEEDED: Final = 1.0


@dataclass(frozen=True)
class RateLimits:
    """What an account may have: requests and tokens in a minute, tokens in flight; None: any number."""

    requests: int | None = None
    tokens: int | None = None
    tokens_in_flight: int | None = None

    def __iter__(self) -> Iterator[int | None]:
        yield from (self.requests, self.tokens, self.tokens_in_flight)

    def __bool__(self) -> bool:
        return any(most is not None for most in self)

    @property
    def of_tokens(self) -> bool:
        """Whether tokens are limited."""
        return self.tokens is not None or self.tokens_in_flight is not None

    @property
    def a_minute(self) -> dict[str, int]:
        """What is limited a minute, "requests" or "tokens", and to how many."""
        limits = {"requests": self.requests, "tokens": self.tokens}
        return {what: most for what, most in limits.items() if most is not None}


@dataclass(frozen=True)
class Claim:
    """A request's part of an account.

    Another request may have another part of the same account: a key's own limits are instead of its tenant's, whose
    other keys have all of these. A request counts towards the limits of its own part alone.

    Attributes:
        who: the account's name.
        limits: what the account may have.
    """

    who: str
    limits: RateLimits


class _Bucket:
    """The rest of a minute's portion; below zero if tokens are owed."""

    __slots__ = ("filled_s", "left", "most")

    def __init__(self, most: int, now_s: float) -> None:
        self.most = most
        self.left = float(most)
        self.filled_s = now_s

    def fill(self, most: int, now_s: float) -> None:
        """Add what the time since the last time has brought; `most` may be another than before."""
        self.left = min(float(most), self.left + (now_s - self.filled_s) * most / _MINUTE_S)
        self.most, self.filled_s = most, now_s

    @property
    def per_second(self) -> float:
        """How fast it fills."""
        return self.most / _MINUTE_S

    def seconds_until(self, left: float) -> float:
        """How long it takes until so much is left; 0 if it is."""
        return max(0.0, (left - self.left) / self.per_second)


class _Account:
    """What an account has left, and has in flight.

    Attributes:
        buckets: by what they limit, "requests" or "tokens".
        spending: the requests that are charged to the bucket of tokens.
        in_flight: those that count towards the limit of tokens in flight.
    """

    __slots__ = ("buckets", "in_flight", "spending")

    def __init__(self) -> None:
        self.buckets: dict[str, _Bucket] = {}
        self.spending = TokensInFlight()
        self.in_flight = TokensInFlight()

    @property
    def busy(self) -> bool:
        """Whether requests are in flight."""
        return bool(self.spending.requests or self.in_flight.requests)

    def fill(self, limits: RateLimits, now_s: float) -> None:
        """Have a full bucket for each new limit, and fill the others of these limits.

        A bucket that they don't have stays: another request's part of this account has it, and may owe tokens.
        """
        for what, most in limits.a_minute.items():
            if what in self.buckets:
                self.buckets[what].fill(most, now_s)
            else:
                self.buckets[what] = _Bucket(most, now_s)

    def begin(self, limits: RateLimits, body_bytes: int, now_s: float) -> Iterator[_Part]:
        """Have a request in flight that counts towards these limits."""
        if limits.tokens is not None:
            yield _Part(self.spending, self.spending.begin(body_bytes, now_s), self.buckets["tokens"])
        if limits.tokens_in_flight is not None:
            yield _Part(self.in_flight, self.in_flight.begin(body_bytes, now_s))

    def wait_s(self, what: str) -> float:
        """How long it takes until a bucket has enough for a request; 0: it has."""
        bucket = self.buckets[what]
        wait_s = bucket.seconds_until(_NEEDED)
        if what == "tokens" and wait_s > 0:
            return seconds_until_paid(_NEEDED - bucket.left, bucket.per_second, self.spending)
        return wait_s


class _Part(NamedTuple):
    """What a request in flight is for one limit of an account.

    Attributes:
        in_flight: the requests that it is one of.
        bucket: what its tokens are taken from, if that is the limit.
    """

    in_flight: TokensInFlight
    request: RequestTokens
    bucket: _Bucket | None = None


class RequestInFlight:
    """A request that has been admitted, on each of its accounts. One that has ended ignores what comes of it.

    Attributes:
        counted: the tokens that it counts as.
    """

    def __init__(self, clock: Callable[[], float], parts: Sequence[_Part]) -> None:
        self._clock = clock
        self._parts = parts
        self.counted = self._counted()

    def spend(self, tokens: int) -> None:
        """It has had more tokens."""
        now_s = self._clock()
        for in_flight, request, bucket in self._parts:
            in_flight.add(request, tokens)
            if bucket is not None:
                bucket.fill(bucket.most, now_s)
                bucket.left -= tokens
        self.counted = self._counted()

    def end(self) -> None:
        """It is not in flight any more."""
        now_s = self._clock()
        for in_flight, request, _ in self._parts:
            in_flight.end(request, now_s)
        self._parts, self.counted = (), 0

    def _counted(self) -> int:
        return max((part.request.counted for part in self._parts), default=0)


class Rates:
    """The accounts of a server.

    Args:
        clock: seconds that only grow.
        max_accounts: how many are remembered, beside those that have requests in flight.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, max_accounts: int = MAX_ACCOUNTS) -> None:
        self._clock = clock
        self._max_accounts = max_accounts
        self._accounts: OrderedDict[str, _Account] = OrderedDict()  # idle for longest first

    def __len__(self) -> int:
        return len(self._accounts)

    def admit(self, claims: Collection[Claim]) -> None:
        """Take a request from its accounts' buckets.

        Raises:
            RateLimitError: one of them has no request left, or owes tokens. Nothing is taken.
        """
        filled = [(self._of(claim), claim.limits) for claim in claims]
        waits = [(account.wait_s(what), what, account) for account, limits in filled for what in limits.a_minute]
        wait_s, what, account = max(waits, key=lambda wait: wait[0], default=(0.0, "", _Account()))
        if wait_s > 0:
            most = account.buckets[what].most
            raise _refusal(f"{most} {what} a minute ({what}_per_minute)", what, f"{what}_per_minute", wait_s)
        _take_request(filled, 1)

    def begin(self, claims: Collection[Claim], body_bytes: int) -> RequestInFlight:
        """A request that has been admitted is in flight from now on, until its `end`.

        Args:
            body_bytes: the length of its body.

        Raises:
            RateLimitError: too many tokens are in flight. What `admit` has taken is given back.
        """
        filled = [(self._of(claim), claim.limits) for claim in claims]
        for account, limits in filled:
            if (most := limits.tokens_in_flight) is None:
                continue
            in_flight = account.in_flight
            if (wait_s := in_flight.seconds_until_room(in_flight.expected(body_bytes), most)) > 0:
                _take_request(filled, -1)
                raise _refusal(f"{most} tokens in flight (tokens_in_flight)", "tokens", "tokens_in_flight", wait_s)
        now_s = self._clock()
        parts = [part for account, limits in filled for part in account.begin(limits, body_bytes, now_s)]
        return RequestInFlight(self._clock, parts)

    def standing(self, claims: Collection[Claim]) -> dict[str, str]:
        """Headers that tell what is left, in OpenAI's form: of each limit, on the account that has least of it."""
        least: dict[str, _Bucket] = {}
        for claim in claims:
            account = self._of(claim)
            for what in claim.limits.a_minute:
                bucket = account.buckets[what]
                if what not in least or bucket.left < least[what].left:
                    least[what] = bucket
        return _headers(least)

    def _of(self, claim: Claim) -> _Account:
        """A claim's account, filled."""
        account = self._accounts.get(claim.who)
        if account is None:
            if len(self._accounts) >= self._max_accounts:
                self._forget()
            account = self._accounts[claim.who] = _Account()
        self._accounts.move_to_end(claim.who)
        account.fill(claim.limits, self._clock())
        return account

    def _forget(self) -> None:
        """Forget the account idle for longest of those without requests in flight."""
        for _ in range(len(self._accounts)):
            who, account = self._accounts.popitem(last=False)
            if not account.busy:
                return
            self._accounts[who] = account


def network_of(address: str) -> str:
    """The identity of a client: an IPv4 address, or the network of an IPv6 address; another text as it is."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.ip_network((ip, _IPV6_NETWORK_BITS), strict=False))


def _take_request(filled: Sequence[tuple[_Account, RateLimits]], number: int) -> None:
    """Take so many requests from each account whose requests are limited; below 0: give them back."""
    for account, limits in filled:
        if limits.requests is not None:
            account.buckets["requests"].left -= number


def _refusal(reached: str, what: str, limit: str, wait_s: float) -> RateLimitError:
    message = f"Rate limit reached: {reached}. Please try again in {_duration(wait_s)}."
    return RateLimitError(message, what, math.ceil(wait_s), limit)


def _headers(buckets: dict[str, _Bucket]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for what, bucket in buckets.items():
        headers[f"x-ratelimit-limit-{what}"] = str(bucket.most)
        headers[f"x-ratelimit-remaining-{what}"] = str(max(0, math.floor(bucket.left)))
        headers[f"x-ratelimit-reset-{what}"] = _duration(bucket.seconds_until(float(bucket.most)))
    return headers


def _duration(seconds: float) -> str:
    """A time as OpenAI's headers have it: 250ms, 1.5s, 6m0s."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(seconds, _MINUTE_S)
    return f"{int(minutes)}m{rest:.0f}s" if minutes else f"{rest:.3g}s"
