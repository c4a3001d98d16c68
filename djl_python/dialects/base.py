"""What a dialect is: one API's routes, how its requests parse, and the shapes of its answers.

Routes and error shapes are used in the front end, parsing and answering in the worker. A dialect knows JSON shapes;
it does not tokenize, generate or do I/O, and imports no other dialect.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from ..config import ModelConfig
from ..errors import ServingError
from ..inputs import Input
from ..types import Delta, GenerateRequest


@dataclass(frozen=True)
class Route:
    """One row of the route table.

    `path` may hold `{model}` and `{version}` segments. `operation` tells the dialect which of its requests this is.
    """

    method: str
    path: str
    operation: str


@dataclass(frozen=True)
class ErrorAnswer:
    """An error as one dialect writes it: before the first byte of the answer."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "application/json"})


class Formatter(abc.ABC):
    """Turns a request's generations into response bytes; one instance per request, pushed to, never pulled from.

    Attributes:
        stream: whether pieces leave as they come; otherwise `push` returns b"" and `end` everything.
        headers: of the 200 response, content-type included.
    """

    stream: bool
    headers: dict[str, str]

    @abc.abstractmethod
    def push(self, delta: Delta) -> bytes:
        """What one engine step gave one sequence. Each sequence's last delta, and no other, has `finish`."""

    @abc.abstractmethod
    def end(self) -> bytes:
        """What comes after every sequence has finished; once."""

    @abc.abstractmethod
    def error(self, error: ServingError) -> bytes:
        """What ends a stream that has already begun."""


@dataclass(frozen=True)
class Parsed:
    """A request in this project's terms, one for each prompt, and who writes the answer."""

    requests: tuple[GenerateRequest, ...]
    formatter: Formatter


class Dialect(abc.ABC):
    """One API."""

    name: ClassVar[str]
    routes: ClassVar[tuple[Route, ...]]

    @abc.abstractmethod
    def parse(self, inputs: Input, model: ModelConfig) -> Parsed:
        """Read a request (`inputs.operation` says which).

        Raises:
            PayloadError, ParameterError: with the field's path and what was expected.
        """

    @abc.abstractmethod
    def error(
        self, error: ServingError, model: ModelConfig | None = None, *, inputs: Input | None = None
    ) -> ErrorAnswer:
        """`error` as this dialect answers it before the first byte. Retry-After is added for overload.

        `model` is known in the worker and, where the route found one, in the front end.
        """

    @abc.abstractmethod
    def stream_error(self, error: ServingError, content_type: str) -> bytes:
        """What ends a stream of `content_type` whose writer is gone (worker killed) or knows no formatter."""
