"""TGI's answers: one JSON object, or a server-sent event for each token.

Runs in the worker. Source: TGI 2.3.2's OpenAPI document; headers as its router sends them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType

from ...core.errors import ServingError
from ...core.types import Delta, Finish, TopToken
from ...core.types import Token as GeneratedToken
from ...formats.json_framing import JSON, encode_json
from ..shared.base import Formatter
from ..shared.typed_errors import typed_event
from ..shared.typed_stream import TypedStreamFormatter
from .types import BestOfSequence, Details, GenerateResponse, PrefillToken, StreamDetails, StreamResponse, Token


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The options of an answer.

    Attributes:
        full_text: a prefix for each generated text: the prompt as the client sent it, or nothing.
        alternatives: whether top_tokens were asked for.
        headers: response headers, streamed or not.
    """

    details: bool = False
    full_text: str = ""
    alternatives: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Sequence:
    """One sequence of an answer that is not streamed; `tokens` only where details were asked for."""

    tokens: list[GeneratedToken] = field(default_factory=list)
    finish: Finish | None = None


class WholeFormatter(Formatter):
    """One JSON object, or with `wrap` a list of one. `headers` are complete once `end` has been called."""

    stream = False

    def __init__(self, shape: Shape, *, wrap: bool = False) -> None:
        self.headers = {"content-type": JSON, **shape.headers}
        self.shows_logprobs = shape.details
        self._shape = shape
        self._wrap = wrap
        self._sequences: defaultdict[int, _Sequence] = defaultdict(_Sequence)

    def push(self, delta: Delta) -> bytes:
        sequence = self._sequences[delta.choice]
        if self._shape.details:
            sequence.tokens += delta.tokens
        if delta.finish is not None:
            sequence.finish = delta.finish
        return b""

    def end(self) -> bytes:
        ended = [
            (sequence.tokens, sequence.finish)
            for _, sequence in sorted(self._sequences.items())
            if sequence.finish is not None
        ]
        (tokens, finish), *others = ended
        self.headers |= _measures(finish, [finish, *(other for _, other in others)])
        details: Details | UnsetType = UNSET
        if self._shape.details:
            details = Details(
                finish_reason=finish.reason,
                generated_tokens=finish.generated_tokens,
                seed=finish.seed,
                prefill=_prefill(finish),
                tokens=_tokens(tokens),
                best_of_sequences=[self._other(*other) for other in others] or UNSET,
                top_tokens=self._top_tokens(tokens),
            )
        answer = GenerateResponse(generated_text=self._shape.full_text + finish.text, details=details)
        return encode_json([answer] if self._wrap else answer)

    def error(self, error: ServingError) -> bytes:
        return typed_event(error)

    def _other(self, tokens: list[GeneratedToken], finish: Finish) -> BestOfSequence:
        return BestOfSequence(
            generated_text=self._shape.full_text + finish.text,
            finish_reason=finish.reason,
            generated_tokens=finish.generated_tokens,
            seed=finish.seed,
            prefill=_prefill(finish),
            tokens=_tokens(tokens),
            top_tokens=self._top_tokens(tokens),
        )

    def _top_tokens(self, tokens: list[GeneratedToken]) -> list[list[Token]] | UnsetType:
        return [_tokens(token.top) for token in tokens] if self._shape.alternatives else UNSET


class StreamFormatter(TypedStreamFormatter):
    """An event for each token, numbered from 1; the last one has the text and, where asked for, details."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape.headers)
        self._shape = shape
        self._index = 0

    def _event(self, token: GeneratedToken, finish: Finish | None) -> StreamResponse:
        self._index += 1
        return StreamResponse(
            index=self._index,
            token=_token(token),
            top_tokens=_tokens(token.top) if self._shape.alternatives else UNSET,
            generated_text=None if finish is None else self._shape.full_text + finish.text,
            details=None if finish is None or not self._shape.details else _stream_details(finish),
        )


def _stream_details(finish: Finish) -> StreamDetails:
    return StreamDetails(
        finish_reason=finish.reason,
        generated_tokens=finish.generated_tokens,
        seed=finish.seed,
        input_length=finish.prompt_tokens,
    )


def _token(token: GeneratedToken | TopToken) -> Token:
    return Token(token.id, token.text, token.logprob, token.special)


def _tokens(tokens: Iterable[GeneratedToken | TopToken]) -> list[Token]:
    return [_token(token) for token in tokens]


def _prefill(finish: Finish) -> list[PrefillToken]:
    return [PrefillToken(token.id, token.text, token.logprob) for token in finish.prefill]


def _measures(best: Finish, finishes: list[Finish]) -> dict[str, str]:
    """The router's headers about times and lengths, of the best sequence; the total time is the slowest sequence's."""
    timings = best.timings
    total_s = max(each.timings.validation_s + each.timings.queue_s + each.timings.inference_s for each in finishes)
    return {
        "x-compute-time": f"{total_s:.9f}",
        "x-total-time": _ms(total_s),
        "x-validation-time": _ms(timings.validation_s),
        "x-queue-time": _ms(timings.queue_s),
        "x-inference-time": _ms(timings.inference_s),
        "x-time-per-token": _ms(timings.inference_s / max(best.generated_tokens, 1)),
        "x-prompt-tokens": str(best.prompt_tokens),
        "x-generated-tokens": str(best.generated_tokens),
    }


def _ms(seconds: float) -> str:
    """Whole milliseconds."""
    return str(round(seconds * 1000))
