"""The messages between processes.

Runs in every process. Nobody polls. The only acknowledgement is `Taken`, which streams of user handlers wait for. A
process that has nothing to send sends a `Beat` about once a second. The connections between front end and worker and
between worker and engine carry these messages and nothing else; `framing` makes bytes of them.

Example:
    A request for two tokens: the front end sends the worker `Call(7, ...)`; the worker parses the body and sends the
    engine `SequenceRequest([1, 2, 3], SamplingParams(max_new_tokens=2), id=1)`; the engine sends two `StepReport`s with
    a `TokenEvent` each; the worker sends `Start(7, 200, {...})` and `BodyChunk(7, b'...', last=True)`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ..core.call_trace import AttributeValue
from ..core.engine_info import EngineInfo, EngineStats
from ..core.metrics import MetricFamily
from ..core.sequence_request import Pictures, SequenceRequest
from ..core.turns.precedence import ANY, Precedence
from ..core.types import DecoderTokens, TokenEvent, Vocabulary
from .encodings import EncodeRequest, Encoding
from .remote_protocol import AnyRemoteMessage


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The base class of messages. `SequenceRequest` is a message too, but belongs to `core`."""


# ------------------------------------------------------------------------------------ front end -> worker


class Load(Message, frozen=True):
    """The first message to a worker: the model to load. `model` is a `config.ModelConfig` as msgpack."""

    model: bytes


class Call(Message, frozen=True):
    """One HTTP request. The body stays bytes; the worker parses it.

    Attributes:
        id: the front end's number for the call.
        dialect, operation: from the route table (`dialects`).
        method, path: the HTTP method, and the path without the query string.
        query: the parameters of the query string, in its order.
        headers: values by lower-case names.
        body: the bytes as the client sent them, decompressed.
        waited_s: seconds in the front end's queue; 0 for a request of a batch file.
        traced: whether the front end waits for a `Trace`.
        counted: whether the front end waits for `UsageReport`s.
        key_name: the name of the client's API key; "" without one.
        is_manager: whether the client may see sessions and deferred answers of other keys.
        precedence: the tenant and the priority.
        context: what the front end adds to the body, as JSON in a form of the dialect: the items of earlier responses.
    """

    id: int
    dialect: str
    operation: str
    method: str
    path: str
    query: tuple[tuple[str, str], ...]
    headers: dict[str, str]
    body: bytes
    waited_s: float = 0.0
    traced: bool = False
    counted: bool = False
    key_name: str = ""
    is_manager: bool = True
    precedence: Precedence = ANY
    context: bytes = b""


class Cancel(Message, frozen=True):
    """Stop the work on the call or the sequence with this id. `reason` is "disconnect" or "timeout"."""

    id: int
    reason: str = "disconnect"


class Taken(Message, frozen=True):
    """The client has received `size` more bytes of the answer to call `id`. `server.http.response_writer` sends one for
    many chunks together.
    """

    id: int
    size: int


class AdapterChange(Message, frozen=True):
    """Register, update or unregister a LoRA adapter. The worker gets it first and sends one to the engine. A `Done`
    answers it.

    Attributes:
        source: to the worker, the location as the client wrote it; to the engine, a directory; "" to unregister.
        options: further parameters of the client's request, such as `pin`.
        version: to the engine, which of the adapters that have had this name (`SequenceRequest.adapter_version`).
    """

    id: int
    operation: Literal["register", "update", "unregister"]
    name: str
    source: str = ""
    options: dict[str, str] = {}
    version: int = 0


class LogLevel(Message, frozen=True):
    """Log records of this level and above from now on (`core.logs.set_level`)."""

    level: str


class Stop(Message, frozen=True):
    """Close the handler and exit with status 0."""


# ------------------------------------------------------------------------------------ worker -> front end


#: The values of fields that a request leaves out: by form ("chat", "completion"), then by OpenAI's name of the field. A
#: value that is no number is described by a text ("until the context is full").
Defaults = dict[str, dict[str, bool | int | float | str]]


class WorkerInfo(msgspec.Struct, frozen=True, array_like=True):
    """Facts about a worker's handler once it has loaded. `Handler` has attributes of the same names.

    Attributes:
        capacity: how many calls the front end may send before one is answered, at least 1.
        at_once: how many of these calls run at once; the others wait in the worker.
        queries: how many queries the front end may send beside the calls; 0: queries count as calls.
        task: the model's task; "": text generation, or whatever a user's handler does.
        engine: the engine and what it runs the model on; None: the handler has no engine.
        example: a JSON body that the model answers; "": the handler has none.
        defaults: the values of fields that a request leaves out; empty: the handler has none.
    """

    capacity: int = 1
    at_once: int = 1
    queries: int = 0
    task: str = ""
    engine: EngineInfo | None = None
    example: str = ""
    defaults: Defaults = {}


class Status(Message, frozen=True):
    """The state of a worker (sent to the front end) or of an engine (sent to the worker).

    Attributes:
        state: "loading", "ready" or "failed".
        detail: while loading, the phase; after a failure, the message for the user.
        done, total: the progress of the phase in its own units; 0, 0: unknown.
        current: the part of the phase that is being done, such as a file.
        info: with "ready", facts about a worker's handler.
        no_memory: whether it failed for lack of memory.
        lacking: whether it failed because the machine lacks something else (`core.errors.lacks_machine`).
    """

    state: str
    detail: str = ""
    done: int = 0
    total: int = 0
    info: WorkerInfo = WorkerInfo()
    current: str = ""
    no_memory: bool = False
    lacking: bool = False


class Start(Message, frozen=True):
    """The status and headers of the answer to call `id`."""

    id: int
    status: int
    headers: dict[str, str]


class BodyChunk(Message, frozen=True):
    """Bytes of the response body. The front end passes them on unread.

    Attributes:
        last: whether the body ends with them. A cancelled call ends with an empty chunk, sent once the worker has
            released the call.
        keep_alive: whether they only keep the connection open, and do not restart `predict_timeout`.
    """

    id: int
    data: bytes
    last: bool
    keep_alive: bool = False


class Progress(Message, frozen=True):
    """Restart `predict_timeout` of call `id`: its answer grows, although no part of it is written yet."""

    id: int


class Break(Message, frozen=True):
    """End the answer to call `id` before its body is complete: close the connection, so that the client notices."""

    id: int


class Trace(Message, frozen=True):
    """Events and attributes for the span of call `id`. An event is (name, Unix time in nanoseconds)."""

    id: int
    events: list[tuple[str, int]]
    attributes: dict[str, AttributeValue]


class UsageReport(Message, frozen=True):
    """The tokens of call `id` since its last report.

    The worker sends one when the prompts are tokenized, several during generation, and one before the last chunk, also
    for a cancelled call. All generated tokens count, including those that the client is not sent.
    """

    id: int
    prompt_tokens: int
    generated_tokens: int


class Report(Message, frozen=True):
    """Metrics by the names of `server.metrics.specs`: values of gauges, increments of counters, observations."""

    gauges: dict[str, float] = {}
    counts: dict[str, float] = {}
    observations: dict[str, list[float]] = {}


class EngineMetrics(Message, frozen=True):
    """The current values of an engine's own metrics. The worker passes them on to the front end."""

    families: list[MetricFamily]


class Beat(Message, frozen=True):
    """A heartbeat: the loop that does the sender's work is running. Every other frame counts as one (`heartbeat`).

    `answers` is false in a worker's heartbeat while its engine sends none.
    """

    answers: bool = True


class Done(Message, frozen=True):
    """The result of the `AdapterChange` or `Expand` with this id.

    Attributes:
        ids: the answer to an `Expand`.
        error: the message of a ServingError; "": it was done.
        error_kind: that ServingError's `kind`.
    """

    id: int
    ids: list[int] = []
    error: str = ""
    error_kind: str = ""


# ------------------------------------------------------------- worker -> engine; sequences are a `SequenceRequest`


class Open(Message, frozen=True):
    """The first message to an engine process.

    Attributes:
        rolling_batch: the engine: a name of the table, or "module:Class".
        settings: the engine's `EngineSettings` as msgpack.
        sends_text: whether a `ProbeText` follows.
    """

    rolling_batch: str
    settings: bytes
    sends_text: bool = False


class ProbeText(Message, frozen=True):
    """The token ids of a text, for an engine that checks its kernels with the model while it opens."""

    ids: list[int]


class SetVocabulary(Message, frozen=True):
    """The model's vocabulary, which compiling a grammar needs. It is sent before the first sequence with a grammar."""

    vocabulary: Vocabulary


class Expand(Message, frozen=True):
    """Ask for the token ids that the model gets for a prompt with pictures. A `Done` with the ids answers it."""

    id: int
    pictures: Pictures


# ------------------------------------------------------------------------------------ engine -> worker


class Opened(Message, frozen=True):
    """The engine is ready. The fields are those of `engine.interface.Limits`."""

    max_model_len: int
    max_batch_size: int
    kv_blocks: int
    block_size: int
    description: str = ""
    takes_images: bool = False
    info: EngineInfo = EngineInfo()
    vocabulary: int | None = None
    max_batch_tokens: int = 0
    pooling: str = ""
    decoder: DecoderTokens | None = None


class StepReport(Message, frozen=True):
    """One step of an engine: an event for each sequence with a new token or an error, and the gauges after the step."""

    events: list[TokenEvent]
    stats: EngineStats


class Encoded(Message, frozen=True):
    """One step of an encoder: the encodings that are complete, and the gauges after the step."""

    encodings: list[Encoding]
    stats: EngineStats


AnyMessage = (
    Load
    | Call
    | Cancel
    | Taken
    | AdapterChange
    | LogLevel
    | Stop
    | Status
    | Start
    | BodyChunk
    | Progress
    | Break
    | Trace
    | UsageReport
    | Report
    | EngineMetrics
    | Beat
    | Open
    | ProbeText
    | SetVocabulary
    | SequenceRequest
    | EncodeRequest
    | Expand
    | Opened
    | Done
    | StepReport
    | Encoded
    | AnyRemoteMessage
)
