"""The messages between processes, and their framing.

Runs in every process. A frame is a four-byte little-endian length and a msgpack array of messages. One frame goes up
per engine step or event loop iteration, whatever the batch size, unless it fills up earlier (`FrameWriter.full`). There
is no polling, and the only acknowledgement is `Taken`, which user streams wait for. Both hops (front end to worker,
worker to engine) use these messages and nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from ..core.call_trace import AttributeValue
from ..core.engine_info import EngineInfo, EngineStats
from ..core.metrics import MetricFamily
from ..core.pictures import AnyImages, Pictures
from ..core.types import SamplingParams, TokenEvent, Vocabulary

#: A reader refuses a longer frame: the peer does not speak this protocol.
MAX_FRAME_BYTES: Final = 1 << 30
#: A frame of at least this size takes no more messages. Messages are not split: a single one may be longer.
FULL_FRAME_BYTES: Final = 16 << 20
_LENGTH: Final = struct.Struct("<I")
_ARRAY: Final = struct.Struct(">BI")
_ARRAY_32: Final = 0xDD  # msgpack's array of up to 2**32 - 1 elements, used for any number


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages between processes."""


# ------------------------------------------------------------------------------------ front end -> worker


class Load(Message, frozen=True):
    """First message to a worker: which model to load. `model` is msgpack of a config.ModelConfig."""

    model: bytes


class Call(Message, frozen=True):
    """One HTTP request. The body stays bytes; the worker parses it.

    `dialect` and `operation` come from the route table; names in `headers` are lower-cased; `query` keeps order;
    `waited_s` is how long the call waited for this worker, in seconds (of a batch's, 0); with `traced`, a `Trace` is
    to come.
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


class Status(Message, frozen=True):
    """The state of a worker (sent to the front end) or of an engine (sent to the worker).

    `state` is "loading" (`detail` says what, `done`/`total` how far, `current` which part of it), "ready" (`capacity`
    and `queries`: how many calls it takes, `at_once`: how many of them run at once; `engine` and the text of `example`,
    if it has them, see `Handler`)
    or "failed" (`detail` is the text to show; `no_memory`: whether that is the reason).
    """

    state: str
    detail: str = ""
    done: int = 0
    total: int = 0
    capacity: int = 1
    at_once: int = 0
    queries: int = 0
    engine: EngineInfo | None = None
    example: str = ""
    current: str = ""
    no_memory: bool = False


class Start(Message, frozen=True):
    """The status and headers of the answer to call `id`."""

    id: int
    status: int
    headers: dict[str, str]


class Chunk(Message, frozen=True):
    """Bytes of the response body; `last` ends it. The front end never looks inside.

    The last chunk of a cancelled call is empty, and says that the worker has released the call. `keep_alive` marks a
    chunk that only keeps a quiet connection open: the answer has not progressed.
    """

    id: int
    data: bytes
    last: bool
    keep_alive: bool = False


class Break(Message, frozen=True):
    """The body of the answer to call `id` ends incomplete, in a way that the client notices."""

    id: int


class Trace(Message, frozen=True):
    """For the span of call `id`: events, as (name, Unix time in nanoseconds), and attributes by name."""

    id: int
    events: list[tuple[str, int]]
    attributes: dict[str, AttributeValue]


class Report(Message, frozen=True):
    """Metrics: gauges to set, counters to add to, histogram observations. Names are those of server/metrics.py."""

    gauges: dict[str, float] = {}
    counts: dict[str, float] = {}
    observations: dict[str, list[float]] = {}


class EngineMetrics(Message, frozen=True):
    """The metrics that the engine keeps itself, as they are now. The worker passes them on to the front end."""

    families: list[MetricFamily]


class Done(Message, frozen=True):
    """What was asked for under `id` has been done, or not: then `error` says why, with the kind of a ServingError."""

    id: int
    ids: list[int] = []
    error: str = ""
    error_kind: str = ""


# ------------------------------------------------------------------------------------ worker -> engine


class Open(Message, frozen=True):
    """First message to an engine: the engine class ("module:Class" or a table name) and its msgpack settings."""

    rolling_batch: str
    settings: bytes
    sends_text: bool = False  # whether a `TrialText` follows


class TrialText(Message, frozen=True):
    """A text by the model's own tokenizer, which an engine may try the model on while it is opened."""

    ids: list[int]


class Know(Message, frozen=True):
    """The model's tokens, which come before the first sequence with a grammar."""

    vocabulary: Vocabulary


class Add(Message, frozen=True):
    """A sequence to generate. `adapter` is the name of one of the model's LoRA adapters; "": none. `request_id` is for
    log lines about it.
    """

    id: int
    prompt_ids: list[int]
    sampling: SamplingParams
    images: AnyImages | None = None
    adapter: str = ""
    request_id: str = ""


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


class Step(Message, frozen=True):
    """One engine step: an event for every sequence that changed, and the gauges after the step."""

    events: list[TokenEvent]
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
    | Chunk
    | Break
    | Trace
    | Report
    | EngineMetrics
    | Open
    | TrialText
    | Know
    | Add
    | Expand
    | Opened
    | Done
    | Step
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[AnyMessage])


class FrameWriter:
    """Encodes messages into a frame; into several where one would be longer than a reader takes.

    Attributes:
        full: whether the frame should be sent before more messages are added.
    """

    def __init__(self) -> None:
        self.full = False
        self._ended: list[bytes] = []  # pieces of the frames before the one that is being filled
        self._encoded: list[bytes] = []
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._encoded)

    def add(self, message: AnyMessage) -> None:
        """Add a message to the frame, or to the next one if both are too long for a reader.

        Raises:
            OverflowError, TypeError, ValueError: the message can't be encoded or is too long. The frame is unchanged.
        """
        encoded = _encoder.encode(message)
        if _ARRAY.size + len(encoded) > MAX_FRAME_BYTES:
            raise ValueError(f"{len(encoded)} bytes are more than can be passed on, which is {MAX_FRAME_BYTES}")
        if _ARRAY.size + self._bytes + len(encoded) > MAX_FRAME_BYTES:
            self._end_frame()
            self.full = True
        self._encoded.append(encoded)
        self._bytes += len(encoded)
        if self._bytes >= FULL_FRAME_BYTES:
            self.full = True

    def take(self) -> bytes:
        """The frame of all messages added since the last `take`; several frames where one would be too long."""
        self._end_frame()
        self.full = False
        ended, self._ended = self._ended, []
        return b"".join(ended)

    def _end_frame(self) -> None:
        encoded, length = self._encoded, _ARRAY.size + self._bytes
        self._ended += (_LENGTH.pack(length), _ARRAY.pack(_ARRAY_32, len(encoded)), *encoded)
        self._encoded, self._bytes = [], 0


def encode_frame(messages: Iterable[AnyMessage]) -> bytes:
    """Messages -> one frame, or several where one would be longer than a reader takes."""
    writer = FrameWriter()
    for message in messages:
        writer.add(message)
    return writer.take()


class FrameReader:
    """Decodes messages from bytes; keeps the bytes of an unfinished frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> list[AnyMessage]:
        """All messages that `data` completes, in order.

        Raises:
            ValueError: the length is too large: the peer does not speak this protocol; close the connection.
            msgspec.DecodeError: the frame does not decode, for the same reason.
        """
        rest = self._buffer
        if rest:
            rest += data
        whole = memoryview(rest or data)
        messages: list[AnyMessage] = []
        start, end = 0, len(whole)
        while end - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(whole, start)
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {length} bytes: not one of ours")
            stop = start + _LENGTH.size + length
            if stop > end:
                break
            messages += _decoder.decode(whole[start + _LENGTH.size : stop])
            start = stop
        if start or not rest:  # else the unfinished frame has grown in place
            self._buffer = bytearray(whole[start:])
        return messages
