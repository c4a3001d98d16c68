from __future__ import annotations

import io
import json

import jsonlines
import numpy as np
import pytest

from djl_python.formats.json_framing import FRAMINGS, encode_json


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


@pytest.mark.parametrize("key", [None, True, False, np.bool_(True), 3, "a"], ids=repr)
def test_keys_that_are_no_text(key: object) -> None:
    """A dictionary may have classes for its keys, and what a line of CSV has beyond its header is under None."""
    same = key.item() if isinstance(key, np.bool_) else key
    assert json.loads(encode_json({key: [None, True]})) == json.loads(json.dumps({same: [None, True]}))
