"""What a dialect is: one API's routes, how its requests parse, and the shapes of its answers.

Routes and error shapes are used in the front end, parsing and answering in the worker. A dialect knows JSON shapes;
it does not tokenize, generate or do I/O, and imports no other dialect.

A dialect documents itself for /openapi.json: each `Route` names the msgspec types of its body and of its answers, the
same types that the dialect reads and writes, and `Dialect.errors` those that any of its routes may answer besides.
Descriptions and constraints come from the types' `msgspec.Meta`.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol

from ..config import ModelConfig
from ..encode_decode import decode
from ..errors import OverloadedError, ServingError, UnavailableError
from ..forms import media_type
from ..inputs import Input
from ..output_formatter import JSON, JSONLINES, SSE, encode_json
from ..types import Chat, Delta, GenerateRequest
from .request_body import with_json

#: Streams of objects, each of which may be an error.
_LINES: Final = (SSE, JSONLINES, JSON, "application/x-ndjson", "application/jsonl", "")
KEEP_ALIVE_S: Final = 15.0

#: What may be answered, for /openapi.json: content type -> the type of the JSON there, as msgspec takes it. Where the
#: content type is a stream, the type of one line, or of one event's data. A tuple of types means any of them, and a
#: string among them is an event's data as it stands ("[DONE]"). No entries: an empty body.
Bodies = Mapping[str, Any]


class Kind(enum.Enum):
    """Where a route is answered."""

    GENERATE = enum.auto()  # worker: `parse`, then the engine, then the formatter
    QUERY = enum.auto()  # worker: `query`, for what only the loaded model knows
    PAGE = enum.auto()  # front end: `page`, without asking a worker


@dataclass(frozen=True)
class Route:
    """One row of the route table.

    `path` may hold `{model}` and `{version}` segments. `operation` tells the dialect which of its requests this is.
    A path without `{model}` asks `Dialect.model_of` for the model, and else belongs to the default model. A GET route
    answers HEAD too. Method `*` takes every method that no other row has. Two dialects may not claim one method and
    path; the front end's own pages (/ping, /metrics, /openapi.json) give way to a dialect's row.

    The rest is for /openapi.json: `summary` is a sentence, `request` the type of the JSON body, or a tuple of types
    (None: there is none), `responses` are by status, with `Dialect.errors` added to them.
    """

    method: str
    path: str
    operation: str
    kind: Kind = Kind.GENERATE
    summary: str = ""
    request: Any = field(default=None, compare=False)
    responses: Mapping[int, Bodies] = field(default_factory=dict, compare=False)


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
    capacity: int  # calls that its worker takes at once

    def tokenize(self, text: str, add_special_tokens: bool = True) -> list[TokenSpan]:
        """The tokens of a text, special ones included (with an empty span).

        Raises:
            ContextLengthError: they are too many to be listed.
        """
        ...

    def render(self, chat: Chat) -> str:
        """A chat as the model's template writes it.

        Raises:
            PayloadError: no template, or the template refuses these messages.
        """
        ...


@dataclass(frozen=True)
class Tally:
    """What became of the requests to a model since it was registered. Pages are not requests to a model.

    `succeeded` had a status below 400, `failed` had another, or a client that left. Seconds are those between a
    request's last byte and the answer's, added up. `last_s` is the Unix time of the last answer's end, 0.0 if none.
    """

    succeeded: int = 0
    succeeded_s: float = 0.0
    failed: int = 0
    failed_s: float = 0.0
    last_s: float = 0.0


@dataclass(frozen=True)
class ModelStatus:
    """One model (one version of it), as the front end sees it. An unloaded one is neither ready nor failed."""

    config: ModelConfig
    ready: bool
    failed: bool
    workers: int
    registered_s: float  # Unix time
    in_flight: int
    queued: int
    tally: Tally = Tally()


class ServerView(Protocol):
    """What a page may ask the front end, and ask it to do."""

    @property
    def models(self) -> Sequence[ModelStatus]:
        """Every registered model, in order of registration."""
        ...

    @property
    def ready(self) -> bool:
        """Whether there is a model, every one has a ready worker, and the server is not draining."""
        ...

    @property
    def unloaded(self) -> Sequence[ModelStatus]:
        """The models that have been unloaded and can be loaded again."""
        ...

    def select(self, name: str = "", version: str = "", unversioned: str = "") -> ModelStatus:
        """The model that a request with this name means, "" where it names none. See `Dialect.unversioned`.

        Raises:
            ModelNotFoundError: no model, or no version of it, has this name.
            ModelNotNamedError: several are loaded, and none is the default.
        """
        ...

    async def load(self, name: str) -> None:
        """Load every version of an unloaded model again, and wait until it can answer; nothing for a loaded one.

        Raises:
            ModelNotFoundError: the server knows no model of this name.
            ModelLoadError: it does not load; it stays, as failed.
        """
        ...

    async def unload(self, name: str) -> None:
        """Take every version of a model out of service, let its requests finish (`drain_timeout`), end its workers.

        Raises:
            ModelNotFoundError: no model of this name is loaded.
        """
        ...


@dataclass(frozen=True)
class Answer:
    """A whole answer: a page, a query's, or an error before the first byte."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "application/json"})


def retry_header(error: ServingError) -> dict[str, str]:
    """When to come back, where that helps: a client that is not told comes back at once."""
    if isinstance(error, OverloadedError | UnavailableError):
        return {"retry-after": str(error.retry_after_s)}
    return {}


class Formatter(abc.ABC):
    """Turns a request's generations into response bytes; one instance per request, pushed to, never pulled from.

    Attributes:
        stream: whether pieces leave as they come; otherwise `push` returns b"" and `end` everything.
        headers: of the 200 response, content-type included. An answer that is not streamed starts after `end`, which
            may add to them.
    """

    stream: bool
    headers: dict[str, str]

    #: Whether the answer has its tokens' log-probabilities; if not, nobody computes them.
    shows_logprobs: bool = True

    #: What to send when a stream has been quiet for `KEEP_ALIVE_S`; b"": nothing.
    keep_alive: bytes = b""

    @abc.abstractmethod
    def push(self, delta: Delta) -> bytes:
        """What one engine step gave one sequence. Each sequence's last delta, and no other, has `finish`."""

    @abc.abstractmethod
    def end(self) -> bytes:
        """What comes after every sequence has finished; once. One that does not stream may still add headers here."""

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
    routes: ClassVar[tuple[Route, ...]] = ()

    #: Rows of other dialects' that this one answers for some models (their `speaker` says so), for /openapi.json.
    shared: ClassVar[tuple[Route, ...]] = ()

    #: What this API calls the version of a model that has none; such a model is found under it.
    unversioned: ClassVar[str] = ""

    #: What any route may answer besides its `responses`, by status; for /openapi.json.
    errors: ClassVar[Mapping[int, Bodies]] = {}

    @abc.abstractmethod
    def parse(self, inputs: Input, model: ModelConfig) -> Parsed:
        """Read a request (`inputs.operation` says which).

        Raises:
            PayloadError, ParameterError: with the field's path and what was expected.
        """

    def payload(self, inputs: Input) -> Any:
        """The body as a value, for an @input_formatter that takes one. As JSON it is a body that `parse` reads.

        Raises:
            PayloadError: the body is not what its content-type says.
        """
        return decode(inputs, inputs.get_property("content-type"))

    def with_payload(self, inputs: Input, payload: Any) -> Input:
        """The same call, whose payload is another, as JSON."""
        return with_json(inputs, encode_json(payload))

    def query(self, inputs: Input, model: LoadedModel) -> Answer:
        """Answer a QUERY route in the worker.

        Raises:
            PayloadError, ParameterError: as in `parse`.
        """
        raise NotImplementedError(f"{self.name} has no queries")

    def page(
        self, operation: str, server: ServerView, path_values: Mapping[str, str], body: bytes
    ) -> Answer | Awaitable[Answer]:
        """Answer a PAGE route in the front end: at once, or (`load`, `unload`) when something has been done.

        Args:
            path_values: of the route's variable segments, by name: `model`, `version`, ...

        Raises:
            ServingError: ModelNotFoundError, PayloadError, ...; answered through `error`.
        """
        raise NotImplementedError(f"{self.name} has no pages")

    def speaker(self, operation: str, model: ModelConfig) -> str:
        """The name of the dialect that answers a GENERATE or QUERY operation for this model: another one's where an
        option of the model says so and two APIs share a path. That one has an operation of the same name."""
        return self.name

    def model_of(self, body: bytes) -> str | None:
        """The model a body names, where this API chooses models by a field of the body; asked only if several are
        loaded.

        Raises:
            PayloadError, ParameterError: the body can't be read, as in `parse`.
        """
        return None

    @abc.abstractmethod
    def error(
        self,
        error: ServingError,
        model: ModelConfig | None = None,
        *,
        operation: str = "",
        inputs: Input | None = None,
    ) -> Answer:
        """`error` as this dialect answers it before the first byte. Retry-After is added for overload.

        `model` is known in the worker and, where the route found one, in the front end; so is `operation`. `inputs`
        are there only in the worker.
        """

    def last_words(
        self, error: ServingError, headers: Mapping[str, str], model: ModelConfig | None = None
    ) -> bytes | None:
        """What ends a stream that fails: `stream_error`'s, where the stream has a place for it. None: it is to break
        off, because a client would take anything for a part of what it asked for."""
        kind = media_type(headers.get("content-type", ""))
        return self.stream_error(error, headers, model) if kind in _LINES else None

    @abc.abstractmethod
    def stream_error(self, error: ServingError, headers: Mapping[str, str], model: ModelConfig | None = None) -> bytes:
        """What ends a stream whose writer is gone (worker killed) or knows no formatter.

        Args:
            headers: those that the stream began with, names in lower case; what kind of stream it is they say.
        """
