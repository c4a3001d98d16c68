"""The deadline that a request sets itself. Runs in the worker's event loop."""

from __future__ import annotations

import time
from dataclasses import dataclass

from djl_python.core.errors import PayloadError
from djl_python.core.turns.deadline import DEADLINE_HEADER, timeout_of
from djl_python.inputs import Input


@dataclass(frozen=True)
class Deadline:
    """When an answer has to be complete.

    Attributes:
        timeout_s: the request's own limit, in seconds from its arrival at the server.
        due_s: the end of that time, by time.perf_counter.
    """

    timeout_s: float
    due_s: float

    @classmethod
    def of(cls, inputs: Input, arrived_s: float) -> Deadline | None:
        """The deadline of a call that reached this worker at `arrived_s`; None: it has none.

        Raises:
            PayloadError: the header is no number of seconds.
        """
        if not (text := inputs.get_property(DEADLINE_HEADER)):
            return None
        if (timeout_s := timeout_of(text)) is None:
            raise PayloadError(f"{DEADLINE_HEADER}: expected a number of seconds above 0, got {text[:60]!r}")
        return cls(timeout_s, arrived_s - inputs.waited_s + timeout_s)

    def left_s(self) -> float:
        """The time that is left, in seconds; 0.0 once the deadline has passed."""
        return max(0.0, self.due_s - time.perf_counter())
