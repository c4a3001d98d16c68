"""`chat`, `run`, `bench` and `batch` with a server of another maker: vLLM's own, which wants a key."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from djl_python.testing import free_port
from tests.real.engines import environment, lacking
from tests.terminal.conftest import Terminal

pytestmark = pytest.mark.slow

KEY = "sesame"
WITH_KEY = {"DJL_API_KEY": KEY}


@pytest.fixture(scope="module")
def vllm(smol: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of vLLM's server with SmolLM2."""
    if reason := lacking("vllm"):
        pytest.skip(reason)
    url, log = f"http://127.0.0.1:{(port := free_port())}", tmp_path_factory.mktemp("vllm") / "log"
    arguments = ["--host", "127.0.0.1", "--port", str(port), "--api-key", KEY, "--served-model-name", "smol"]
    limits = ["--max-model-len", "512", "--max-num-seqs", "4", "--dtype", "float32", "--enforce-eager"]
    variables = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1"}
    python = environment("vllm") / "bin" / "python"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(smol), *arguments, *limits],
            env={**os.environ, **variables},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline_s = time.monotonic() + 900
        while not _serves(url):
            assert process.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < deadline_s
            time.sleep(1)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def _serves(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False


def djl(*arguments: str, key: bool = True, stdin: str = "") -> tuple[int, str, str]:
    """Exit status, stdout and stderr of `djl-serving ARGUMENTS`."""
    done = subprocess.run(
        [sys.executable, "-m", "djl_python", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, **(WITH_KEY if key else {})},
    )
    return done.returncode, done.stdout, done.stderr


def test_run(vllm: str) -> None:
    status, out, err = djl("run", vllm, "--temperature", "0", "--max-tokens", "12", "What is the capital of France?")
    assert (status, err) == (0, "") and "Paris" in out
    status, out, err = djl("run", vllm, "-", "--completion", "--max-tokens", "4", stdin="The capital of France is")
    assert (status, err) == (0, "") and out.strip()


def test_mistakes_are_told_in_the_servers_words(vllm: str) -> None:
    status, out, err = djl("run", vllm, "Hello", key=False)
    assert (status, out) == (1, "")
    assert err == "djl-serving run: 401: Unauthorized (--api-key, or the variable DJL_API_KEY, sends a key)\n"
    status, _, err = djl("run", vllm, "Hello", "--model", "smoll")
    assert status == 1 and "404: The model `smoll` does not exist" in err
    status, _, err = djl("run", vllm, "Hello", "--temperature", "99")
    assert status == 1 and "400: temperature must be in [0, 2]" in err


def test_chat(vllm: str) -> None:
    terminal = Terminal(["chat", vllm, "--no-history", "--temperature", "0", "--max-tokens", "12", "--stats"], WITH_KEY)
    terminal.see(f"smol at {vllm}")
    terminal.enter("What is the capital of France?")
    assert "Paris" in terminal.see(r"\d+ tokens in [\d.]+ s")
    terminal.prompted().child.sendeof()
    assert terminal.end() == 0


def test_bench(vllm: str, tmp_path: Path) -> None:
    measured = tmp_path / "measured.json"
    status, _, err = djl(
        *("bench", vllm, "--dialect", "openai-chat", "--concurrency", "2", "--rounds", "1", "--requests", "4"),
        *("--output-tokens", "8", "--prompt-tokens", "32", "--json", str(measured)),
    )
    assert status == 0, err
    (row,) = json.loads(measured.read_text())["rows"]
    assert (row["failed"], row["short"]) == (0, 0) and row["tokens_s"] > 0
    status, _, err = djl("bench", vllm, "--rounds", "1", key=False)
    assert status == 1 and "HTTP 401" in err and "DJL_API_KEY sends a key" in err


def test_a_batch(vllm: str, tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    lines = [
        {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": {**chat, "model": name}}
        for name in ("smol", "smoll")
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    status, _, err = djl("batch", "-u", vllm, str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"))
    assert status == 1 and "1 of 2 requests have errors" in err
    written = "".join((tmp_path / f"{name}.jsonl").read_text() for name in ("out", "out.errors"))
    results = list(map(json.loads, written.splitlines()))
    assert [(one["custom_id"], one["response"]["status_code"]) for one in results] == [("smol", 200), ("smoll", 404)]
