from __future__ import annotations

import io

import jsonlines

from djl_python.json_framing import FRAMINGS


def test_framings() -> None:
    payload = {"a": "é\n"}
    framed = {name: (content_type, encode(payload)) for name, (content_type, encode) in FRAMINGS.items()}
    encoded = '{"a":"é\\n"}'.encode()
    assert framed == {
        "json": ("application/json", encoded),
        "jsonlines": ("application/jsonlines", encoded + b"\n"),
        "sse": ("text/event-stream", b"data: " + encoded + b"\n\n"),
    }
    assert list(jsonlines.Reader(io.StringIO(framed["jsonlines"][1].decode()))) == [payload]
