from __future__ import annotations

import json
from pathlib import Path

import pytest

from djl_python.bench.traffic.recording import Privacy, RecordedRequest, Recorder, RecordingHead, read


def entry(**fields: object) -> RecordedRequest:
    return RecordedRequest(**{"at_s": 0.5, "method": "POST", "path": "/", "headers": {}, "body": "{}", **fields})  # type: ignore[arg-type]


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "r"
    recorder = Recorder(path, RecordingHead(1.0, "http://a"))
    entries = [entry(), entry(**Privacy().kept_body(b"\xff\x00")), entry(body=None, body_bytes=7)]
    for one in entries:
        recorder.add(one)
    recorder.close()
    assert list(read(path)) == entries
    assert [one.content for one in entries] == [b"{}", b"\xff\x00", b""]
    with pytest.raises(FileExistsError):
        Recorder(path, RecordingHead(1.0, "http://a"))


@pytest.mark.parametrize("content", ["", "{}\n", "no json\n", '{"began_s": 1, "target": "a"}\n{"at_s": 1}\n'])
def test_a_file_that_is_no_recording_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "r"
    path.write_text(content)
    if content:
        with pytest.raises(ValueError, match=r"line [12]: not a recording"):
            list(read(path))
    else:
        assert list(read(path)) == []


def test_secrets_are_never_kept() -> None:
    """Headers are kept by name, and those of secrets not even then."""
    headers = {
        "Authorization": "Bearer s3cret",
        "COOKIE": "s3cret",
        "Proxy-Authorization": "s3cret",
        "X-Api-Key": "s3cret",
        "X-Amz-Security-Token": "s3cret",
        "X-Tenant": "acme",
        "Content-Type": "application/json",
    }
    assert Privacy().kept_headers(headers) == {"content-type": "application/json"}
    asked = Privacy(headers={"authorization", "cookie", "x-tenant"})
    assert asked.kept_headers(headers) == {"content-type": "application/json", "x-tenant": "acme"}
    assert Privacy().kept_path("/a?api_key=s3cret&n=1&X-Amz-Signature=s3cret") == (
        "/a?api_key=redacted&n=1&X-Amz-Signature=redacted"
    )
    assert Privacy().kept_path("/a%20b?q=%2F") == "/a%20b?q=%2F"


def test_bodies_may_be_left_out_or_redacted() -> None:
    body = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": [{"text": "Hi, Zoë!"}]}], "max_tokens": 3}
    ).encode()
    assert Privacy(bodies=False).kept_body(body) == {"body": None, "body_bytes": len(body)}
    redacted = json.loads(Privacy(redacted={"content"}).kept_body(body)["body"])
    assert redacted["messages"] == [{"role": "user", "content": [{"text": "xx, xxx!"}]}]
    assert (redacted["model"], redacted["max_tokens"]) == ("m", 3)
    assert Privacy(redacted={"content"}).kept_body(b"Hi, in plain text")["body"] == ""
