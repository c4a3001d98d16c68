"""The engine's side of its socket."""

from __future__ import annotations

import socket
import subprocess
import sys

import msgspec

from djl_python.engine.rolling_batch import EngineSettings
from djl_python.protocol import Add, FrameReader, Open, Opened, Stop, encode_frame
from djl_python.types import SamplingParams


def test_a_worker_that_left_without_reading_all_is_gone_like_any_other() -> None:
    """Its socket says so in another way: a connection that was reset."""
    worker, engine = socket.socketpair()
    program = f"""
import socket, threading
from djl_python.engine.loop import Inbox
sock = socket.socket(fileno={engine.fileno()})
sock.sendall(b"what nobody reads")
Inbox(sock).take(wait=True)
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
        worker.sendall(encode_frame([Open("__main__:Broken", settings)]))
        reader = FrameReader()
        while not any(isinstance(message, Opened) for message in reader.feed(worker.recv(1 << 16))):
            pass
        worker.sendall(encode_frame([Add(1, [5, 6], SamplingParams(max_new_tokens=2))]))
        try:
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
        assert process.returncode == 1
        assert b"the device is gone" in errors
