"""The formatter of answers to requests about texts, whatever the API: a piece for each text, and a whole around them.

Runs in the worker's event loop. Each result is encoded when it comes, so that a request of many texts does not hold the
loop at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from ....core.errors import ServingError
from ....core.text_tasks import Embedding
from ....formats.json_framing import JSON, encode_json
from ..base import AnswerFormatter


class Result(Protocol):
    """A result, with the number of tokens that the model has read."""

    @property
    def tokens(self) -> int: ...


ResultT = TypeVar("ResultT", bound=Result)


def encoded(value: Any) -> msgspec.Raw:
    """A value as JSON, to be a part of other JSON."""
    return msgspec.Raw(encode_json(value))


def rows_of(embedding: Embedding) -> list[Any]:
    """A vector's values; where there is a vector for each token, a list of these."""
    values = embedding.values.tolist()
    if len(embedding.shape) == 1:
        return values
    rows, width = embedding.shape
    return [values[row * width : (row + 1) * width] for row in range(rows)]


def ranked(scores: Sequence[float]) -> list[tuple[int, float]]:
    """(number, score) of each, the best first."""
    return sorted(enumerate(scores), key=lambda pair: pair[1], reverse=True)


class TaskFormatter(AnswerFormatter[ResultT]):
    """An answer that is not streamed.

    Args:
        item: from a text's number and result to its part of the answer.
        whole: from the parts and the number of all tokens to the answer.
        headers: further headers, such as the names without effect.

    Attributes:
        prompt_tokens: tokens that the model has read so far.
    """

    stream = False

    def __init__(
        self,
        item: Callable[[int, ResultT], Any],
        whole: Callable[[list[Any], int], Any],
        headers: Mapping[str, str],
    ) -> None:
        self.headers = {"content-type": JSON, **headers}
        self.prompt_tokens = 0
        self._item = item
        self._whole = whole
        self._items: list[Any] = []

    def push(self, part: ResultT, /) -> bytes:
        """Take the result of the next text."""
        self._items.append(self._item(len(self._items), part))
        self.prompt_tokens += part.tokens
        return b""

    def end(self) -> bytes:
        return encode_json(self._whole(self._items, self.prompt_tokens))

    def error(self, error: ServingError) -> bytes:
        raise NotImplementedError("an answer that is not streamed fails before it begins")
