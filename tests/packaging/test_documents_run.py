"""What the documents show happens: their requests, sent to one server, are answered as they print; their programs run.

The server has the demo model, as `make serve` serves it, and every model directory of which a document shows the files
(a block such as ```python greeter/model.py).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from djl_python.testing import RunningServer, running_server
from tests.packaging.documents import DOCUMENTS, ROOT
from tests.packaging.markdown import Block, Curl, blocks, curls, with_output

HOST = "127.0.0.1:8080"
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in DOCUMENTS}
FILES = [block for text in TEXTS.values() for block in blocks(text) if block.file]
CURLS = [pytest.param(curl, id=f"{name} {curl.url}") for name, text in TEXTS.items() for curl in curls(text)]
PROGRAMS = [
    pytest.param(block, prints, id=f"{name} {block.text.splitlines()[0]}")
    for name, text in TEXTS.items()
    for block, prints in with_output(text, "python")
    if prints and not block.file
]
TESTS = [block for block in FILES if Path(block.file).name.startswith("test_")]


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the documents' files lie, beside the repository's templates."""
    folder = tmp_path_factory.mktemp("documents")
    (folder / "serving_templates").symlink_to(ROOT / "serving_templates")
    for block in FILES:
        path = folder / block.file
        assert not path.exists(), f"{block.file} is in the documents twice"
        path.parent.mkdir(exist_ok=True)
        path.write_text(block.text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def server(directories: Path) -> Iterator[RunningServer]:
    names = sorted({Path(block.file).parts[0] for block in FILES})
    models = [option for name in names for option in ("-m", f"{name}={directories / name}")]
    with running_server(
        *("-m", f"demo={ROOT / 'serving_templates' / 'demo'}", *models),
        environment={"SERVING_DEFAULT_MODEL": "demo"},
    ) as running:
        yield running


def same(found: Any, expected: Any) -> bool:
    """Equal, but for `...` and the last digits of numbers, which depend on the processor.

    `...` stands for the end of a text, or, as a key, for what else an object has.
    """
    if isinstance(expected, dict):
        keys = [key for key in expected if key != "..."]
        if len(keys) == len(expected) and list(found) != keys:
            return False
        return all(key in found and same(found[key], expected[key]) for key in keys)
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, str) and expected.endswith("..."):
        return str(found).startswith(expected.removesuffix("..."))
    return bool(found == pytest.approx(expected, abs=1e-3) if isinstance(expected, float) else found == expected)


def documents(text: str) -> list[Any]:
    """One JSON document, or one a line; that of a server-sent event in {"data": ...}; a line that is none as it is."""
    try:
        return [json.loads(text)]
    except ValueError:
        return [_line(line) for line in text.splitlines() if line.strip()]


def _line(line: str) -> Any:
    event = line.removeprefix("data: ")
    try:
        return json.loads(line) if event == line else {"data": json.loads(event)}
    except ValueError:
        return line


@pytest.mark.parametrize("curl", CURLS)
def test_requests_are_answered_as_printed(server: RunningServer, curl: Curl) -> None:
    url = curl.url.replace(f"http://{HOST}", server.url)
    response = httpx.request(curl.method, url, headers=curl.headers, content=curl.body, timeout=60)
    assert response.status_code == 200, response.text
    assert response.text or not curl.prints
    if curl.prints:
        assert same(documents(response.text), documents(curl.prints)), response.text


@pytest.mark.parametrize(("program", "prints"), PROGRAMS)
def test_programs_print_what_is_shown(server: RunningServer, program: Block, prints: str) -> None:
    command = [sys.executable, "-c", program.text.replace(HOST, server.url.removeprefix("http://"))]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")
    assert same(documents(run.stdout), documents(prints)), run.stdout


@pytest.mark.parametrize("block", TESTS, ids=lambda block: block.file)
def test_tests_that_are_shown_pass(directories: Path, block: Block) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(directories / block.file)]
    run = subprocess.run(command, cwd=directories, capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_start_prints_a_curl_line_that_works(server: RunningServer) -> None:
    printed = server.output()
    assert server.url in printed
    (line,) = (line for line in printed.splitlines() if "curl " in line and "/predictions/demo " in line)
    (shown,) = curls(f"```sh\n{line.strip()}\n```\n")
    response = httpx.request(shown.method, shown.url, headers=shown.headers, content=shown.body, timeout=60)
    assert response.status_code == 200, response.text
    assert "eep learning" in response.text
