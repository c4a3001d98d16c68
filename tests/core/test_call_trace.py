import time
from typing import Any

import pytest

from djl_python.core.call_trace import CallTrace, trace_id
from djl_python.ipc.framing import FrameReader, encode_frame
from djl_python.ipc.protocol import Trace

ID = "0af7651916cd43dd8448eb211c80319c"


def test_events_and_attributes_are_sent_once() -> None:
    sent: list[tuple[Any, Any]] = []
    trace = CallTrace(lambda events, attributes: sent.append((events, attributes)))
    trace.send()
    before_ns = time.time_ns()
    trace.event("began", time.perf_counter())
    trace.note({"a": 1})
    trace.note({"a": 2, "b": "c"})
    trace.send()
    trace.send()
    (((name, at_ns),), attributes) = sent.pop()
    assert name == "began" and abs(at_ns - before_ns) < 1e9
    assert attributes == {"a": 2, "b": "c"} and not sent


@pytest.mark.parametrize("value", [None, {}, [1], ["a", None], 2**63, b"bytes", object()])
def test_an_attribute_of_a_wrong_type_is_refused_at_once(value: Any) -> None:
    trace = CallTrace(lambda events, attributes: None)
    with pytest.raises(TypeError, match=r"the attribute 'a' is .*: expected text, a number, a bool or a list of texts"):
        trace.note({"a": value})


def test_every_value_can_be_sent() -> None:
    sent: list[bytes] = []
    trace = CallTrace(lambda events, attributes: sent.append(encode_frame([Trace(1, events, attributes)])))
    trace.note({"a": "\ud800", "b": -(2**63), "c": 1.5, "d": True, "\ud800": ["x", "\ud800"]})
    trace.send()
    (message,) = FrameReader().feed(sent.pop())
    assert isinstance(message, Trace)
    assert message.attributes == {"a": "\\ud800", "b": -(2**63), "c": 1.5, "d": True, "\\ud800": ["x", "\\ud800"]}


@pytest.mark.parametrize(
    ("traceparent", "expected"),
    [
        (f"00-{ID}-b7ad6b7169203331-01", ID),
        (f" 00-{ID}-b7ad6b7169203331-00 ", ID),
        (f"cc-{ID}-b7ad6b7169203331-01-what-a-later-version-adds", ID),
        (f"ff-{ID}-b7ad6b7169203331-01", ""),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", ""),
        (f"00-{ID.upper()}-b7ad6b7169203331-01", ""),
        (f"00-{ID}", ""),
        ("", ""),
    ],
)
def test_the_trace_that_a_header_names(traceparent: str, expected: str) -> None:
    assert trace_id(traceparent) == expected
