"""Answers that are fetched later: DJL's asynchronous requests.

Runs in the front end's event loop. A request with `x-synchronous: false` is answered at once, with a token. A request
with the token as `x-starting-token` gets the pieces of the answer so far, as its worker made them. SageMaker passes
these on in a header of its own, `X-Amzn-SageMaker-Custom-Attributes: x-synchronous=false`.

Held answers are limited in number and bytes: complete answers make room for new ones, the least recently fetched of
who has the most.
    Source: DJL Serving's "Async and Caching".
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

from ...config import ServerConfig
from ...core.access.api_key import ApiKey
from ...core.access.shares import fits, givers, rule
from ...core.errors import HandlerError, OverloadedError, PayloadError, ServingError
from ...dialects.shared.base import Answer, Dialect
from ...ipc.protocol import Trace, UsageReport
from ..keys.callers import Caller
from ..models.pool.flights import Flight
from ..models.served_model import ServedModel
from ..routes import Match
from ..spans import NO_SPAN, Span
from .answers import error_answer
from .requests.bodies import Body

SYNCHRONOUS: Final = "x-synchronous"
STARTING_TOKEN: Final = "x-starting-token"
NEXT_TOKEN: Final = "x-next-token"
MAX_ITEMS: Final = "x-max-items"
_ATTRIBUTES: Final = "x-amzn-sagemaker-custom-attributes"
_TOKEN: Final = re.compile(r"([\w-]{32})([0-9]{1,12})", re.ASCII)
_SECRET_BYTES: Final = 24  # 32 characters


class DeferredAnswer:
    """One answer that is fetched later. Is the pool's `Client`.

    Args:
        body: the request's; released once a worker has it.
        operation: of the dialect.
        caller: the sender; others do not get the answer.

    Attributes:
        secret: what its tokens begin with.
        owner: the name of the API key of its request.
        model: which answers.
        dialect: of the answer.
        ended: whether it is complete.
        fetched: whether a client has fetched its end.
        size: bytes that it has so far.
        span: of the request.
    """

    def __init__(
        self,
        answers: DeferredAnswers,
        model: ServedModel,
        dialect: Dialect,
        operation: str,
        body: Body,
        caller: Caller,
    ) -> None:
        self.secret = secrets.token_urlsafe(_SECRET_BYTES)
        self.model = model
        self.dialect = dialect
        self.ended = self.fetched = False
        self.size = 0
        self.span: Span = NO_SPAN
        self.owner = caller.key.name
        self._caller = caller
        self._answers = answers
        self._operation = operation
        self._body = body
        self._flight: Flight | None = None
        self._status = 200
        self._headers: Mapping[str, str] = {}
        self._pieces: list[bytes] = []
        self._failure: ServingError | None = None  # that follows the pieces
        self._expiry: asyncio.TimerHandle | None = None

    def begun(self, flight: Flight) -> Answer:
        """The call has been admitted: hold the answer, and tell the client how to ask for it."""
        self._flight = flight
        self._answers.hold(self)
        return Answer(200, b"", self._next(0))

    def part(self, start: int, most: int | None) -> Answer:
        """The pieces from `start` on, at most so many of them; status 202 where there is none yet.

        Raises:
            PayloadError: it has no such piece.
        """
        if self._failure is not None and start >= len(self._pieces):
            self.fetched = True
            return error_answer(self._failure, self.dialect, self.model.config, self._operation)
        if start > len(self._pieces):
            raise PayloadError(f"{STARTING_TOKEN}: not a token of this answer", STARTING_TOKEN)
        pieces = self._pieces[start:][:most]
        after = start + len(pieces)
        if not pieces and not self.ended:
            return Answer(202, b"", self._next(start))
        is_all = self.ended and after == len(self._pieces) and self._failure is None
        self.fetched = self.fetched or is_all
        return Answer(self._status, b"".join(pieces), {**self._headers, **({} if is_all else self._next(after))})

    def keep_for(self, seconds: float) -> None:
        """Drop the answer, if it is complete, that many seconds from now and not before."""
        self.forget()
        if self.ended:
            self._expiry = asyncio.get_running_loop().call_later(seconds, self._answers.drop, self.secret)

    def forget(self) -> None:
        """Set no more time."""
        if self._expiry is not None:
            self._expiry.cancel()

    def refuse(self, refusal: ServingError) -> None:
        """Give up an answer that there is no room for."""
        self.size, self._pieces[:] = 0, []
        self._failure = refusal
        self.span.failed(refusal)
        if not self.ended:
            self._end()
            if self._flight is not None:
                self.model.pool.cancel(self._flight, "slow_reader")

    # ------------------------------------------------------------------------------------ pool.Client

    def sent(self) -> None:
        """Release the request's body."""
        self._body.let_go()
        self.span.dispatched()

    def noted(self, notes: Trace) -> None:
        """Add to the request's span."""
        self.span.noted(notes)

    def used(self, usage: UsageReport) -> None:
        """Count the tokens as the caller's."""
        self._caller.used(usage.prompt_tokens, usage.generated_tokens)

    def start(self, status: int, headers: dict[str, str]) -> None:
        """Keep the status and the headers, which every part of the answer has."""
        self._status, self._headers = status, headers

    def body(self, data: bytes, last: bool) -> None:
        """Keep a piece."""
        if self.ended:
            return
        if data:
            self._pieces.append(data)
            self.size += len(data)
            if self._flight is not None and not last:
                self.model.pool.taken(self._flight, len(data))
        self.ended = last  # what is complete leaves when others need its room
        self._answers.grew(self, len(data))
        if last:
            self._end()

    def break_off(self) -> None:
        """The answer ends incomplete; its last part says so."""
        self._fail(HandlerError("the answer ended before it was complete"))

    def fail(self, error: ServingError) -> None:
        """The error is the answer, or ends it as it would end a stream."""
        if self.ended:
            return
        self.span.failed(error)
        config = self.model.config
        if not self._pieces:
            answer = error_answer(error, self.dialect, config, self._operation)
            self.start(answer.status, dict(answer.headers))
            self.body(answer.body, last=True)
            return
        headers = {name.lower(): value for name, value in self._headers.items()}
        end = self.dialect.failed_stream_end(error, headers, config)
        if end is None:
            self._fail(error)
        else:
            self.body(end, last=True)

    # ------------------------------------------------------------------------------------ inside

    def _fail(self, failure: ServingError) -> None:
        if not self.ended:
            self._failure = failure
            self._end()

    def _end(self) -> None:
        self.ended = True
        self._body.let_go()
        self.span.ended(self._status)
        self._answers.ended(self)

    def _next(self, position: int) -> dict[str, str]:
        token = f"{self.secret}{position}"
        return {NEXT_TOKEN: token, _ATTRIBUTES: f"{NEXT_TOKEN}={token}"}


class DeferredAnswers:
    """The answers of a server that are held for their clients."""

    def __init__(self, config: ServerConfig) -> None:
        self._capacity = config.memory_cache_capacity
        self._max_bytes = config.memory_cache_bytes
        self._expiration_s = config.memory_cache_expiration_s
        self._answers: OrderedDict[str, DeferredAnswer] = OrderedDict()  # least recently fetched first
        self._held_bytes = 0

    @property
    def unfetched(self) -> int:
        """How many held answers no client has fetched to the end."""
        return sum(not answer.fetched for answer in self._answers.values())

    def find(self, match: Match, headers: Mapping[str, str], key: ApiKey) -> tuple[DeferredAnswer, Answer] | None:
        """The answer whose token a request has, and the part of it that is asked for; None: it has none.

        A key finds only the answers to its own requests.

        Raises:
            PayloadError: nothing is held under this token, or `x-max-items` is no number of pieces.
        """
        defers = match.dialect is not None and match.dialect.defers
        token = _attribute(headers, STARTING_TOKEN) if defers else None
        if token is None:
            return None
        split = _TOKEN.fullmatch(token)
        answer = None if split is None else self._answers.get(split[1])
        if split is None or answer is None or not key.sees(answer.owner):
            raise PayloadError(f"{STARTING_TOKEN}: nothing is held under this token (any more)", STARTING_TOKEN)
        most = _attribute(headers, MAX_ITEMS)
        if most is not None and not re.fullmatch("[1-9][0-9]{0,8}", most):
            raise PayloadError(f"{MAX_ITEMS}: expected an integer >= 1, got {most!r}", MAX_ITEMS)
        self._answers.move_to_end(split[1])
        answer.keep_for(self._expiration_s)
        return answer, answer.part(int(split[2]), None if most is None else int(most))

    def wanted(self, match: Match, headers: Mapping[str, str]) -> bool:
        """Whether a request's answer is to be fetched later."""
        defers = match.dialect is not None and match.dialect.defers
        return defers and (_attribute(headers, SYNCHRONOUS) or "").lower() == "false"

    def make(self, model: ServedModel, dialect: Dialect, operation: str, body: Body, caller: Caller) -> DeferredAnswer:
        """An answer for a new call; nothing is held before the call is admitted.

        Raises:
            OverloadedError: as many as there may be are not complete yet.
        """
        owner = caller.key.name
        unended = [answer.owner for answer in self._answers.values() if not answer.ended]
        if not fits(owner, unended.count(owner), len(unended), self._capacity) or (
            len(self._answers) >= self._capacity and not self._make_room(owner, _one, 1)
        ):
            raise OverloadedError(
                f"{len(unended)} asynchronous requests are not answered yet, {unended.count(owner)} of them yours, and "
                f"there may be {self._capacity} (memory_cache_capacity{rule(owner)}): try again later"
            )
        return DeferredAnswer(self, model, dialect, operation, body, caller)

    def hold(self, answer: DeferredAnswer) -> None:
        """Hold an answer under its secret."""
        self._answers[answer.secret] = answer
        self.grew(answer, answer.size)
        if answer.ended:
            answer.keep_for(self._expiration_s)

    def grew(self, answer: DeferredAnswer, size: int) -> None:
        """Count bytes of an answer that is held; make room, or give it up."""
        if answer.secret not in self._answers:
            return
        self._held_bytes += size
        while self._held_bytes > self._max_bytes and self._make_room(answer.owner, _size, 0, but=answer):
            pass
        if self._held_bytes > self._max_bytes or not (answer.ended or self._shares(answer.owner)):
            self._held_bytes -= answer.size
            answer.refuse(
                OverloadedError(
                    f"this answer has no room among others of {self._max_bytes} bytes (memory_cache_size"
                    f"{rule(answer.owner)})"
                )
            )

    def _shares(self, owner: str) -> bool:
        """Whether the answers that an owner waits for leave as much room for others."""
        if fits(owner, self._held_bytes, self._held_bytes, self._max_bytes, 0):
            return True
        sizes = Counter[str]()
        for answer in self._answers.values():
            if not answer.ended:
                sizes[answer.owner] += answer.size
        return fits(owner, sizes[owner], sizes.total(), self._max_bytes, 0)

    def ended(self, answer: DeferredAnswer) -> None:
        """Hold a complete answer for some time."""
        answer.keep_for(self._expiration_s)

    def drop(self, secret: str) -> None:
        """Hold an answer no longer."""
        answer = self._answers.pop(secret, None)
        if answer is not None:
            answer.forget()
            self._held_bytes -= answer.size

    def _make_room(
        self, owner: str, amount: Callable[[DeferredAnswer], int], more: int, but: DeferredAnswer | None = None
    ) -> bool:
        """Drop a complete answer other than `but`: the least recently fetched of the owner who has the most, unless
        that is less than the owner in need would have. Returns whether there was one.

        Args:
            amount: what of an answer counts.
            more: what the owner needs beside what is held.
        """
        amounts = Counter[str]()
        for answer in self._answers.values():
            amounts[answer.owner] += amount(answer)
        for giver in givers(amounts, owner, amounts[owner] + more):
            for secret, answer in self._answers.items():
                if answer.owner == giver and answer.ended and answer is not but:
                    self.drop(secret)
                    return True
        return False


def _one(answer: DeferredAnswer) -> int:
    return 1


def _size(answer: DeferredAnswer) -> int:
    return answer.size


def _attribute(headers: Mapping[str, str], name: str) -> str | None:
    """The value of a header, or of SageMaker's custom attribute of this name."""
    if name in headers:
        return headers[name].strip()
    for pair in re.split("[,;]", headers.get(_ATTRIBUTES, "")):
        key, _, value = pair.partition("=")
        if key.strip().lower() == name:
            return value.strip()
    return None
