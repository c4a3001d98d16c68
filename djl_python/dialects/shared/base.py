"""What a dialect is: one API's routes, the parsing of its requests, and the shapes of its answers.

Routes and error shapes are used in the front end, parsing and answering in the worker. A dialect knows JSON shapes;
it does not tokenize, generate or do I/O, and imports no other dialect.

A dialect documents itself for /openapi.json: each `Route` names the msgspec types of its request and its responses, the
same types that the dialect reads and writes; `Dialect.errors` adds the responses that any of its routes may give.
Descriptions and constraints come from the types' `msgspec.Meta`.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from ...config import ModelConfig
from ...core.engine_info import EngineInfo
from ...core.errors import OverloadedError, PayloadError, ServingError, UnavailableError
from ...core.types import Chat, Delta, GenerateRequest
from ...encode_decode import decode
from ...formats.forms import media_type
from ...formats.json_framing import JSONLINES_TYPES, SSE, encode_json
from ...inputs import Input
from .request_body import with_json

RequestT = TypeVar("RequestT")
PartT = TypeVar("PartT")

#: Content types of streams of JSON objects, in which an error can be one of the objects.
_OF_OBJECTS: Final = (SSE, *JSONLINES_TYPES)
KEEP_ALIVE_S: Final = 15.0

#: Possible response bodies, for /openapi.json: content type -> msgspec type of the JSON. For a stream, the type of one
#: line or of one event's data. A tuple of types means any of them, and a string in it is an event's literal data
#: ("[DONE]"). No entries: an empty body.
Bodies = Mapping[str, Any]


class Kind(enum.Enum):
    """Where a route is answered."""

    GENERATE = enum.auto()  # worker: `parse`, then the engine, then the formatter
    QUERY = enum.auto()  # worker: `query`, for what only the loaded model knows
    PAGE = enum.auto()  # front end: `page`, without asking a worker
    KEPT = enum.auto()  # front end: the server itself, of what it keeps (files and batches)


@dataclass(frozen=True)
class Route:
    """One row of the route table.

    `path` may have `{model}` and `{version}` segments. `operation` is the dialect's name for the request.
    Without `{model}`, `Dialect.model_of`, the query or a header names the model; else it is the default model. A GET
    route answers HEAD too. Method `*` takes every method that no other row of the path has. Two dialects may not claim
    one method and path; a dialect's row overrides the front end's own page (/ping, /metrics, /openapi.json).

    `manages`: whether it changes the server, or shows what only its operator should see; not every client may use it.

    The rest is for /openapi.json: `summary` is a sentence, `request` the type of the JSON body or a tuple of types
    (None: no body), `query` the type of the query's parameters, which may be in the body instead if both are the same
    type; `form`: the body is a form with a file in it, with `request`'s fields, which is taken as it arrives.
    `responses` are by status; `Dialect.errors` are added to them.
    """

    method: str
    path: str
    operation: str
    kind: Kind = Kind.GENERATE
    summary: str = ""
    request: Any = field(default=None, compare=False)
    responses: Mapping[int, Bodies] = field(default_factory=dict, compare=False)
    manages: bool = False
    query: Any = field(default=None, compare=False)
    form: bool = False


@dataclass(frozen=True)
class TokenSpan:
    """A token of a text and the characters it covers: text[start:stop]."""

    id: int
    text: str
    start: int
    stop: int


class QueriedModel(Protocol):
    """A worker's model, as far as queries ask about it."""

    config: ModelConfig
    model_id: str
    engine: EngineInfo
    dtype: str  # of the engine, or as far as the configuration says
    max_model_len: int
    capacity: int  # calls that the worker takes at once

    def tokenize(self, text: str, add_special_tokens: bool = True) -> list[TokenSpan]:
        """The tokens of a text, special ones included (with an empty span).

        Raises:
            ContextLengthError: the text has too many tokens to be listed.
        """
        ...

    def render(self, chat: Chat) -> str:
        """The prompt text that the model's chat template makes of a chat.

        Raises:
            PayloadError: the model has no template, or the template refuses these messages.
        """
        ...


@dataclass(frozen=True)
class RequestCounts:
    """The outcomes of the requests to a model since it was registered; PAGE routes do not count.

    `succeeded` counts statuses below 400, `failed` other statuses and clients that disconnected. Their seconds are the
    sums of the times from a request's last byte to the answer's. `last_s` is the Unix time at which the last answer
    ended, 0.0 if none did.
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
    tally: RequestCounts = RequestCounts()
    engine: EngineInfo | None = None  # what runs it in a worker, once one is ready and has an engine


class ServerView(Protocol):
    """What a page can ask the front end, and make it do."""

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
        """The model that a request names; `name` is "" if it names none. See `Dialect.unversioned`.

        Raises:
            ModelNotFoundError: no model, or no version of it, has this name.
            ModelNotNamedError: several are loaded, and none is the default.
        """
        ...

    async def load(self, name: str) -> None:
        """Load every version of a model, again if it is loaded, and wait until all versions can answer.

        Raises:
            ModelNotFoundError: the server knows no model of this name.
            ModelLoadError: a version did not load; it stays registered, as failed, or as it was.
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
    """A whole response: a page, a query's answer, or an error before a stream's first byte."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "application/json"})


def retry_header(error: ServingError) -> dict[str, str]:
    """Retry-After for overload and unavailability: a client that is not told when to retry does so at once."""
    if isinstance(error, OverloadedError | UnavailableError):
        return {"retry-after": str(error.retry_after_s)}
    return {}


class AnswerFormatter(abc.ABC, Generic[PartT]):
    """Turns the parts of an answer into response bytes; one instance per request, which the parts are pushed to.

    What a part is depends on the task: of generated text, what a step gave a sequence (`Formatter`); of other tasks,
    the answer to one input: a vector, labels with their scores, a span.

    Attributes:
        stream: whether `push` returns the pieces of the body; otherwise it returns b"" and `end` the whole body.
        headers: the headers of the 200 response, content-type included. A response that is not streamed starts after
            `end`, which may add to them.
    """

    stream: bool
    headers: dict[str, str]

    #: Bytes to send when a stream has been quiet for `KEEP_ALIVE_S`; b"": nothing.
    keep_alive: bytes = b""

    @abc.abstractmethod
    def push(self, part: PartT, /) -> bytes:
        """The bytes for one part."""

    @abc.abstractmethod
    def end(self) -> bytes:
        """The bytes after the last part; called once. Without `stream`, headers may be added here."""

    @abc.abstractmethod
    def error(self, error: ServingError) -> bytes:
        """The bytes that end a stream which has already begun."""


class Formatter(AnswerFormatter[Delta]):
    """Turns generated text into response bytes. Only each sequence's last delta has `finish`."""

    #: Whether the answer reports its tokens' log-probabilities; if not, they are not computed.
    shows_logprobs: bool = True

    def tokenized(self, prompt_ids: Sequence[list[int]]) -> None:
        """Told the token ids of each prompt, before the first delta."""
        return


@dataclass(frozen=True)
class Parsed:
    """A parsed request for text: a `GenerateRequest` for each prompt, and the formatter of the answer."""

    requests: tuple[GenerateRequest, ...]
    formatter: Formatter


@dataclass(frozen=True)
class ParsedTask(Generic[RequestT, PartT]):
    """A parsed request for something else than text: what the task's handler takes for each input, and the formatter
    of the answer, which gets a part for each."""

    requests: tuple[RequestT, ...]
    formatter: AnswerFormatter[PartT]


#: Reads a request for a task that is not text generation; raises as `Dialect.parse` does.
TaskParser = Callable[[Input, ModelConfig], ParsedTask[Any, Any]]


class Dialect(abc.ABC):
    """One API. Instances hold no state."""

    name: ClassVar[str]
    routes: ClassVar[tuple[Route, ...]] = ()

    #: Routes of other dialects that this one answers for some models (their `answering_dialect`); for /openapi.json.
    shared: ClassVar[tuple[Route, ...]] = ()

    #: How requests for other tasks than text generation are read: (task, operation) -> their parser.
    task_parsers: ClassVar[Mapping[tuple[str, str], TaskParser]] = {}

    #: Whether answers may be fetched later, by a token (DJL's asynchronous requests).
    defers: ClassVar[bool] = False

    #: Whether requests open and close sessions, and may be in one (LMI's stateful sessions).
    has_sessions: ClassVar[bool] = False

    #: The version under which this API finds a model that has none.
    unversioned: ClassVar[str] = ""

    #: Responses that any route may give in addition to its `responses`, by status; for /openapi.json.
    errors: ClassVar[Mapping[int, Bodies]] = {}

    @abc.abstractmethod
    def parse(self, inputs: Input, model: ModelConfig) -> Parsed:
        """Read a request for text (`inputs.operation` says which).

        Raises:
            PayloadError, ParameterError: with the field's path and what was expected.
        """

    def parse_task(self, task: str, inputs: Input, model: ModelConfig) -> ParsedTask[Any, Any]:
        """Read a request for another task than text generation, with the parser of `task_parsers`.

        Raises:
            PayloadError, ParameterError: the API has no such requests for models of this task, or as in `parse`.
        """
        parser = self.task_parsers.get((task, inputs.operation))
        if parser is None:
            raise PayloadError(f"model {model.name!r} is for {task}, and this path is not")
        return parser(inputs, model)

    def payload(self, inputs: Input) -> Any:
        """The body as a value, for an @input_formatter that takes one. Encoded as JSON, it is a body for `parse`.

        Raises:
            PayloadError: the body is not what its content-type says.
        """
        return decode(inputs, inputs.get_property("content-type"))

    def with_payload(self, inputs: Input, payload: Any) -> Input:
        """A copy of the call whose body is this payload, encoded as JSON."""
        return with_json(inputs, encode_json(payload))

    def query(self, inputs: Input, model: QueriedModel) -> Answer:
        """Answer a QUERY route in the worker.

        Raises:
            PayloadError: the body is not what the operation takes.
            ParameterError: a field of it has a value that is not allowed.
        """
        raise NotImplementedError(f"{self.name} has no queries")

    def page(
        self, operation: str, server: ServerView, path_values: Mapping[str, str], body: bytes
    ) -> Answer | Awaitable[Answer]:
        """Answer a PAGE route in the front end: at once, or after waiting for `load` or `unload`.

        Args:
            path_values: the values of the route's variable segments, by name: `model`, `version`, ...

        Raises:
            ServingError: ModelNotFoundError, PayloadError, ...; answered through `error`.
        """
        raise NotImplementedError(f"{self.name} has no pages")

    def answering_dialect(self, operation: str, model: ModelConfig) -> str:
        """The name of the dialect that answers a GENERATE or QUERY operation for this model. Where two APIs share a
        path, an option of the model may choose the other dialect, which has an operation of the same name."""
        return self.name

    def model_of(self, body: bytes) -> str | None:
        """The model that a body names, in APIs that choose the model by a field of the body. Called only if several
        models are loaded.

        Raises:
            PayloadError, ParameterError: the body can't be read.
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
        """The response to `error` before the first byte. Retry-After is added for overload.

        The worker passes `model`, `operation` and `inputs`; the front end passes `model` and `operation` if it found
        them, and never `inputs`.
        """

    def failed_stream_end(
        self, error: ServingError, headers: Mapping[str, str], model: ModelConfig | None = None
    ) -> bytes | None:
        """The bytes that end a failed stream: `stream_error`'s, if the content type has a place for errors. None: break
        the connection off, because a client would take any bytes for content."""
        kind = media_type(headers.get("content-type", ""))
        return self.stream_error(error, headers, model) if kind in _OF_OBJECTS else None

    @abc.abstractmethod
    def stream_error(self, error: ServingError, headers: Mapping[str, str], model: ModelConfig | None = None) -> bytes:
        """The bytes that end a stream without its formatter: the worker was killed, or the handler used none.

        Args:
            headers: the headers that the stream began with, names in lower case; they tell the kind of stream.
        """
