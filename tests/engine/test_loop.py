"""The engine's side of its socket."""

from __future__ import annotations

import socket
import subprocess
import sys

from djl_python.protocol import Stop, encode_frame


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
