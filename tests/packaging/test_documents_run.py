"""The README's curl lines, sent to the demo model as `make serve` serves it, give what the README prints."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from djl_python.testing import RunningServer, running_server
from tests.packaging.markdown import README, ROOT, Curl, curls, with_output

TEXT = README.read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8080"
CURLS = curls(TEXT)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server("-m", f"demo={ROOT / 'serving_templates' / 'demo'}") as running:
        yield running


def same(found: Any, expected: Any) -> bool:
    """Equal, but for `...` and the last digits of numbers, which depend on the processor."""
    if isinstance(expected, dict):
        return list(found) == list(expected) and all(same(found[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, str) and expected.endswith("..."):
        return str(found).startswith(expected.removesuffix("..."))
    return bool(found == pytest.approx(expected, abs=1e-3) if isinstance(expected, float) else found == expected)


def documents(text: str) -> list[Any]:
    """One JSON document, or one a line; that of a server-sent event in {"data": ...}."""
    try:
        return [json.loads(text)]
    except ValueError:
        return [_line(line) for line in text.splitlines() if line.strip()]


def _line(line: str) -> Any:
    event = line.removeprefix("data: ")
    return json.loads(line) if event == line else {"data": json.loads(event)}


@pytest.mark.parametrize("curl", CURLS, ids=lambda curl: f"{curl.method} {curl.url.removeprefix(ADDRESS)}")
def test_curl_line(server: RunningServer, curl: Curl) -> None:
    url = curl.url.replace(ADDRESS, server.url)
    response = httpx.request(curl.method, url, headers=curl.headers, content=curl.body, timeout=60)
    assert response.status_code == 200, response.text
    assert response.text
    if curl.prints:
        assert same(documents(response.text), documents(curl.prints)), response.text


def test_openai_client(server: RunningServer) -> None:
    ((program, prints),) = ((block.text, prints) for block, prints in with_output(TEXT, "python") if prints)
    command = [sys.executable, "-c", program.replace(ADDRESS, server.url)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert (run.stdout, run.stderr) == (prints.strip("\n"), "")


def test_the_start_prints_a_curl_line_that_works(server: RunningServer) -> None:
    printed = server.output()
    assert server.url in printed
    (shown, *_) = curls("```sh\n" + printed[printed.index("curl ") :].splitlines()[0] + "\n```\n")
    response = httpx.request(shown.method, shown.url, headers=shown.headers, content=shown.body, timeout=60)
    assert response.status_code == 200, response.text
    assert "eep learning" in response.text
