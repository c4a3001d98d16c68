"""`python -m djl_python.engine.parallel.rank --fd N`: one of the devices that share a model, but the first.

Spawned by the engine process (`ranks`), which sends the settings, then each step, and adapters (`adapters`).
"""

from __future__ import annotations

import contextlib
import gc
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from ...ipc.processes import begin_child
from ..loop import EXIT_LOAD_FAILED, reason_of
from ..runner.opened_model import OpenedModel
from .adapters import LoadMessage, UnloadMessage
from .ranks import END, Begin, Followed, StepMessage, adapters_of, open_part


def main() -> None:
    sock = begin_child("engine.rank", __doc__)
    gc.disable()  # as in the engine process, see there
    connection = Connection(sock.detach())
    with contextlib.suppress(EOFError, ConnectionError):  # the engine process has ended
        opened = _open(connection)
        gc.freeze()
        gc.enable()
        _follow(connection, opened)


def _open(connection: Connection) -> OpenedModel:
    """Open the model with the other ranks; exit with `EXIT_LOAD_FAILED` after telling why if that can't be done."""
    begin = msgspec.msgpack.decode(connection.recv_bytes(), type=Begin)
    try:
        return open_part(begin.rank, begin.settings, Path(begin.meeting), lambda what, done, total: None)
    except Exception as exc:  # the boundary of this process: whatever a model raises while loading is reported
        connection.send_bytes(reason_of(exc).encode())
        sys.exit(EXIT_LOAD_FAILED)


def _follow(connection: Connection, opened: OpenedModel) -> None:
    """Compute every step, and load every adapter, until the end."""
    decoder, followed = msgspec.msgpack.Decoder(StepMessage | LoadMessage | UnloadMessage), Followed()
    runner, adapters = opened.runner, adapters_of(opened)
    while (received := connection.recv_bytes()) != END:
        message = decoder.decode(received)
        if not isinstance(message, StepMessage):
            assert adapters is not None
            adapters.follow(message)
            continue
        for sequence in filter(None, map(followed.forget, message.forgotten)):
            runner.forget(sequence)
        runner.run([followed.chunk_of(piece) for piece in message.pieces])


if __name__ == "__main__":
    main()
