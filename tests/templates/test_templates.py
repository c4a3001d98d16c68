"""Every template is what it says: served by a real server, it answers its README's curl lines as the README prints."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from djl_python.testing import RunningServer, running_server
from tests.hub_templates import TEMPLATES, requests_of, send, with_checkpoint
from tests.packaging.answers import documents, same
from tests.packaging.documents import ROOT
from tests.packaging.markdown import blocks, commands, curls, with_output

#: Templates that need nothing but this repository; the names are those of their READMEs.
SERVED = {
    "custom_handler": "language",
    "streaming_handler": "words",
    "dynamic_batch": "alike",
    "chat": "chat",
    "formatters": "formatted",
    "sessions": "diary",
}
#: Those that have an engine too, and are dear to start. TGI's and MindIE's routes are those of the default model.
MORE = [
    {"tgi": "tgi", "triton": "triton", "async_mode": "generation", "reasoning": "reasoning"},
    {"mindie": "mindie"},
    {"adapters": "adapted"},
    {"requirements": "letters"},  # which takes pip
]
ALL = sorted(path.name for path in TEMPLATES.iterdir() if (path / "serving.properties").is_file())


def readme(template: str) -> str:
    return (TEMPLATES / template / "README.md").read_text(encoding="utf-8")


def options(templates: Mapping[str, str]) -> list[str]:
    return [option for folder, name in templates.items() for option in ("-m", f"{name}={TEMPLATES / folder}")]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """One server for all of them: they live side by side."""
    with running_server(*options(SERVED)) as running:
        yield running


def check_readme(server: RunningServer, template: str) -> None:
    """Hold a template's requests and programs to what its README prints."""
    requests, programs = curls(readme(template)), with_output(readme(template), "python")
    assert requests or programs
    for program, prints in programs:
        command = [sys.executable, "-c", program.text.replace("http://127.0.0.1:8080", server.url)]
        run = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
        assert (run.returncode, run.stdout.strip()) == (0, prints.strip()), run.stderr
    for curl in requests:
        response = send(server, curl)
        assert response.status_code == 200, response.text
        assert curl.prints
        assert same(documents(response.text), documents(curl.prints)), response.text


@pytest.mark.parametrize("template", SERVED)
def test_readme_is_true(server: RunningServer, template: str) -> None:
    check_readme(server, template)


@pytest.mark.slow
@pytest.mark.parametrize("templates", MORE, ids=lambda templates: "-".join(templates))
def test_readmes_of_others_are_true(templates: dict[str, str], tmp_path: Path) -> None:
    default = {"SERVING_DEFAULT_MODEL": next(iter(templates.values()))}
    environment = {**default, "DJL_CACHE_DIR": str(tmp_path)}
    with running_server(*options(templates), environment=environment, start_timeout_s=240) as running:
        for template in templates:
            check_readme(running, template)


def test_every_template_is_served() -> None:
    served = {
        *SERVED,
        *(template for templates in MORE for template in templates),
        *("huggingface_hub", "demo"),
        "embeddings",  # tests/real/test_retrieval.py
        *("rerank", "classification", "summarization"),  # test_hub_templates.py
    }
    assert served == {*ALL}


def test_the_hub_s_template_serves_what_it_names(tmp_path: Path) -> None:
    """A copy, for which the checkpoint is here already."""
    copy = with_checkpoint("huggingface_hub", TEMPLATES / "demo", tmp_path)
    requests = requests_of("huggingface_hub")
    assert requests
    with running_server("-m", f"smollm={copy}") as running:
        for curl in requests:
            response = send(running, curl)
            assert response.status_code == 200
            assert response.json()["generated_text"]


@pytest.mark.parametrize("template", [name for name in ALL if name != "demo"])
def test_readme_serves_this_directory(template: str) -> None:
    served = [words for block in blocks(readme(template)) for words in commands(block) if words[0] == "djl-serving"]
    assert served
    assert all(words[-1].rpartition("=")[2] == f"template://{template}" for words in served)


@pytest.mark.parametrize("template", [name for name in ALL if name != "demo"])
def test_check_accepts(template: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "djl_python", "check", str(TEMPLATES / template)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr


def test_check_shows_the_hub_model() -> None:
    command = [sys.executable, "-m", "djl_python", "check", str(TEMPLATES / "huggingface_hub")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    assert "HuggingFaceTB/SmolLM2-135M-Instruct" in result.stdout


def test_custom_handler_refuses_what_it_does_not_take(server: RunningServer) -> None:
    response = httpx.post(f"{server.url}/predictions/language", json={"txt": "hello"})
    assert response.status_code == 400
    assert response.json()["error"] == 'expected {"text": "..."}'


def test_custom_handler_reads_its_own_option(server: RunningServer) -> None:
    response = httpx.post(f"{server.url}/predictions/language", json={"text": "xyzzy"})
    assert response.json() == {"language": "unknown", "score": 0.0}


def test_dynamic_batch_keeps_items_apart(server: RunningServer) -> None:
    """Sixteen at once, good ones and bad ones: each gets its own answer."""

    def ask(number: int) -> tuple[int, dict[str, object]]:
        body = {"a": "listen", "b": "silent"} if number % 2 else {"a": "no b"}
        response = httpx.post(f"{server.url}/predictions/alike", json=body, timeout=30)
        return response.status_code, response.json()

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(16)))
    assert answers[1::2] == [(200, {"similarity": 1.0})] * 8
    assert [(status, body["error"]) for status, body in answers[::2]] == [
        (400, 'expected {"a": "...", "b": "..."}')
    ] * 8


def test_dynamic_batch_shows_its_batches_at_metrics(server: RunningServer) -> None:
    def batched(what: str) -> float:
        text = httpx.get(f"{server.url}/metrics").text
        lines = [line for line in text.splitlines() if line.startswith(f'djl_batch_size_{what}{{model="alike"')]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def ask(_: int) -> int:
        body = {"a": "listen", "b": "silent"}
        return httpx.post(f"{server.url}/predictions/alike", json=body, timeout=30).status_code

    requests, batches = batched("sum"), batched("count")
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(32))) == [200] * 32
    deadline_s = time.monotonic() + 10
    while batched("sum") < requests + 32 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert batched("sum") == requests + 32
    assert batches + 2 <= batched("count") < batches + 32
