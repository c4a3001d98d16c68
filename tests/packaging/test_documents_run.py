"""What the documents show happens: their requests, sent to one server, are answered as they print; their programs run.

The server has the demo model, as `make serve` serves it, and every model directory of which a document shows the files
(a block such as ```python greeter/model.py).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from djl_python.testing import RunningServer, running_server
from tests.packaging.answers import documents, same
from tests.packaging.documents import DOCUMENTS, ROOT
from tests.packaging.markdown import Block, Curl, blocks, commands, curls, with_output

HOST = "127.0.0.1:8080"
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in DOCUMENTS}
FILES = [block for text in TEXTS.values() for block in blocks(text) if block.file]
CURLS = [pytest.param(curl, id=f"{name} {curl.url}") for name, text in TEXTS.items() for curl in curls(text)]
#: A document whose program needs trained weights -> where that is tried.
ELSEWHERE = {"djl_python/docs/embeddings.md": "tests/real/test_retrieval.py"}
PROGRAMS = [
    pytest.param(block, prints, id=f"{name} {block.text.splitlines()[0]}")
    for name, text in TEXTS.items()
    for block, prints in with_output(text, "python")
    if prints and not block.file and name not in ELSEWHERE
]
BATCHES = [
    (words, prints)
    for text in TEXTS.values()
    for block, prints in with_output(text, "sh")
    for words in commands(block)
    if words[:2] == ["djl-serving", "batch"] and prints.startswith("{")
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
def server(directories: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    names = sorted({Path(block.file).parts[0] for block in FILES if len(Path(block.file).parts) > 1})
    batches = tmp_path_factory.mktemp("batches")
    models = [option for name in names for option in ("-m", f"{name}={directories / name}")]
    with running_server(
        *("-m", f"demo={ROOT / 'serving_templates' / 'demo'}", *models),
        environment={"SERVING_DEFAULT_MODEL": "demo", "SERVING_BATCH_DIRECTORY": str(batches)},
    ) as running:
        yield running


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


@pytest.mark.parametrize(("words", "prints"), BATCHES)
def test_batches_have_the_output_that_is_shown(directories: Path, words: list[str], prints: str) -> None:
    command = [sys.executable, "-m", "djl_python", *words[1:]]
    run = subprocess.run(command, cwd=directories, capture_output=True, text=True, check=False, timeout=120)
    assert "1 of 4 requests have errors: answers.errors.jsonl" in run.stderr, run.stderr
    assert same(documents((directories / "answers.jsonl").read_text(encoding="utf-8")), documents(prints))


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
