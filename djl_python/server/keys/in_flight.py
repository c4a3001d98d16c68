"""The tokens of a tenant's requests that are in flight, and how soon they will not be.

Runs in the front end's event loop; its times are seconds of a clock that the caller reads.

How many tokens a request will have nobody knows when it comes. So it counts as many as the tenant's requests had on
average, and more as soon as it has had more. The tenant's first ones count by the length of their bodies. All counts
are whole numbers: sums of fractions would not be 0 again when nothing is in flight.
"""

from __future__ import annotations

import math
from typing import Final

#: The weight of the latest request in the means: about the last ten count.
_LATEST: Final = 0.2
#: Bytes of a body for each token, until the tenant's requests have been measured: those of English text.
_BYTES_PER_TOKEN: Final = 4
#: The mean time of a request, until one has been measured.
_FIRST_MEAN_S: Final = 1.0


class RequestTokens:
    """The tokens of one request in flight.

    Attributes:
        had: those that it has had so far.
        counted: those that it counts as.
    """

    __slots__ = ("began_s", "counted", "had")

    def __init__(self, began_s: float, counted: int) -> None:
        self.began_s = began_s
        self.counted = counted
        self.had = 0


class TokensInFlight:
    """The requests in flight of one tenant.

    Attributes:
        requests: how many there are.
        tokens: what they count as together.
        outstanding: how many of these they have not had yet.
    """

    __slots__ = ("_mean_s", "_mean_tokens", "outstanding", "requests", "tokens")

    def __init__(self) -> None:
        self.requests = 0
        self.tokens = 0
        self.outstanding = 0
        self._mean_tokens: float | None = None  # of the requests that have ended
        self._mean_s: float | None = None

    def expected(self, body_bytes: int) -> int:
        """How many tokens a new request will count as."""
        return math.ceil(body_bytes / _BYTES_PER_TOKEN if self._mean_tokens is None else self._mean_tokens)

    def begin(self, body_bytes: int, now_s: float) -> RequestTokens:
        """A request is in flight from now on."""
        request = RequestTokens(now_s, self.expected(body_bytes))
        self.requests += 1
        self.tokens += request.counted
        self.outstanding += request.counted
        return request

    def add(self, request: RequestTokens, tokens: int) -> None:
        """A request has had more tokens."""
        self.outstanding -= max(0, request.counted - request.had)
        request.had += tokens
        more = max(0, request.had - request.counted)
        request.counted += more
        self.tokens += more
        self.outstanding += request.counted - request.had

    def end(self, request: RequestTokens, now_s: float) -> None:
        """A request is not in flight any more. One without tokens, which has been refused, is not measured."""
        self.requests -= 1
        self.tokens -= request.counted
        self.outstanding -= request.counted - request.had
        if request.had:
            self._mean_tokens = _moved(self._mean_tokens, request.had)
            self._mean_s = _moved(self._mean_s, now_s - request.began_s)

    @property
    def per_second(self) -> float:
        """How many tokens a second the requests in flight have, all together, by what ended ones had."""
        if not (self._mean_tokens and self._mean_s):
            return 0.0
        return self.requests * self._mean_tokens / self._mean_s

    def seconds_until_room(self, tokens: int, most: int) -> float:
        """How long it takes until a request that counts as so many tokens has room; 0: it has.

        A request alone always has room. Requests in flight end evenly over the mean time of a request.
        """
        surplus = self.tokens + tokens - most
        if not self.requests or surplus <= 0:
            return 0.0
        mean_s = _FIRST_MEAN_S if self._mean_s is None else self._mean_s
        return mean_s * min(1.0, surplus / self.tokens) if self.tokens else mean_s


def seconds_until_paid(owed: float, refill: float, in_flight: TokensInFlight) -> float:
    """How long it takes until a bucket that is filled has paid what it owes, while requests in flight add to that.

    Args:
        owed: tokens.
        refill: tokens a second.
    """
    spent = in_flight.per_second
    if refill > spent:
        wait_s = owed / (refill - spent)
        if wait_s * spent <= in_flight.outstanding:
            return wait_s
    return (owed + (in_flight.outstanding if spent else 0)) / refill


def _moved(mean: float | None, latest: float) -> float:
    """A mean with one more number."""
    return latest if mean is None else mean + _LATEST * (latest - mean)
