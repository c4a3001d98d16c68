"""The text to try a model on, which the worker sends while it is being loaded. Runs in the engine process.

The worker has the tokenizer; it reads it while this process imports torch. Its message is taken by the thread that
reads the socket, and waited for by the one that opens the model.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Final


@dataclass
class SentText:
    """The text that the worker sends while the model is being loaded, if it said that it would."""

    _ids: list[int] = field(default_factory=list)
    _pending: threading.Event | None = None

    def expect(self) -> None:
        self._pending = threading.Event()

    def arrive(self, ids: list[int]) -> None:
        self._ids = ids
        if self._pending is not None:
            self._pending.set()

    def ids(self) -> list[int]:
        """Wait for the text if one is expected; its ids, none where no worker sends any."""
        if self._pending is not None:
            self._pending.wait()
        return self._ids


#: This process's.
sent_text: Final = SentText()
