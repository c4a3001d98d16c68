"""The messages between processes.

Runs in every process. There is no polling, and the only acknowledgement is `Taken`, which user streams wait for. A
process that has nothing to send says about once a second that it runs (`Beat`). Both hops (front end to worker, worker
to engine) use these messages and nothing else; `framing` makes bytes of them.
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
    """Base of the messages between processes; a `SequenceRequest` is one too."""


# ------------------------------------------------------------------------------------ front end -> worker


class Load(Message, frozen=True):
    """First message to a worker: which model to load. `model` is msgpack of a config.ModelConfig."""

    model: bytes


class Call(Message, frozen=True):
    """One HTTP request. The body stays bytes; the worker parses it.

    `dialect` and `operation` come from the route table; names in `headers` are lower-cased; `query` keeps order;
    `waited_s` is how long the call waited for this worker, in seconds (of a batch's, 0); with `traced`, a `Trace` is
    to come, with `counted` a `Usage`. `key_name` is that of the API key, "" without one; `is_manager`: whether its
    bearer may see what others have made. `precedence` says whose it is and how urgent. `context` is what the front end
    adds to the body, as JSON that the dialect knows: the items of earlier responses.
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
    """Stop work on call or sequence `id`. `reason` is "disconnect" or "timeout"."""

    id: int
    reason: str = "disconnect"


class Taken(Message, frozen=True):
    """The client has taken `size` more bytes of the answer to call `id`; seldom, see `server.http.response_writer`."""

    id: int
    size: int


class AdapterChange(Message, frozen=True):
    """Change one of the model's adapters; to a worker, and from there to an engine. Answered by a `Done`.

    `source` is where the adapter is: as the client wrote it, and to an engine a directory. `options` are further
    parameters of the client's. Both are empty where it goes.
    """

    id: int
    operation: Literal["register", "update", "unregister"]
    name: str
    source: str = ""
    options: dict[str, str] = {}


class LogLevel(Message, frozen=True):
    """Log from now on what is at least this serious; see `core.logs.set_level`."""

    level: str


class Stop(Message, frozen=True):
    """Close the handler and exit with status 0."""


# ------------------------------------------------------------------------------------ worker -> front end


#: What requests have that say nothing of a field: by form ("chat", "completion"), then by OpenAI's name of the field. A
#: text says what no number can.
Defaults = dict[str, dict[str, bool | int | float | str]]


class WorkerInfo(msgspec.Struct, frozen=True, array_like=True):
    """What a worker's handler says of itself once it has loaded; `Handler` describes each.

    Attributes:
        capacity: calls that it takes, at least 1.
        at_once: how many of these run at once: the others wait in the worker.
        queries: queries that it takes in addition; 0: queries count as calls.
        task: what the model does; "": it generates text, or does what the user's handler does.
        engine: what runs the model; None: the handler has no engine.
        example: a JSON body that the model answers; "": the handler names none.
        defaults: what requests have that say nothing of a field; empty: the handler names none.
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

    `state` is "loading" (`detail` says what, `done`/`total` how far, `current` which part of it), "ready" (with `info`,
    of a worker) or "failed" (`detail` is the text to show; `no_memory`: whether that is the reason; `lacking`: whether
    the machine lacks something else, see `core.errors.lacks_machine`).
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
    """Bytes of the response body; `last` ends it. The front end never looks inside.

    The last chunk of a cancelled call is empty, and says that the worker has released the call. `keep_alive` marks a
    chunk that only keeps a quiet connection open: the answer has not progressed.
    """

    id: int
    data: bytes
    last: bool
    keep_alive: bool = False


class Progress(Message, frozen=True):
    """The answer to call `id` progresses, though no part of it is written yet: it restarts predict_timeout."""

    id: int


class Break(Message, frozen=True):
    """The body of the answer to call `id` ends incomplete, in a way that the client notices."""

    id: int


class Trace(Message, frozen=True):
    """For the span of call `id`: events, as (name, Unix time in nanoseconds), and attributes by name."""

    id: int
    events: list[tuple[str, int]]
    attributes: dict[str, AttributeValue]


class UsageReport(Message, frozen=True):
    """How many tokens call `id` has had since its last report: when its prompts are known, now and then while they are
    answered, and before its last chunk; also of one that was cancelled. All tokens of its sequences count, whether its
    client was sent them or not."""

    id: int
    prompt_tokens: int
    generated_tokens: int


class Report(Message, frozen=True):
    """Metrics: gauges to set, counters to add to, histogram observations; names are those of `server.metrics.specs`."""

    gauges: dict[str, float] = {}
    counts: dict[str, float] = {}
    observations: dict[str, list[float]] = {}


class EngineMetrics(Message, frozen=True):
    """The metrics that the engine keeps itself, as they are now. The worker passes them on to the front end."""

    families: list[MetricFamily]


class Beat(Message, frozen=True):
    """The loop that does the sender's work runs; any other frame says so too, see `heartbeat`.

    `answers` is false while what the sender depends on does not run: an engine, of a worker.
    """

    answers: bool = True


class Done(Message, frozen=True):
    """What was asked for under `id` has been done, or not: then `error` says why, with the kind of a ServingError."""

    id: int
    ids: list[int] = []
    error: str = ""
    error_kind: str = ""


# ------------------------------------------------------------- worker -> engine; sequences are a `SequenceRequest`


class Open(Message, frozen=True):
    """First message to an engine: the engine class ("module:Class" or a table name) and its msgpack settings."""

    rolling_batch: str
    settings: bytes
    sends_text: bool = False  # whether a `ProbeText` follows


class ProbeText(Message, frozen=True):
    """A text by the model's own tokenizer, which an engine may try the model on while it is opened."""

    ids: list[int]


class SetVocabulary(Message, frozen=True):
    """The model's tokens, which come before the first sequence with a grammar."""

    vocabulary: Vocabulary


class Expand(Message, frozen=True):
    """Which ids the model gets for a prompt with pictures? Answered by a `Done` with them."""

    id: int
    pictures: Pictures


# ------------------------------------------------------------------------------------ engine -> worker


class Opened(Message, frozen=True):
    """The engine is ready: the values that only the loaded model gives; `engine.interface.Limits` describes them."""

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
    """One engine step: an event for every sequence that changed, and the gauges after the step."""

    events: list[TokenEvent]
    stats: EngineStats


class Encoded(Message, frozen=True):
    """One step of an encoder: what it made of the sequences that it computed, and the gauges after the step."""

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
