"""What a dialect is: one API's routes, how its requests parse, and the shapes of its answers.

Routes and error shapes are used in the front end, parsing and answering in the worker. A dialect knows JSON shapes;
it does not tokenize, generate or do I/O, and imports no other dialect.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, Protocol

from ..config import ModelConfig
from ..errors import ServingError
from ..inputs import Input
from ..types import Chat, Delta, GenerateRequest

KEEP_ALIVE_S: Final = 15.0


class Kind(enum.Enum):
    """Where a route is answered."""

    GENERATE = enum.auto()  # worker: `parse`, then the engine, then the formatter
    QUERY = enum.auto()  # worker: `query`, for what only the loaded model knows
    PAGE = enum.auto()  # front end: `page`, without asking a worker


@dataclass(frozen=True)
class Route:
    """One row of the route table.

    `path` may hold `{model}` and `{version}` segments. `operation` tells the dialect which of its requests this is.
    A path without `{model}` asks `Dialect.model_of` for the model, and else belongs to the default model.
    """

    method: str
    path: str
    operation: str
    kind: Kind = Kind.GENERATE


@dataclass(frozen=True)
class TokenSpan:
    """A token of a text and the characters it covers: text[start:stop]."""

    id: int
    text: str
    start: int
    stop: int


class LoadedModel(Protocol):
    """What a query may ask the worker's model."""

    config: ModelConfig
    model_id: str
    dtype: str
    max_model_len: int
    max_batch_size: int

    def tokenize(self, text: str, add_special_tokens: bool = True) -> list[TokenSpan]:
        """The tokens of a text, special ones included (with an empty span)."""
        ...

    def render(self, chat: Chat) -> str:
        """A chat as the model's template writes it.

        Raises:
            PayloadError: no template, or the template refuses these messages.
        """
        ...


@dataclass(frozen=True)
class ModelStatus:
    """One loaded model (one version of it), as the front end sees it."""

    config: ModelConfig
    ready: bool
    failed: bool
    workers: int
    registered_s: float  # Unix time
    in_flight: int
    queued: int


class ServerView(Protocol):
    """What a page may ask the front end."""

    @property
    def models(self) -> Sequence[ModelStatus]:
        """Every registered model, in order of registration."""
        ...

    @property
    def ready(self) -> bool:
        """Whether every model has a ready worker and the server is not draining."""
        ...


@dataclass(frozen=True)
class Answer:
    """A whole answer: a page, a query's, or an error before the first byte."""

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

    #: What to send when a stream has been quiet for `KEEP_ALIVE_S`; b"": nothing.
    keep_alive: bytes = b""

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
    """One API. Instances hold no state."""

    name: ClassVar[str]
    routes: ClassVar[tuple[Route, ...]]

    @abc.abstractmethod
    def parse(self, inputs: Input, model: ModelConfig) -> Parsed:
        """Read a request (`inputs.operation` says which).

        Raises:
            PayloadError, ParameterError: with the field's path and what was expected.
        """

    def query(self, inputs: Input, model: LoadedModel) -> Answer:
        """Answer a QUERY route in the worker.

        Raises:
            PayloadError, ParameterError: as in `parse`.
        """
        raise NotImplementedError(f"{self.name} has no queries")

    def page(self, operation: str, server: ServerView, path_values: Mapping[str, str], body: bytes) -> Answer:
        """Answer a PAGE route in the front end, at once.

        Args:
            path_values: of the route's segments, `model` and `version`.

        Raises:
            ModelNotFoundError, PayloadError: answered through `error`.
        """
        raise NotImplementedError(f"{self.name} has no pages")

    def model_of(self, body: bytes) -> str | None:
        """The model a body names, where this API chooses models by a field of the body; asked only if several are
        loaded. Never raises: a body that can't be read is the worker's to refuse."""
        return None

    @abc.abstractmethod
    def error(self, error: ServingError, model: ModelConfig | None = None, *, inputs: Input | None = None) -> Answer:
        """`error` as this dialect answers it before the first byte. Retry-After is added for overload.

        `model` is known in the worker and, where the route found one, in the front end.
        """

    @abc.abstractmethod
    def stream_error(self, error: ServingError, content_type: str) -> bytes:
        """What ends a stream of `content_type` whose writer is gone (worker killed) or knows no formatter."""
