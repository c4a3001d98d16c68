from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from djl_python.batch.lines import MAX_FAULTS, LineError, Rules, read_line, scan
from tests.batch.inputs import line, scanned

PLAIN = Rules(plain=True)


@pytest.mark.parametrize(
    ("given", "custom_id", "url", "body"),
    [
        ("hi", "line-7", "/v1/completions", {"prompt": "hi"}),
        ({"prompt": "hi", "max_tokens": 3}, "line-7", "/v1/completions", {"prompt": "hi", "max_tokens": 3}),
        ({"input": ["hi"]}, "line-7", "/v1/embeddings", {"input": ["hi"]}),
        ({"inputs": "hi", "parameters": {}}, "line-7", "/invocations", {"inputs": "hi", "parameters": {}}),
        ({"messages": [], "custom_id": "a"}, "a", "/v1/chat/completions", {"messages": []}),
        (line("b", "/v2/models/m/generate", text_input="x"), "b", "/v2/models/m/generate", {"text_input": "x"}),
    ],
)
def test_a_line_is_a_request(given: Any, custom_id: str, url: str, body: Any) -> None:
    request = read_line(7, json.dumps(given).encode(), PLAIN)
    assert (request.custom_id, request.url, json.loads(request.body)) == (custom_id, url, body)


def test_defaults_are_for_bodies_without_them() -> None:
    rules = Rules(plain=True, defaults={"max_tokens": 5, "model": "m"})
    request = read_line(1, b'{"prompt": "a", "max_tokens": 3}', rules)
    assert json.loads(request.body) == {"prompt": "a", "max_tokens": 3, "model": "m"}


@pytest.mark.parametrize(
    ("raw", "code", "param"),
    [
        (b"{", "invalid_json_line", None),
        (b'"\xff"', "invalid_json_line", None),
        (b"[1]", "invalid_json_line", None),
        (b'"a plain prompt"', "invalid_json_line", None),
        (b"[" * 5000, "invalid_json_line", None),
        (b'{"prompt": "a"}', "missing_required_parameter", "custom_id"),
        (b'{"custom_id": ""}', "missing_required_parameter", "custom_id"),
        (b'{"custom_id": 1}', "missing_required_parameter", "custom_id"),
        (b'{"custom_id": "a", "method": "GET"}', "invalid_method", "method"),
        (b'{"custom_id": "a", "method": "POST"}', "missing_required_parameter", "url"),
        (b'{"custom_id": "a", "method": "POST", "url": "/x"}', "invalid_url", "url"),
        (b'{"custom_id": "a", "method": "POST", "url": "/y", "body": 1}', "missing_required_parameter", "body"),
        (
            b'{"custom_id": "a", "method": "POST", "url": "/y", "body": {"stream": true}}',
            *("invalid_request", "body.stream"),
        ),
    ],
)
def test_a_line_that_is_no_request_says_which_field(raw: bytes, code: str, param: str | None) -> None:
    with pytest.raises(LineError) as refused:
        read_line(3, raw, Rules(urls=("/y",)))
    assert (refused.value.code, refused.value.param) == (code, param)
    assert param is None or refused.value.message.startswith(f"{param}: ")


def test_a_scan_finds_every_fault_and_where(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'"a"\n\n{\n{"custom_id": "line-1", "prompt": "b"}\n"last, without an end"')
    source = scan(path, PLAIN)
    assert list(source.numbers) == [1, 3, 4, 5]  # as an editor counts
    assert [(fault.line, fault.code) for fault in source.faults] == [
        (3, "invalid_json_line"),
        (4, "duplicate_custom_id"),
    ]


def test_faults_are_counted_beyond_those_that_are_told(tmp_path: Path) -> None:
    source = scanned(tmp_path, *[{}] * (MAX_FAULTS + 5))
    assert (len(source.faults), source.fault_count) == (MAX_FAULTS, MAX_FAULTS + 5)


def test_an_input_has_requests_and_not_too_many(tmp_path: Path) -> None:
    assert [fault.code for fault in scanned(tmp_path).faults] == ["empty_file"]
    assert [fault.code for fault in scanned(tmp_path, line("a"), line("b"), max_lines=1).faults] == [
        "too_many_requests"
    ]
    assert not scanned(tmp_path, line("a"), max_lines=1).faults


def test_requests_are_read_by_index(tmp_path: Path) -> None:
    source = scanned(tmp_path, *(line(f"r{number}", model=f"m{number}") for number in range(5)))
    with source.path.open("rb") as file:
        assert [(index, one.custom_id) for index, one in source.requests([3, 1], file)] == [(3, "r3"), (1, "r1")]
    assert source.model == "m0"
