"""What crosses a process: the messages, and how they are framed.

Runs in every process. A frame is a four-byte little-endian length and a msgpack array of messages: one frame up per
engine step or loop tick, whatever the batch size, unless there is more in it than one should hold (`FrameWriter.full`);
no polling, and of acknowledgements only `Taken`, which streams of the user's wait for. Both hops (front end to worker,
worker to engine) speak this file and nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import msgspec

from .types import EngineStats, Images, SamplingParams, TokenEvent

#: A reader takes a longer frame for something that is none.
MAX_FRAME_BYTES: Final = 1 << 30
#: A frame with as much in it takes no more messages. They stay whole: one alone may be longer.
FULL_FRAME_BYTES: Final = 16 << 20
_LENGTH: Final = struct.Struct("<I")
_ARRAY: Final = struct.Struct(">BI")
_ARRAY_32: Final = 0xDD  # msgpack's array of up to 2**32 - 1, whatever it has


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of everything that crosses a process."""


# ------------------------------------------------------------------------------------ front end -> worker


class Load(Message, frozen=True):
    """First message to a worker: which model to load. `model` is msgpack of a config.ModelConfig."""

    model: bytes


class Call(Message, frozen=True):
    """One HTTP request. The body stays bytes; the worker parses it.

    `dialect` and `operation` come from the route table; `headers` are lower-cased; `query` keeps order; `waited_s` is
    how long it waited for this worker, in seconds.
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


class Cancel(Message, frozen=True):
    """Forget this id. `reason` is "disconnect" or "timeout"."""

    id: int
    reason: str = "disconnect"


class Taken(Message, frozen=True):
    """The client has taken so many more bytes of the answer to call `id`; said seldom, see `server.exchange`."""

    id: int
    size: int


class Stop(Message, frozen=True):
    """Close the handler and exit with status 0."""


# ------------------------------------------------------------------------------------ worker -> front end


class Status(Message, frozen=True):
    """How loading goes (worker -> front end, engine -> worker).

    `state` is "loading" (`detail` says what, `done`/`total` how far), "ready" (`capacity` and `queries`: how many calls
    it wants in flight, see `Handler`) or "failed" (`detail` is the readable block).
    """

    state: str
    detail: str = ""
    done: int = 0
    total: int = 0
    capacity: int = 1
    queries: int = 0


class Start(Message, frozen=True):
    """The response line and headers of call `id`."""

    id: int
    status: int
    headers: dict[str, str]


class Chunk(Message, frozen=True):
    """Bytes of the response body; `last` ends it. The front end never looks inside.

    The last one of a call that was cancelled is empty, and says that the worker has let go of it. `keep_alive`: it says
    nothing to the client, and is no progress.
    """

    id: int
    data: bytes
    last: bool
    keep_alive: bool = False


class Break(Message, frozen=True):
    """The body of call `id` ends unfinished, in a way that its client notices."""

    id: int


class Report(Message, frozen=True):
    """Metrics: gauges to set, counters to add to, histogram observations. Names are those of server/metrics.py."""

    gauges: dict[str, float] = {}
    counts: dict[str, float] = {}
    observations: dict[str, list[float]] = {}


# ------------------------------------------------------------------------------------ worker -> engine


class Open(Message, frozen=True):
    """First message to an engine: the engine class ("module:Class" or a table name) and its msgpack settings."""

    rolling_batch: str
    settings: bytes


class Add(Message, frozen=True):
    """A sequence to generate."""

    id: int
    prompt_ids: list[int]
    sampling: SamplingParams
    images: Images | None = None


# ------------------------------------------------------------------------------------ engine -> worker


class Opened(Message, frozen=True):
    """The engine is ready: what only the loaded model tells."""

    max_model_len: int
    max_batch_size: int
    kv_blocks: int
    block_size: int
    description: str = ""
    takes_images: bool = False
    dtype: str = ""


class Step(Message, frozen=True):
    """One engine step: what happened to every sequence that moved, and the gauges after it."""

    events: list[TokenEvent]
    stats: EngineStats


AnyMessage = Load | Call | Cancel | Taken | Stop | Status | Start | Chunk | Break | Report | Open | Add | Opened | Step

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[AnyMessage])


class FrameWriter:
    """Messages in, frames out."""

    def __init__(self) -> None:
        self._encoded: list[bytes] = []
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._encoded)

    @property
    def full(self) -> bool:
        """Whether the frame should leave before there is more in it."""
        return self._bytes >= FULL_FRAME_BYTES

    def add(self, message: AnyMessage) -> None:
        """Another message of the next frame.

        Raises:
            OverflowError, TypeError, ValueError: it has what no frame can hold, or more. The frame is as it was.
        """
        encoded = _encoder.encode(message)
        if _ARRAY.size + len(encoded) > MAX_FRAME_BYTES:
            raise ValueError(f"{len(encoded)} bytes are more than can be passed on, which is {MAX_FRAME_BYTES}")
        self._encoded.append(encoded)
        self._bytes += len(encoded)

    def take(self) -> bytes:
        """The frame of all that was added since the last one."""
        encoded, self._encoded, self._bytes = self._encoded, [], 0
        length = _ARRAY.size + sum(map(len, encoded))
        return b"".join((_LENGTH.pack(length), _ARRAY.pack(_ARRAY_32, len(encoded)), *encoded))


def encode_frame(messages: Iterable[AnyMessage]) -> bytes:
    """Messages -> one frame."""
    writer = FrameWriter()
    for message in messages:
        writer.add(message)
    return writer.take()


class FrameReader:
    """Bytes in, messages out; keeps what is left of an unfinished frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> list[AnyMessage]:
        """All messages that `data` completes, in order.

        Raises:
            ValueError: the length is absurd: the stream is not ours, and the connection must be closed.
            msgspec.DecodeError: the same, found later.
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
        if start or not rest:  # else the frame has only grown, in place
            self._buffer = bytearray(whole[start:])
        return messages
