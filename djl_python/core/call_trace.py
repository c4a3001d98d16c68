"""Events and attributes that a worker adds to a call's span; the front end records the span.

Runs in the worker. A call has a `CallTrace` only where its request is traced; the front end alone knows OpenTelemetry.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Final

from .errors import printable

#: The types of attribute values that are used here; OpenTelemetry takes more.
AttributeValue = str | bool | int | float | list[str]
#: A later version may have further fields; version ff is not valid.
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?P<trace>[0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


class CallTrace:
    """Events and attributes of one call.

    Args:
        send: has the front end add them to the span: events as (name, Unix time in nanoseconds), attributes by name.

    Example::

        trace.event("prefill", began_s)
        trace.note({"gen_ai.usage.input_tokens": 12})
        trace.send()
    """

    def __init__(self, send: Callable[[list[tuple[str, int]], dict[str, AttributeValue]], None]) -> None:
        self._send = send
        self._epoch_ns = time.time_ns() - time.perf_counter_ns()  # Unix time when perf_counter was 0
        self._events: list[tuple[str, int]] = []
        self._attributes: dict[str, AttributeValue] = {}

    def event(self, name: str, at_s: float) -> None:
        """Note that something happened at a time of time.perf_counter."""
        self._events.append((name, self._epoch_ns + int(at_s * 1e9)))

    def note(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Note attributes; the last value of each counts.

        Raises:
            TypeError: a name is not text, or a value is nothing that an attribute can be (`AttributeValue`).
        """
        for name, value in attributes.items():
            if not isinstance(name, str) or not _is_value(value):
                raise TypeError(
                    f"the attribute {name!r} is {value!r}: expected text, a number, a bool or a list of texts"
                )
            self._attributes[printable(name)] = _sendable(value)

    def send(self) -> None:
        """Send what was noted since the last time."""
        if self._events or self._attributes:
            self._send(self._events, self._attributes)
            self._events, self._attributes = [], {}


def _is_value(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(element, str) for element in value)
    if isinstance(value, int):
        return -(2**63) <= value < 2**63  # as OpenTelemetry's protocol has them
    return isinstance(value, str | float)


def _sendable(value: AttributeValue) -> AttributeValue:
    if isinstance(value, list):
        return [printable(element) for element in value]
    return printable(value) if isinstance(value, str) else value


def trace_id(traceparent: str) -> str:
    """The trace's id in a `traceparent` header (W3C Trace Context); "" without a valid header."""
    match = _TRACEPARENT.fullmatch(traceparent.strip())
    return "" if match is None or not match["trace"].strip("0") else match["trace"]
