"""Another server as a process: started, waited for, measured, and ended with all its children."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from djl_python.testing import RunningServer


@dataclass(frozen=True)
class Launch:
    """How a server is started: `environment` is added to ours; `ready_path` answers 200 when it can be measured."""

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    ready_path: str = "/health"


@contextlib.contextmanager
def started(launch: Launch, port: int, start_timeout_s: float) -> Iterator[RunningServer]:
    """Run it, in a session of its own, until the block ends.

    Raises:
        RuntimeError: it ended, or was not ready in time; the message has the end of its output.
    """
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        log = Path(folder) / "output"
        with log.open("wb") as sink:
            process = subprocess.Popen(
                list(launch.command),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, **launch.environment},
                start_new_session=True,
            )
        server = RunningServer(url, process, log)
        try:
            deadline_s = time.monotonic() + start_timeout_s
            while not _answers(url + launch.ready_path):
                if process.poll() is not None:
                    raise RuntimeError(f"it ended with status {process.returncode}:\n{server.output()[-4000:]}")
                if time.monotonic() > deadline_s:
                    raise RuntimeError(f"it is not ready after {start_timeout_s:g} s:\n{server.output()[-4000:]}")
                time.sleep(0.2)
            yield server
        finally:
            _end(process)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.HTTPError, OSError):
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the whole session to end; after ten seconds, make it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):  # all of it has ended
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
