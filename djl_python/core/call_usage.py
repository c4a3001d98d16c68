"""How many tokens a call has had so far. Runs in the worker.

A call has a `CallUsage` only where the front end counts its sender's tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

#: After so many generated tokens they are sent: the front end knows what is in flight, with few messages.
_SEND_EVERY: Final = 64


class CallUsage:
    """The tokens of one call; whoever answers it adds to them.

    Args:
        send: sends the front end both numbers.
    """

    __slots__ = ("_send", "generated_tokens", "prompt_tokens")

    def __init__(self, send: Callable[[int, int], None]) -> None:
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self._send = send

    def generated(self) -> None:
        """One more token has been generated. In the event loop: it may be sent."""
        self.generated_tokens += 1
        if self.generated_tokens >= _SEND_EVERY:
            self.send()

    def send(self) -> None:
        """Send the front end the tokens since the last time, if there are any."""
        if self.prompt_tokens or self.generated_tokens:
            self._send(self.prompt_tokens, self.generated_tokens)
            self.prompt_tokens = self.generated_tokens = 0
