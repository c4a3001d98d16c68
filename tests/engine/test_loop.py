"""The engine's side of its socket."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import Array, Images, SamplingParams, TokenEvent
from djl_python.engine.inbox import EXIT_BROKEN_FRAME
from djl_python.engine.interface import EngineSettings
from djl_python.engine.loop import EXIT_LOAD_FAILED
from djl_python.ipc.framing import FrameReader, encode_frame
from djl_python.ipc.protocol import Cancel, Open, ProbeText, Status, StepReport, Stop


def test_a_worker_that_left_without_reading_all_is_gone_like_any_other() -> None:
    """Its socket says so in another way: a connection that was reset."""
    worker, engine = socket.socketpair()
    program = f"""
import socket, threading
from djl_python.engine.inbox import Inbox
sock = socket.socket(fileno={engine.fileno()})
sock.sendall(b"what nobody reads")
Inbox(sock).take(at_most_s=60)
print("heard", flush=True)
threading.Event().wait()
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, pass_fds=[engine.fileno()], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        engine.close()
        worker.sendall(encode_frame([Stop()]))
        assert process.stdout is not None
        assert process.stdout.readline() == b"heard\n"
        worker.close()
        try:
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, errors) == (0, b"")


@pytest.mark.parametrize("ids", [[5, 6], []])
def test_a_text_to_try_the_model_on_is_waited_for_where_one_is_announced(ids: list[int]) -> None:
    worker, engine = socket.socketpair()
    program = f"""
import socket
from djl_python.engine.inbox import Inbox
inbox = Inbox(socket.socket(fileno={engine.fileno()}))
inbox.first()
print("opening", flush=True)
print(inbox.probe_ids(), flush=True)
"""
    command = [sys.executable, "-c", program]
    with worker, subprocess.Popen(command, pass_fds=[engine.fileno()], stdout=subprocess.PIPE) as process:
        engine.close()
        worker.sendall(encode_frame([Open("auto", b"", sends_text=bool(ids))]))
        assert process.stdout is not None
        assert process.stdout.readline() == b"opening\n"
        if ids:
            worker.sendall(encode_frame([ProbeText(ids)]))
        assert process.stdout.readline() == f"{ids}\n".encode()


@contextlib.contextmanager
def engine(cwd: Path | None = None) -> Iterator[tuple[socket.socket, subprocess.Popen[str]]]:
    """A real engine process, in the directory `cwd` (the model's), and the worker's end of its socket."""
    worker, theirs = socket.socketpair()
    command = [sys.executable, "-m", "djl_python.engine", "--fd", str(theirs.fileno())]
    with subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True, cwd=cwd) as process:
        theirs.close()
        try:
            yield worker, process
        finally:
            process.kill()
            worker.close()


def test_messages_in_the_frame_of_the_first_are_not_lost() -> None:
    opening = Open("echo", msgspec.msgpack.encode(EngineSettings(model_path="m")))
    with engine() as (worker, process):
        worker.sendall(encode_frame([opening, Stop()]))
        assert process.wait(30) == 0


def test_an_engine_that_can_not_hear_its_worker_ends() -> None:
    with engine() as (worker, process):
        worker.sendall(b"\xff" * 64)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == EXIT_BROKEN_FRAME
        assert "what the worker sent is not a frame" in errors


def test_why_it_did_not_load_is_told_whatever_is_in_the_text(tmp_path: Path) -> None:
    """File names that are not UTF-8 have lone surrogates, which no frame can have."""
    (tmp_path / "mine.py").write_text(
        "class Engine:\n"
        "    def __init__(self, settings, progress):\n"
        "        progress('weights-\\udcff', 1, 2)\n"
        "        raise OSError('no such file: weights-\\udcff')\n"
    )
    with engine(tmp_path) as (worker, process):
        worker.sendall(encode_frame([Open("mine:Engine", msgspec.msgpack.encode(EngineSettings(model_path="m")))]))
        assert process.wait(30) == EXIT_LOAD_FAILED
        assert FrameReader().feed(worker.recv(1 << 16)) == [
            Status("loading", "weights-\\udcff", 1, 2),
            Status("failed", "OSError: no such file: weights-\\udcff"),
        ]


def test_a_frame_without_a_step_tells_of_none() -> None:
    """A message that leaves nothing to do is answered all the same."""
    worker, engine = socket.socketpair()
    program = f"""
import socket
from djl_python.engine.echo import EchoRollingBatch
from djl_python.engine.loop import serve
from djl_python.core.engine_info import EngineStats
class Timed(EchoRollingBatch):
    stats = EngineStats(running=1, step_s=0.5, step_sequences=2)
serve(socket.socket(fileno={engine.fileno()}))
"""
    messages = (
        Open("__main__:Timed", msgspec.msgpack.encode(EngineSettings(model_path=""))),
        SequenceRequest([5, 6], SamplingParams(max_new_tokens=1), id=1),
        Cancel(1),
        Stop(),
    )
    reader, frames = FrameReader(), []
    with worker, subprocess.Popen([sys.executable, "-c", program], pass_fds=[engine.fileno()]) as process:
        engine.close()
        try:
            for message in messages:  # each when the one before has been answered
                worker.sendall(encode_frame([message]))
                frames += reader.feed(worker.recv(1 << 16))
        finally:
            process.kill()
    stats = [frame.stats for frame in frames if isinstance(frame, StepReport)]
    assert [(each.running, each.step_s, each.step_sequences) for each in stats] == [(1, 0.5, 2), (1, 0.0, 0)]


def test_a_sequence_that_an_engine_can_not_add_fails_alone() -> None:
    worker, engine = socket.socketpair()
    program = f"""
import socket
from djl_python.engine.echo import EchoRollingBatch
from djl_python.engine.loop import serve
class Picky(EchoRollingBatch):
    def add(self, request):
        super().add(request)
        if len(request.prompt_ids) == 1:
            raise ValueError("too short: \\udcff")
serve(socket.socket(fileno={engine.fileno()}))
"""
    settings = msgspec.msgpack.encode(EngineSettings(model_path=""))
    events: list[TokenEvent] = []
    with worker, subprocess.Popen([sys.executable, "-c", program], pass_fds=[engine.fileno()]) as process:
        engine.close()
        adds = [SequenceRequest([5] * number, SamplingParams(max_new_tokens=2), id=number) for number in (1, 2)]
        worker.sendall(encode_frame([Open("__main__:Picky", settings), *adds]))
        reader = FrameReader()
        try:
            while not any(event.finish for event in events) and (data := worker.recv(1 << 16)):
                steps = reader.feed(data)
                events += [event for step in steps if isinstance(step, StepReport) for event in step.events]
        finally:
            process.kill()
    assert [(event.request_id, event.error) for event in events] == [
        (1, "generation failed: ValueError: too short: \\udcff"),
        (2, None),
        (2, None),
    ]


def test_a_sequence_that_an_engine_leaves_without_an_end_fails_alone() -> None:
    """An engine that schedules its sequences itself may give one up in silence, before or after its first token."""
    worker, engine = socket.socketpair()
    program = f"""
import socket
from djl_python.core.engine_info import EngineStats
from djl_python.core.types import FinishReason, TokenEvent
from djl_python.engine.interface import AsyncEngine
from djl_python.engine.loop import serve
class Silent(AsyncEngine):
    max_model_len = max_batch_size = 9
    stats = EngineStats()
    @classmethod
    async def open(cls, settings, progress):
        return cls()
    async def generate(self, request):
        for token in request.prompt_ids[1:]:
            yield TokenEvent(request.id, token, finish=FinishReason.EOS if token == 7 else None)
serve(socket.socket(fileno={engine.fileno()}))
"""
    settings = msgspec.msgpack.encode(EngineSettings(model_path=""))
    prompts = {1: [5], 2: [5, 6], 3: [5, 6, 7]}
    events: list[TokenEvent] = []
    with worker, subprocess.Popen([sys.executable, "-c", program], pass_fds=[engine.fileno()]) as process:
        engine.close()
        adds = [SequenceRequest(ids, SamplingParams(max_new_tokens=9), id=number) for number, ids in prompts.items()]
        worker.sendall(encode_frame([Open("__main__:Silent", settings), *adds]))
        reader = FrameReader()
        worker.settimeout(60)
        try:
            while {event.request_id for event in events if event.ends} < set(prompts):
                steps = reader.feed(worker.recv(1 << 16))
                events += [event for step in steps if isinstance(step, StepReport) for event in step.events]
        finally:
            process.kill()
    silent = "the engine ended the sequence without saying why"
    assert sorted((event.request_id, event.token_id, event.error) for event in events) == [
        (1, -1, silent),
        (2, -1, silent),
        (2, 6, None),
        (3, 6, None),
        (3, 7, None),
    ]


def test_a_batch_that_cannot_go_on_ends_the_process_as_failed() -> None:
    worker, engine = socket.socketpair()
    program = f"""
import socket, sys
from djl_python.engine.echo import EchoRollingBatch
from djl_python.engine.loop import serve
class Broken(EchoRollingBatch):
    def step(self):
        raise RuntimeError("the device is gone")
serve(socket.socket(fileno={engine.fileno()}))
"""
    settings = msgspec.msgpack.encode(EngineSettings(model_path=""))
    with (
        worker,
        subprocess.Popen(
            [sys.executable, "-c", program], pass_fds=[engine.fileno()], stderr=subprocess.PIPE
        ) as process,
    ):
        engine.close()
        add = SequenceRequest([5, 6], SamplingParams(max_new_tokens=2), id=1)
        worker.sendall(encode_frame([Open("__main__:Broken", settings), add]))
        try:
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
        assert process.returncode == 1
        assert b"the device is gone" in errors


def test_an_engine_gets_the_request_that_was_sent() -> None:
    """With every field: none is passed on its own."""
    worker, engine = socket.socketpair()
    program = f"""
import socket
from djl_python.core.errors import ParameterError
from djl_python.engine.echo import EchoRollingBatch
from djl_python.engine.loop import serve
class Telling(EchoRollingBatch):
    def add(self, request):
        raise ParameterError(repr(request))
serve(socket.socket(fileno={engine.fileno()}))
"""
    images = Images({"pixels": Array("uint8", (1,), b"\x01")}, ((0, b"digest"),), 1)
    request = SequenceRequest([5, 6], SamplingParams(max_new_tokens=2, seed=3), 7, images, "tom", "abc")
    reader, events = FrameReader(), list[TokenEvent]()
    with worker, subprocess.Popen([sys.executable, "-c", program], pass_fds=[engine.fileno()]) as process:
        engine.close()
        opening = Open("__main__:Telling", msgspec.msgpack.encode(EngineSettings(model_path="")))
        worker.sendall(encode_frame([opening, request]))
        try:
            while not events and (data := worker.recv(1 << 16)):
                events += [event for step in reader.feed(data) if isinstance(step, StepReport) for event in step.events]
        finally:
            process.kill()
    assert [(event.request_id, event.error) for event in events] == [(7, repr(request))]
