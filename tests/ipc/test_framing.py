import struct

import pytest

from djl_python.ipc import framing
from djl_python.ipc.framing import FrameReader, FrameWriter, encode_frame
from djl_python.ipc.protocol import AnyMessage, BodyChunk, Cancel


def test_a_frame_comes_back_whatever_the_pieces_it_arrives_in() -> None:
    messages: list[AnyMessage] = [Cancel(1), BodyChunk(2, b"x" * 300, True)]
    data = encode_frame(messages) + encode_frame([Cancel(3)])
    for size in (1, 7, len(data)):
        reader, read = FrameReader(), []
        for start in range(0, len(data), size):
            read += reader.feed(data[start : start + size])
        assert read == [*messages, Cancel(3)]


def test_a_frame_is_full_when_it_has_enough_and_empty_once_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "FULL_FRAME_BYTES", 100)
    writer = FrameWriter()
    writer.add(Cancel(1))
    assert writer and not writer.full
    writer.add(BodyChunk(2, bytes(100), True))  # messages stay whole
    assert writer.full
    assert FrameReader().feed(writer.take()) == [Cancel(1), BodyChunk(2, bytes(100), True)]
    assert not writer and not writer.full


def test_a_message_that_no_reader_takes_fails_its_writer_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "MAX_FRAME_BYTES", 100)
    writer = FrameWriter()
    writer.add(Cancel(1))
    with pytest.raises(ValueError, match="bytes are more than can be passed on, which is 100"):
        writer.add(BodyChunk(2, bytes(100), True))
    size = 100 - len(encode_frame([BodyChunk(2, b"", True)])) + 4
    writer.take()
    writer.add(BodyChunk(2, bytes(size), True))  # the longest that there is
    assert FrameReader().feed(writer.take()) == [BodyChunk(2, bytes(size), True)]


def test_messages_too_large_for_a_frame_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "MAX_FRAME_BYTES", 100)
    messages: list[AnyMessage] = [BodyChunk(1, bytes(60), True), Cancel(2), BodyChunk(3, bytes(60), True)]
    writer = FrameWriter()
    for message in messages:
        writer.add(message)
    assert writer.full
    assert FrameReader().feed(writer.take()) == messages
    assert not writer and not writer.full
    assert FrameReader().feed(encode_frame(messages)) == messages


def test_a_frame_of_another_protocol_is_refused() -> None:
    with pytest.raises(ValueError, match="not one of ours"):
        FrameReader().feed(struct.pack("<I", framing.MAX_FRAME_BYTES + 1))
