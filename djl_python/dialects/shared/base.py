"""The interface of a dialect: one API's routes, the parsing of its requests, and the shapes of its answers.

Routes and error shapes are used in the front end, parsing and answering in the worker. A dialect knows JSON shapes;
it does not tokenize, generate or do I/O, and imports no other dialect.

A dialect documents itself for /openapi.json: each `Route` names the msgspec types of its request and its responses, the
same types that the dialect reads and writes; `Dialect.errors` adds the responses that any of its routes may give.
Descriptions and constraints come from the types' `msgspec.Meta`.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, TypeVar

from ...compat.encode_decode import decode
from ...config import ModelConfig
from ...config.tasks import TEXT_GENERATION
from ...core.access.scopes import Scope
from ...core.errors import OverloadedError, ServingError, TaskError, UnavailableError
from ...core.types import Delta, GenerateRequest
from ...formats.forms import media_type
from ...formats.json_framing import JSONLINES_TYPES, SSE, encode_json
from ...inputs import Input
from .adapters import adapter_of_model, field_before_parsing
from .request_body import with_json
from .views import QueriedModel, ServerView

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
    """The process and the method that answer a route."""

    GENERATE = enum.auto()  # worker: `parse`, then the engine, then the formatter
    QUERY = enum.auto()  # worker: `query`, which needs the loaded model
    PAGE = enum.auto()  # front end: `page`, without asking a worker
    KEPT = enum.auto()  # front end: the server itself, from its files and batches


@dataclass(frozen=True)
class Route:
    """One row of the route table.

    `path` may have `{model}` and `{version}` segments. `operation` is the dialect's name for the request.
    Without `{model}`, `Dialect.model_of`, the query or a header names the model; else it is the default model. A GET
    route answers HEAD too. Method `*` takes every method that no other row of the path has. Two dialects may not claim
    one method and path; a dialect's row overrides the front end's own page (/ping, /metrics, /openapi.json).

    `scope`: who may use it.

    The rest is for /openapi.json: `summary` is a sentence, `request` the type of the JSON body or a tuple of types
    (None: no body), `query` the type of the query's parameters, which may be in the body instead if both are the same
    type; `form`: the body is a form with a file in it, with `request`'s fields, which is taken as it arrives. `example`
    is a JSON body with the required fields alone, which a server of one model of the route's tasks answers.
    `headers` are what the request may have in its headers, in a sentence each.
    `responses` are by status; `Dialect.errors` are added to them.
    """

    method: str
    path: str
    operation: str
    kind: Kind = Kind.GENERATE
    summary: str = ""
    request: Any = field(default=None, compare=False)
    responses: Mapping[int, Bodies] = field(default_factory=dict, compare=False)
    scope: Scope = Scope.INFER
    query: Any = field(default=None, compare=False)
    form: bool = False
    example: Any = field(default=None, compare=False)
    headers: Mapping[str, str] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Answer:
    """A whole response: a page, a query's answer, or an error before a stream's first byte."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "application/json"})


@dataclass(frozen=True)
class StreamedAnswer:
    """A page that comes in pieces, with status 200. An error between two ends it as `failed_stream_end` says."""

    pieces: AsyncGenerator[bytes, None]
    headers: Mapping[str, str]


def retry_header(error: ServingError) -> dict[str, str]:
    """Retry-After for overload and unavailability: without it, clients retry at once."""
    if isinstance(error, OverloadedError | UnavailableError):
        return {"retry-after": str(error.retry_after_s)}
    return {}


class AnswerFormatter(abc.ABC, Generic[PartT]):
    """Turns the parts of an answer into response bytes; one instance per request, which the parts are pushed to.

    A part depends on the task: for generated text, it is a sequence's delta of a step (`Formatter`); for other tasks,
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

    #: Whether a prompt that fails has its error in its place, beside the answers to the other prompts (`fail_item`).
    isolates: bool = False

    def prepared(self, prompt_ids: Sequence[list[int]], *, splits_reasoning: bool) -> None:
        """Called before the first delta with the token ids of each prompt, and whether reasoning is split off."""
        return

    def fail_item(self, index: int, error: ServingError) -> None:
        """Take the error of the `index`-th prompt; no delta of it follows. Called only if `isolates` is true."""
        raise NotImplementedError(f"{type(self).__name__} has no errors of single prompts")


@dataclass(frozen=True)
class Parsed:
    """A parsed request for text: a `GenerateRequest` for each prompt, and the formatter of the answer.

    Without prompts, the answer is what the formatter's `end` returns: the request only has the model loaded.
    """

    requests: tuple[GenerateRequest, ...]
    formatter: Formatter


@dataclass(frozen=True)
class ParsedTask(Generic[RequestT, PartT]):
    """A parsed request for another task than text generation.

    Attributes:
        requests: one for each input.
        formatter: writes the answer, from a part for each input.
        priority: the body's; None: the body has none.
    """

    requests: tuple[RequestT, ...]
    formatter: AnswerFormatter[PartT]
    priority: int | None = None


#: Reads a request for a task that is not text generation; raises as `Dialect.parse` does.
TaskParser = Callable[[Input, ModelConfig], ParsedTask[Any, Any]]
#: Routes for models of any task.
ANY_TASK_PATH: Final = "/invocations"


def parses(operation: str, parser: TaskParser, *tasks: str) -> dict[tuple[str, str], TaskParser]:
    """The rows of `Dialect.task_parsers` for an operation that models of several tasks answer."""
    return {(task, operation): parser for task in tasks}


class Dialect(abc.ABC):
    """One API. Instances hold no state."""

    name: ClassVar[str]
    #: The API in a sentence; for /openapi.json.
    summary: ClassVar[str] = ""
    routes: ClassVar[tuple[Route, ...]] = ()

    #: Routes of other dialects that this one answers for some models (their `answering_dialect`); for /openapi.json.
    shared: ClassVar[tuple[Route, ...]] = ()

    #: How requests for other tasks than text generation are read: (task, operation) -> their parser.
    task_parsers: ClassVar[Mapping[tuple[str, str], TaskParser]] = {}

    #: Whether answers may be fetched later, by a token (DJL's asynchronous requests).
    defers: ClassVar[bool] = False

    #: The operation whose answers the server keeps (OpenAI's responses); "": none.
    keeps: ClassVar[str] = ""

    #: Whether requests open and close sessions, and may be in one (LMI's stateful sessions).
    has_sessions: ClassVar[bool] = False

    #: The field of a JSON body that names the model, where `model_of` reads no other: "" if there is none. From a large
    #: body, `model_of` gets this field alone.
    model_field: ClassVar[str] = ""

    #: The field of a JSON body that says how long its model stays loaded; "" if there is none. From a large body,
    #: `keep_alive_s` gets this field alone.
    keep_alive_field: ClassVar[str] = ""

    #: Whether bodies are JSON whatever their Content-Type says, if there is one: curl calls what it sends a form.
    #: Pages of other sites may send such bodies unasked, so they are refused at each of the server's addresses.
    any_content_type: ClassVar[bool] = False

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
            TaskError: the API has no such requests for models of this task.
            PayloadError, ParameterError: as in `parse`.
        """
        parser = self.task_parsers.get((task, inputs.operation))
        if parser is None:
            raise self.wrong_task(task, model)
        return parser(inputs, model)

    def wrong_task(self, task: str, model: ModelConfig) -> TaskError:
        """The refusal of a request for models of another task; it names this model's routes."""
        of_task = {operation for other, operation in self.task_parsers if other == task}
        others = {operation for _, operation in self.task_parsers}
        paths = [
            route.path
            for route in (*self.routes, *self.shared)
            if route.operation in of_task
            or (task == TEXT_GENERATION and route.kind is Kind.GENERATE and route.operation not in others)
        ]
        asked = ", ".join(dict.fromkeys([*paths, ANY_TASK_PATH]))
        return TaskError(f"model {model.name!r} is for {task}, and this path is not; ask it at {asked}")

    def payload(self, inputs: Input) -> Any:
        """The body as a value, for an @input_formatter that takes one. Encoded as JSON, it is a body for `parse`.

        Raises:
            PayloadError: the body is not what its content-type says.
        """
        return decode(inputs, inputs.get_property("content-type"))

    def with_payload(self, inputs: Input, payload: Any) -> Input:
        """A copy of the call whose body is this payload, encoded as JSON."""
        return with_json(inputs, encode_json(payload))

    def adapters_of(self, inputs: Input, model: ModelConfig) -> Sequence[str]:
        """The LoRA adapters that a call names before an @input_formatter has read it: one for each prompt, or one for
        all; "" and none at all are the base model. Here: what `model_field` names.

        Raises:
            ParameterError: the model has no such adapter.
        """
        named = field_before_parsing(inputs, model, self.model_field) if self.model_field else None
        return [adapter_of_model(named, model)] if isinstance(named, str) else []

    def query(self, inputs: Input, model: QueriedModel) -> Answer:
        """Answer a QUERY route in the worker.

        Raises:
            PayloadError: the body is not what the operation takes.
            ParameterError: a field of it has a value that is not allowed.
        """
        raise NotImplementedError(f"{self.name} has no queries")

    def page(
        self, operation: str, server: ServerView, path_values: Mapping[str, str], body: bytes
    ) -> Answer | StreamedAnswer | Awaitable[Answer]:
        """Answer a PAGE route in the front end: at once, or after waiting for `load` or `unload`.

        Args:
            path_values: the values of the route's variable segments, by name: `model`, `version`, ...

        Raises:
            ServingError: ModelNotFoundError, PayloadError, ...; answered through `error`.
        """
        raise NotImplementedError(f"{self.name} has no pages")

    def answering_dialect(self, operation: str, model: ModelConfig, task: str, body: bytes) -> str:
        """The name of the dialect that answers a GENERATE or QUERY operation for this model. Where two APIs share a
        path, the other dialect, which has an operation of the same name, may be chosen by an option of the model, by
        its task (`ModelStatus.task`) or by the body."""
        return self.name

    def queued(self, body: bytes, context: bytes, model: ModelConfig) -> bytes:
        """The answer at once to a request whose response is made in the background. Called in a thread of the front
        end, which does not know the checkpoint.

        Args:
            context: see `protocol.Call`.

        Raises:
            PayloadError, ParameterError: as `parse`.
        """
        raise NotImplementedError(f"{self.name} keeps no answers")

    def model_of(self, body: bytes) -> str | None:
        """The model that a body names, in APIs that choose the model by a field of the body. Called only if several
        models are loaded.

        Raises:
            PayloadError, ParameterError: the body can't be read.
        """
        return None

    def keep_alive_s(self, body: bytes) -> float | None:
        """How many seconds the model stays loaded without a request from this one on, as its body says; `math.inf`: for
        ever, None: as its settings say.

        Raises:
            ParameterError: the body says something else.
        """
        return None

    def unloading(self, operation: str, body: bytes) -> Answer | None:
        """The answer to a request that only has its model unloaded, and needs no worker for it; None: it is another.

        Raises:
            ParameterError: as `keep_alive_s`.
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

    def waiting_stream(self, operation: str, body: bytes, model: ModelConfig) -> Mapping[str, str] | None:
        """The headers of the server-sent events with which the built-in handler answers a request, if these may begin
        while its model is loading, with comments as signs of life. None: the answer waits.
        """
        return None

    def late_error(self, body: bytes) -> bytes:
        """The bytes that end such a stream where the answer turns out to be an error; `body` is that of `error`."""
        return b"data: " + body.strip() + b"\n\n"

    def failed_stream_end(
        self, error: ServingError, headers: Mapping[str, str], model: ModelConfig | None = None
    ) -> bytes | None:
        """The bytes that end a failed stream: `stream_error`'s, if the content type has a place for errors. None: the
        connection breaks off, because a client would take any bytes for content.
        """
        kind = media_type(headers.get("content-type", ""))
        return self.stream_error(error, headers, model) if kind in _OF_OBJECTS else None

    @abc.abstractmethod
    def stream_error(self, error: ServingError, headers: Mapping[str, str], model: ModelConfig | None = None) -> bytes:
        """The bytes that end a stream without its formatter: the worker was killed, or the handler used none.

        Args:
            headers: the headers that the stream began with, names in lower case; they tell the kind of stream.
        """
