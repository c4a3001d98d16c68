"""The engine's end of the processes that try grammars (`grammar_trial`). Engine process, in threads of the compiler."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import weakref
from multiprocessing.connection import Connection
from typing import Final

import msgspec

from ...core import logs
from ...core.errors import GenerationError
from ...core.types import Grammar, Vocabulary
from ...ipc.processes import start
from .grammar_limits import TrialLimits
from .grammar_trial import GrammarTrial, Knowledge, Outcome, Taken

#: How long a trial waits for a process: at first that has to read the vocabulary, which takes seconds.
_BEGINNING_S: Final = 60.0
#: How long the process has to end when its socket has closed.
_END_S: Final = 5.0

_REPLY: Final = msgspec.msgpack.Decoder(Taken | Outcome)


class Attempt:
    """One grammar's trials, one after the other, which another thread may cancel.

    Attributes:
        pid: the process that compiles it; 0: none yet.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self.pid = 0
        self.cancelled = False

    def cancel(self) -> None:
        """End the trial that is being made; later ones end before they begin."""
        with self._lock:
            self.cancelled = True
            self._end()

    def begin(self, sock: socket.socket) -> None:
        """Begin a trial whose answers come from this socket."""
        with self._lock:
            self._socket, self.pid = sock, 0
            if self.cancelled:
                self._end()

    def taken(self, pid: int) -> None:
        """The trial runs in this process, which lives as long as its end of the socket is open."""
        with self._lock:
            self.pid = pid
            if self.cancelled:
                self._end()

    def over(self, *, kill: bool) -> None:
        """End the wait for a trial."""
        with self._lock:
            if kill:
                self._end()
            self._socket, self.pid = None, 0

    def _end(self) -> None:
        if self._socket is None:
            return
        if self.pid and _is_open(self._socket):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._socket.shutdown(socket.SHUT_RDWR)


class Trials:
    """Tries grammars in processes. They are started when first needed, and started again if they have died.

    Args:
        vocabulary, rows, eos_ids: see `GrammarCompiler`.
    """

    def __init__(self, vocabulary: Vocabulary, rows: int, eos_ids: frozenset[int]) -> None:
        self._known = Knowledge(msgspec.structs.replace(vocabulary, definition=""), rows, eos_ids)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket
        self._close: weakref.finalize[..., Trials] | None = None

    def begin(self) -> None:
        """Start the processes, if they aren't there.

        Raises:
            GenerationError: they can't be started.
        """
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return
            self._end()
            try:
                self._process, self._control = start(
                    "djl_python.engine.sampling.grammar_trial", log_name=f"{logs.name()}/grammars"
                )
                self._close = weakref.finalize(self, _end, self._process, self._control)
                with Connection(os.dup(self._control.fileno())) as connection:
                    connection.send_bytes(msgspec.msgpack.encode(self._known))
            except OSError as reason:
                raise GenerationError(f"grammars can't be compiled: {reason}") from reason

    def make(self, attempt: Attempt, grammar: Grammar, limits: TrialLimits) -> Outcome | None:
        """Try to compile a grammar; None: it takes more than the limits allow, or the attempt has been cancelled.

        Raises:
            GenerationError: the process for trials can't be started.
        """
        for _ in range(2):  # the processes may have died since the last trial
            self.begin()
            ours, theirs = socket.socketpair()
            with ours:
                try:
                    with theirs:
                        socket.send_fds(self._control, [b"\0"], [theirs.fileno()])
                except OSError:
                    continue
                attempt.begin(ours)
                with Connection(os.dup(ours.fileno())) as connection:
                    begun, outcome = _heard(connection, attempt, GrammarTrial(grammar, limits))
                attempt.over(kill=outcome is None)
                if begun or attempt.cancelled:
                    return outcome
        raise GenerationError("grammars can't be compiled: the processes that try them have ended")

    def close(self) -> None:
        """End the processes."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._close is not None:
            self._close()
        self._process = self._close = None


def _heard(connection: Connection, attempt: Attempt, trial: GrammarTrial) -> tuple[bool, Outcome | None]:
    """Whether the trial began, and its outcome, if it comes in time."""
    begun = False
    with contextlib.suppress(EOFError, OSError):  # the process was ended, by a limit or by the attempt's end
        connection.send_bytes(msgspec.msgpack.encode(trial))
        while connection.poll(trial.limits.wall_s if begun else _BEGINNING_S):
            reply = _REPLY.decode(connection.recv_bytes())
            if isinstance(reply, Outcome):
                return True, reply
            begun = True
            attempt.taken(reply.pid)
    return begun, None


def _is_open(sock: socket.socket) -> bool:
    """Whether the other end of a socket is open."""
    try:
        return sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def _end(process: subprocess.Popen[bytes], control: socket.socket) -> None:
    control.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
