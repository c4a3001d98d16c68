"""Which sequences are computed together: similar lengths, and each request in its turn.

So a short text does not pay for a long one, and a request with a thousand texts holds nobody up.

Runs in the engine process. Requests of batches have their turn when no other waits. Among others, the tenant with the
fewest tokens for its weight leads the next step: with its most urgent request, and among equals with the one that has
had the fewest tokens. A new tenant begins with as many as the leader had before the last step, and one that comes back
with no fewer than it had when it left. A new request of a tenant begins with as many as its last leader has after its
step. So it is next, or nearly, and those who keep coming can't overtake for ever. What fits beside the leader is taken
in the same order.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from ...core.turns.fair_queue import TenantKey, tenant_of
from ...core.turns.precedence import ANY, Precedence
from ...ipc.encodings import EncoderInput

#: Padding that a sequence may have in a batch, in tokens, and as a part of the longest one's length.
_PADDING_TOKENS: Final = 8
_PADDING_SHARE: Final = 0.2
#: Tenants that are remembered after they have left: clients may make up names.
_MOST_GONE: Final = 1024


@dataclass(frozen=True)
class Item:
    """One input of a request."""

    request_id: int
    index: int
    input: EncoderInput

    @property
    def length(self) -> int:
        """Its tokens."""
        return len(self.input.ids)


@dataclass
class _Lane:
    """A tenant's requests of one priority.

    Attributes:
        clock: the tokens that a new one begins with.
        requests: how many there are.
    """

    clock: int = 0
    requests: int = 0


@dataclass
class _Tenant:
    """A tenant that has requests.

    Attributes:
        had: its tokens, divided by its weight.
        lanes: its requests by priority.
    """

    had: float
    lanes: dict[int, _Lane] = field(default_factory=dict)


@dataclass
class _Request:
    """What is left of a request.

    Attributes:
        items: by length.
        had: how many tokens it has had, beside those that it began with.
        order: its number in order of arrival.
        led: the number of the step that it led last; 0: none.
    """

    items: list[Item]
    had: int
    order: int
    precedence: Precedence
    tenant: _Tenant
    lane: _Lane
    led: int = 0

    @property
    def turn(self) -> tuple[bool, float, int, int, int, int]:
        """The request with the least one is next."""
        precedence = self.precedence
        return precedence.background, self.tenant.had, precedence.priority, self.had, self.led, self.order

    def take(self, item: Item) -> None:
        """Count the tokens of an item that was taken out."""
        self.had += item.length
        self.tenant.had += item.length / self.precedence.weight

    def most_within(self, longest: int, least: int) -> Item | None:
        """Take out the longest item with at most `longest` tokens; None if that has fewer than `least`."""
        at = bisect.bisect_right(self.items, longest, key=lambda item: item.length) - 1
        if at < 0 or self.items[at].length < least:
            return None
        return self.items.pop(at)


class FairQueue:
    """Inputs that wait to be computed.

    Args:
        max_tokens: tokens of a batch at most, padding included; a longer sequence is alone.
        max_items: sequences of a batch at most; None: as many as `max_tokens` allows.
        pads: whether sequences of different lengths may be in a batch.
        packs: whether they lie in a row there, without padding, so that any lengths may be together.
    """

    def __init__(
        self, max_tokens: int, max_items: int | None = None, *, pads: bool = True, packs: bool = False
    ) -> None:
        self.max_tokens = max_tokens
        self._max_items = max_items
        self._pads = pads
        self._packs = packs
        self._requests: dict[int, _Request] = {}
        self._tenants: dict[TenantKey, _Tenant] = {}
        self._led = {False: 0.0, True: 0.0}  # `had` of the tenant that led last, before it did; of those of batches
        self._gone: dict[TenantKey, float] = {}  # `had` of tenants that have left, where it is above that
        self._arrivals = 0
        self._steps = 0

    def __len__(self) -> int:
        return sum(len(request.items) for request in self._requests.values())

    def __bool__(self) -> bool:
        return bool(self._requests)

    def add(self, request_id: int, inputs: Sequence[tuple[int, EncoderInput]], precedence: Precedence = ANY) -> None:
        """Queue inputs of one request, each with its number in it."""
        if not inputs:
            return
        items = sorted((Item(request_id, index, one) for index, one in inputs), key=lambda item: item.length)
        self._arrivals += 1
        key = precedence.background, precedence.tenant
        if (tenant := self._tenants.get(key)) is None:
            tenant = self._tenants[key] = _Tenant(max(self._led[precedence.background], self._gone.pop(key, 0.0)))
        lane = tenant.lanes.setdefault(precedence.priority, _Lane())
        lane.requests += 1
        self._requests[request_id] = _Request(items, lane.clock, self._arrivals, precedence, tenant, lane)

    def cancel(self, request_id: int) -> None:
        """Drop what is left of a request."""
        if request_id in self._requests:
            self._drop(request_id)

    def take(self) -> list[Item]:
        """The sequences of the next batch; [] if none waits."""
        in_turn = sorted(self._requests.values(), key=lambda request: request.turn)
        if not in_turn:
            return []
        first = in_turn[0]
        self._move_clock(first.precedence.background, first.tenant.had)
        taken = self._packed(in_turn) if self._packs else self._padded(in_turn)
        self._steps += 1
        first.led = self._steps
        first.lane.clock = max(first.lane.clock, first.had)
        for request_id in {item.request_id for item in taken}:
            if not self._requests[request_id].items:
                self._drop(request_id)
        return taken

    def _move_clock(self, background: bool, led: float) -> None:
        """Begin a new tenant with so many tokens, and forget those that have left and had no more."""
        if led > self._led[background]:
            self._led[background] = led
            self._gone = {key: had for key, had in self._gone.items() if key[0] is not background or had > led}

    def _drop(self, request_id: int) -> None:
        request = self._requests.pop(request_id)
        lanes = request.tenant.lanes
        request.lane.requests -= 1
        if not request.lane.requests:
            del lanes[request.precedence.priority]
        if not lanes:
            self._leave(tenant_of(request))

    def _leave(self, key: TenantKey) -> None:
        """Remember what a tenant had, which may be back while those who wait now still do."""
        self._gone[key] = self._tenants.pop(key).had
        if not self._requests:
            self._gone.clear()  # nobody has waited for them
        elif len(self._gone) > _MOST_GONE:
            del self._gone[next(iter(self._gone))]

    def _packed(self, in_turn: Sequence[_Request]) -> list[Item]:
        """As many as there is room for, of the requests in their turn, longest first."""
        room = max(self.max_tokens, in_turn[0].items[-1].length)
        taken: list[Item] = []
        for request in in_turn:
            while (self._max_items is None or len(taken) < self._max_items) and (item := request.most_within(room, 1)):
                request.take(item)
                room -= item.length
                taken.append(item)
        return taken

    def _padded(self, in_turn: Sequence[_Request]) -> list[Item]:
        """Those of about the length of the longest of the request whose turn it is."""
        longest = in_turn[0].items[-1].length
        least = longest - max(_PADDING_TOKENS, int(longest * _PADDING_SHARE)) if self._pads else longest
        room = max(1, self.max_tokens // max(1, longest))
        if self._max_items is not None:
            room = min(room, self._max_items)
        taken = []
        for item in self._fitting(in_turn, longest, least):
            taken.append(item)
            if len(taken) == room:
                break
        return taken

    def _fitting(self, in_turn: Sequence[_Request], longest: int, least: int) -> Iterator[Item]:
        for request in in_turn:
            while (item := request.most_within(longest, least)) is not None:
                request.take(item)
                yield item
