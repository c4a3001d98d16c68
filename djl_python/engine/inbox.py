"""The engine's inbox: a thread reads the worker's messages, and ends the process when the worker has gone.

Runs in the engine process. Messages wait in memory while a step runs or a model is loaded.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Callable

from ..ipc.framing import FrameReader
from ..ipc.protocol import AnyMessage, Open, ProbeText

log = logging.getLogger(__name__)

_READ_BYTES = 1 << 16
EXIT_BROKEN_FRAME = 4


class Inbox:
    """Messages from the worker, read by a thread of their own."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._messages: deque[AnyMessage] = deque()
        self._arrived = threading.Condition()
        self._on_arrival: Callable[[], object] = lambda: None
        self._woken = False
        self._expects_text = False
        self._probe_ids: list[int] | None = None
        threading.Thread(target=self._read, name="inbox", daemon=True).start()

    def first(self) -> AnyMessage:
        """Wait for a message, and take it alone."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._messages)
            return self._messages.popleft()

    def take(self, *, at_most_s: float = 0.0) -> list[AnyMessage]:
        """Everything that has arrived. Waits so many seconds for a message, or `wake`, if there is none."""
        with self._arrived:
            if at_most_s and not self._messages and not self._woken:
                self._arrived.wait(at_most_s)
            self._woken = False
            messages = list(self._messages)
            self._messages.clear()
        return messages

    def wake(self) -> None:
        """Have `take` return at once, once. Called in any thread."""
        with self._arrived:
            self._woken = True
            self._arrived.notify_all()

    def probe_ids(self) -> list[int]:
        """Wait for the `ProbeText`, if the worker has announced one; its ids, else []."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._probe_ids is not None or not self._expects_text)
            return self._probe_ids or []

    def when_arrived(self, callback: Callable[[], object]) -> None:
        """Have `callback` called, in the reading thread, whenever messages have arrived, and now if some have."""
        with self._arrived:
            self._on_arrival = callback
            if self._messages:
                callback()

    def _read(self) -> None:
        status = EXIT_BROKEN_FRAME
        try:
            reader = FrameReader()
            with contextlib.suppress(ConnectionError):  # from a worker that left without reading all that it was sent
                while data := self._sock.recv(_READ_BYTES):
                    messages = reader.feed(data)
                    with self._arrived:
                        for message in messages:
                            if isinstance(message, Open):
                                self._expects_text = message.sends_text
                            elif isinstance(message, ProbeText):
                                self._probe_ids = message.ids
                        self._messages += messages
                        self._arrived.notify_all()
                        self._on_arrival()
            status = 0
        except ValueError as exc:
            log.critical("what the worker sent is not a frame: %s", exc)
        finally:
            os._exit(status)  # whatever ended this thread: nobody would hear the worker, or its end, any more
