"""The server that `chat` and `run` start for a model: on a Unix socket of its own, for this command alone.

Runs in the command's own process; the server is a child, which ends with the command, however that ends, and hears
nothing of the terminal's Ctrl-C.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from ..config import own_server_environment

_READY: Final = "djl-serving is ready at"
#: Lines of the server's that are kept.
_KEPT_LINES: Final = 200
#: How long it may take to end after SIGTERM: it has no requests of others to finish.
_END_S: Final = 10.0
#: A socket's path has 107 characters at most; its directory's name is put before this many.
_LONGEST_FOLDER: Final = 90


class StartError(Exception):
    """The server did not start; the message has its last lines."""


class OwnServer:
    """A server that is starting, or has started.

    Attributes:
        socket: the path of its Unix socket.
        lines: the last lines that it has printed.
    """

    def __init__(self, model: str, socket: Path, settings: Sequence[str]) -> None:
        self.socket = socket
        self.lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._printed: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "djl_python.terminal.served"),
                *(model, "--log-level", "warning", *(f"--set={text}" for text in settings)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=own_server_environment(socket),
            start_new_session=True,
        )
        threading.Thread(target=self._read, name="server's output", daemon=True).start()

    def wait_ready(self, on_progress: Callable[[str], None]) -> None:
        """Wait until it serves; `on_progress` is told each line that it prints meanwhile.

        Raises:
            StartError: it ended.
        """
        while (line := self._printed.get()) is not None:
            if line.startswith(_READY):
                return
            if line.strip():
                on_progress(line)
        self._process.wait()
        raise StartError("\n".join(self.lines).strip() or f"the server ended with status {self._process.returncode}")

    def end(self) -> None:
        """End it, and wait for its end."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))
            self._printed.put(line.rstrip("\n"))
        self._printed.put(None)


@contextlib.contextmanager
def own_server(model: str, on_progress: Callable[[str], None], settings: Sequence[str] = ()) -> Iterator[OwnServer]:
    """A server with this model, from its start to its end.

    Args:
        model: as the command line of the server takes it: a directory, a URL, or name:version:engine:devices=URL.
        settings: KEY=VALUE, as `--set` takes it.

    Raises:
        StartError: it did not start.
    """
    with tempfile.TemporaryDirectory(prefix="djl-", dir=_short(tempfile.gettempdir())) as folder:
        server = OwnServer(model, Path(folder, "socket"), settings)
        try:
            server.wait_ready(on_progress)
            yield server
        finally:
            server.end()


def _short(folder: str) -> str:
    return folder if len(folder) <= _LONGEST_FOLDER else "/tmp"
