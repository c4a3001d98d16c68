"""The frames of messages that pass between processes.

Runs in every process. A frame is a four-byte little-endian length and a msgpack array of messages. One frame goes up
per engine step or event loop iteration, whatever the batch size, unless it fills up earlier (`FrameWriter.full`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import msgspec

from .protocol import AnyMessage

#: A reader refuses a longer frame: the peer does not speak this protocol.
MAX_FRAME_BYTES: Final = 1 << 30
#: A frame of at least this size takes no more messages. Messages are not split: a single one may be longer.
FULL_FRAME_BYTES: Final = 16 << 20
_LENGTH: Final = struct.Struct("<I")
_ARRAY: Final = struct.Struct(">BI")
_ARRAY_32: Final = 0xDD  # msgpack's array of up to 2**32 - 1 elements, used for any number

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
