"""Runs the commands that make an environment: processes, a lock that outlives their parent, and a stamp at the end.

Runs in the front end's event loop, and in `djl-serving engines`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shlex
import shutil
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from ...config import ENVIRONMENT_STAMP
from ...core.errors import ModelLoadError
from ...ipc.protocol import Status

Progress = Callable[[Status], None]

#: How pip installs, after the name of an interpreter.
PIP_INSTALL: Final = (
    *("-P", "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--progress-bar", "off"),
)
#: How many of its last lines explain why a command has failed.
_LAST_LINES: Final = 12
_LOCK_POLL_S: Final = 0.2


async def run(
    command: Sequence[str],
    lock: int,
    environment: Mapping[str, str] | None,
    directory: str,
    on_line: Callable[[str], None] = lambda _: None,
) -> tuple[int, list[str]]:
    """Run a command: its exit status, and the last lines that it has printed. Cancelling this kills it.

    Args:
        lock: the descriptor of a lock that the command holds too, for as long as it runs.
        environment: its variables; None: this process's.
        on_line: called with each line.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=directory,
        env=environment,
        start_new_session=True,  # a package may be built by processes of its own
        pass_fds=(lock,),
    )
    assert process.stdout is not None
    last: deque[str] = deque(maxlen=_LAST_LINES)
    unfinished = b""
    try:
        while data := await process.stdout.read(1 << 16):
            *finished, unfinished = (unfinished + data).split(b"\n")
            for line in filter(None, (line.decode(errors="replace").strip() for line in finished)):
                last.append(line)
                on_line(line)
    finally:
        if process.returncode is None and not process.stdout.at_eof():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        status = await process.wait()
        with contextlib.suppress(ProcessLookupError):  # its leftovers
            os.killpg(process.pid, signal.SIGKILL)
    return status, [*last, *filter(None, [unfinished.decode(errors="replace").strip()])]


def failure(command: Sequence[str], status: int, lines: Sequence[str], output: str = "") -> ModelLoadError:
    """The error of a command that has failed, with its last lines; `output` comes before it."""
    return ModelLoadError("\n".join([f"{output}{shlex.join(command)} ended with status {status}:", *lines]))


@contextlib.asynccontextmanager
async def made_whole(venv: Path) -> AsyncIterator[None]:
    """Make an environment in the block. First remove what a killed process left; remove everything if the block
    fails.
    """
    await asyncio.to_thread(shutil.rmtree, venv, ignore_errors=True)
    try:
        yield
    except BaseException:
        await asyncio.to_thread(shutil.rmtree, venv, ignore_errors=True)
        raise


def stamp(venv: Path, output: Mapping[str, object]) -> None:
    """Mark an environment as complete; `output`: of what it was made."""
    written = venv / f"{ENVIRONMENT_STAMP}.partial"
    written.write_text(json.dumps(output, indent=2) + "\n")
    written.replace(venv / ENVIRONMENT_STAMP)


@contextlib.asynccontextmanager
async def locked(path: Path, progress: Progress) -> AsyncIterator[int]:
    """Hold a file's lock; the descriptor. The lock ends when every process that has it has closed it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                progress(Status("loading", "waiting for an installation of the same"))
                await asyncio.sleep(_LOCK_POLL_S)
        yield lock
    finally:
        os.close(lock)
