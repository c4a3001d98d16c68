"""`djl-serving bench` as a user runs it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from djl_python import cli
from djl_python.bench.cpu import cpu_seconds, role_of
from djl_python.testing import RunningServer

SMALL = ["--concurrency", "1,3", "--rounds", "2", "--requests", "4", "--prompt-tokens", "40", "--output-tokens", "6"]


@pytest.mark.parametrize("dialect", ["openai", "tgi", "lmi"])
def test_an_endpoint(server: RunningServer, dialect: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = ["bench", server.url, "--dialect", dialect, "--model", "echo", *SMALL, "--json", str(out)]
    assert cli.main(command) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("| clients | tokens/s | requests/s | TTFT p50 ms | TTFT p99 ms | inter-token p50 ms")
    assert len(printed) == 4
    result = json.loads(out.read_text(encoding="utf-8"))
    assert [row["concurrency"] for row in result["rows"]] == [1, 3]
    assert [(row["requests"], row["failed"], row["short"], row["tokens"]) for row in result["rows"]] == [
        (8, 0, 0, 48)
    ] * 2
    assert len(result["rounds"]) == 4
    if dialect == "openai":  # it counts prompts' tokens, and words of many letters are not a token each
        assert all(30 < row["prompt_tokens"] < 50 for row in result["rows"])


def test_a_directory_is_served_and_its_cpu_time_told(echo_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", str(echo_model), *SMALL]) == 0
    printed = capsys.readouterr().out
    assert all(f"CPU of the {name}: " in printed for name in ("server", "worker", "engine"))


def test_its_server_ends_with_it(echo_model: Path) -> None:
    command = [sys.executable, "-m", "djl_python", "bench", str(echo_model), *SMALL, "--rounds", "1000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "round 1" in process.stderr.readline()
        started = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
    assert len(started) == 3  # front end, worker, engine
    _, left = psutil.wait_procs(started, timeout=30)
    assert not left


def test_failures_are_told_and_the_status(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    """`n` gives four times the tokens that were asked for, but not yet where the length of prompts is found out."""
    command = ["bench", server.url, "--model", "echo", "--body", '{"max_tokens": 1}', *SMALL]
    assert cli.main([*command, "--output-tokens", "1"]) == 0
    assert cli.main(["bench", server.url, "--model", "echo", "--body", '{"max_tokens": -1}', *SMALL]) == 1
    assert "HTTP 400" in capsys.readouterr().err


def test_what_cant_be_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "http://127.0.0.1:1"]) == 1
    assert "ConnectionRefusedError" in capsys.readouterr().err
    assert cli.main(["bench", str(tmp_path / "nothing")]) == 1
    assert "nothing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--concurrency", "1,x"], "like 1,8,32"),
        (["--concurrency", "0"], "like 1,8,32"),
        (["--body", "[]"], "is not a JSON object"),
        (["--dialect", "grpc"], "invalid choice"),
        (["--header", "nothing"], "expected NAME:VALUE"),
    ],
)
def test_mistakes_in_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "http://127.0.0.1:1", *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_processes_are_told_apart(server: RunningServer) -> None:
    seconds = cpu_seconds(server.process.pid)
    assert {"server", "worker", "engine"} <= set(seconds) and min(seconds.values()) > 0
    assert role_of(["python", "-m", "djl_python.engine", "--fd", "3"]) == "engine"
    assert role_of(["sh"]) == "other"
