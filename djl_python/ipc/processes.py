"""Spawn a child process connected by a socket pair, and set up such a child at its start.

Runs in the front end (spawns workers), the worker (spawns its engine), an engine whose model several devices share
(spawns one for each of the others), and in all of these children. Children are spawned, never forked: they begin as
`python -P -m <module> --fd N` with one end of a socket pair, and log as their parent does. They run in the model
directory, where a file may be named like a library: -P keeps that directory out of the import path, to which it is
added when user code is imported. When either process dies, the other sees the socket close; the kernel's parent-death
signal is a fallback for a child that does not watch its socket.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import io
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ..core import logs
from . import log_lines

if TYPE_CHECKING:  # type checkers alone have it
    from _typeshed import ReadableBuffer

_PR_SET_PDEATHSIG: Final = 1


async def spawn(
    module: str,
    *,
    log_name: str,
    executable: str = sys.executable,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    new_session: bool = False,
) -> tuple[asyncio.subprocess.Process, socket.socket]:
    """Start `module` as a process; the returned socket is the parent's end. Raises OSError if it can't be started.

    Args:
        log_name: names the process in its log lines, see `logs`.
    """
    ours, theirs = socket.socketpair()
    try:
        process = await spawn_on(
            theirs, module, log_name=log_name, executable=executable, cwd=cwd, env=env, new_session=new_session
        )
    except BaseException:
        ours.close()
        raise
    return process, ours


async def spawn_on(
    theirs: socket.socket,
    module: str,
    *,
    log_name: str,
    executable: str = sys.executable,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    new_session: bool = False,
    output: int | None = None,
) -> asyncio.subprocess.Process:
    """`spawn` for a process whose socket exists already: it is the process's alone from then on, also if that fails.

    Args:
        output: a descriptor in the place of this process's stdout and stderr; None: those.
    """
    with theirs:
        return await asyncio.create_subprocess_exec(
            *_command(executable, module, theirs, log_name),
            pass_fds=(theirs.fileno(), *log_lines.descriptors()),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=cwd,
            env=env,
            start_new_session=new_session,
        )


def start(module: str, *, log_name: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """`spawn` for a process without an event loop, in its own directory and environment."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = _command(sys.executable, module, theirs, log_name)
        passed = (theirs.fileno(), *log_lines.descriptors())
        return subprocess.Popen(command, pass_fds=passed, stdin=subprocess.DEVNULL), ours


def _command(executable: str, module: str, theirs: socket.socket, log_name: str) -> list[str]:
    how = ["--fd", str(theirs.fileno()), f"--log-level={logs.level()}", f"--log-name={log_name}"]
    how += [f"--log-format={logs.log_format()}", *(f"--log-fd={number}" for number in log_lines.descriptors())]
    return [executable, "-P", "-m", module, *how]


def begin_child(name: str, description: str | None) -> socket.socket:
    """Set up a child process: die with the parent, leave a terminal's signals to the front end, log to stderr.

    Args:
        name: the package that `spawn` started, without "djl_python.".

    Returns:
        The child's end of the socket pair.
    """
    parser = argparse.ArgumentParser(prog=f"python -m djl_python.{name}", description=description)
    parser.add_argument("--fd", type=int, required=True, help="inherited descriptor of the socket to the parent")
    parser.add_argument("--log-level", choices=(*logs.LEVELS, logs.OFF), default="info", help="what goes to stderr")
    parser.add_argument("--log-name", default=name, help="name of this process in its log lines")
    parser.add_argument("--log-format", choices=logs.FORMATS, default="text", help="of these lines")
    parser.add_argument("--log-fd", type=int, help="inherited descriptor that log lines go to as well")
    arguments = parser.parse_args()
    end_with_parent(signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _outlive_readers()
    logs.configure(arguments.log_level, name=arguments.log_name, log_format=arguments.log_format)
    if arguments.log_fd is not None:
        log_lines.send_to(arguments.log_fd)
    return socket.socket(fileno=arguments.fd)


def end_with_parent(number: signal.Signals) -> None:
    """Have this process get a signal when the process, in fact the thread, that started it has ended; on Linux."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # it died in between
            os._exit(0)


class _Output(io.FileIO):
    """What can't be written, because the disk is full or the reader has gone, is lost: no print fails a request."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def _outlive_readers() -> None:
    """Put unbuffered `_Output`s in the place of stdout and stderr. What the terminal's encoding lacks is escaped."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None:  # it was closed before the process began
            raw = _Output(stream.fileno(), "w", closefd=False)
            setattr(sys, name, io.TextIOWrapper(raw, stream.encoding, "backslashreplace", write_through=True))
