"""What the worker sends to the engine: read by a thread, which ends the process when the worker has gone.

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

from ..ipc.protocol import AnyMessage, FrameReader, Open, TrialText
from .trial_text import sent_text

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
        threading.Thread(target=self._read, name="inbox", daemon=True).start()

    def first(self) -> AnyMessage:
        """Wait for a message, and take it alone."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._messages)
            return self._messages.popleft()

    def take(self, *, wait: bool) -> list[AnyMessage]:
        """Everything that has arrived; with `wait`, at least one message."""
        with self._arrived:
            if wait:
                self._arrived.wait_for(lambda: self._messages)
            messages = list(self._messages)
            self._messages.clear()
        return messages

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
                    for message in messages:
                        if isinstance(message, Open) and message.sends_text:
                            sent_text.expect()
                        elif isinstance(message, TrialText):
                            sent_text.arrive(message.ids)
                    with self._arrived:
                        self._messages += messages
                        self._arrived.notify()
                        self._on_arrival()
            status = 0
        except ValueError as exc:
            log.critical("what the worker sent is not a frame: %s", exc)
        finally:
            os._exit(status)  # whatever ended this thread: nobody would hear the worker, or its end, any more
