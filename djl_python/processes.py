"""Spawning a child process of ours with a socket to it, and what such a child does first.

Runs in the front end (spawns workers), the worker (spawns its engine) and in both kinds of child. Children are
spawned, never forked: they begin as `python -m <module> --fd N` with one end of a socket pair. Whoever dies, the other
side sees the socket close; the kernel's parent-death signal is a second rope for a child that does not look.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Final

from . import logs

_PR_SET_PDEATHSIG: Final = 1


async def spawn(
    module: str,
    *,
    executable: str = sys.executable,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    new_session: bool = False,
) -> tuple[asyncio.subprocess.Process, socket.socket]:
    """Start `module` as a process; the returned socket is our end."""
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            process = await asyncio.create_subprocess_exec(
                executable,
                "-m",
                module,
                "--fd",
                str(theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                cwd=cwd,
                env=env,
                start_new_session=new_session,
            )
    except OSError:
        ours.close()
        raise
    return process, ours


def configure_child(log_name: str) -> None:
    """First thing in a child: die with the parent, leave Ctrl-C to the front end, log lines to stderr."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died in between
            os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logs.configure("info", model=log_name)
