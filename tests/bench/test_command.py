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
from djl_python.bench.dialects import DIALECTS
from djl_python.testing import RunningServer

SMALL = ["--concurrency", "1,3", "--rounds", "2", "--requests", "4", "--prompt-tokens", "40", "--output-tokens", "6"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_endpoint(server: RunningServer, dialect: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = ["bench", server.url, "--dialect", dialect, "--model", "echo", *SMALL, "--json", str(out)]
    assert cli.main(command) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("| clients | tokens/s | requests/s | TTFT p50 ms | TTFT p90 ms | TTFT p99 ms | inter")
    assert "| latency p50 ms | latency p90 ms | latency p99 ms |" in printed[0]
    assert len(printed) == 4
    result = json.loads(out.read_text(encoding="utf-8"))
    assert [row["concurrency"] for row in result["rows"]] == [1, 3]
    assert [(row["requests"], row["failed"], row["short"], row["tokens"]) for row in result["rows"]] == [
        (8, 0, 0, 48)
    ] * 2
    assert len(result["rounds"]) == 4
    if dialect not in ("tgi", "lmi"):  # it counts prompts' tokens, and words of many letters are not a token each
        assert all(30 < row["prompt_tokens"] < 50 for row in result["rows"])


def test_a_rate_of_requests_of_a_file(
    server: RunningServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out, dataset = tmp_path / "out.json", tmp_path / "lengths.jsonl"
    dataset.write_text('{"prompt_tokens": 30, "output_tokens": 2}\n{"prompt": "Hello", "output_tokens": 5}\n')
    options = ["--request-rate", "50,100", "--dataset", str(dataset), "--rounds", "1", "--requests", "6"]
    assert cli.main(["bench", server.url, "--model", "nope", *options, "--json", str(out)]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("| sent/s | tokens/s | requests/s |")
    assert "round 1, 50 requests/s: " in said.err
    assert said.err.endswith(f"djl-serving bench: {server.url} has no model nope: echo answered\n")
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert [(row["request_rate"], row["failed"], row["tokens"]) for row in rows] == [(50, 0, 21), (100, 0, 21)]
    dataset.write_text("{}")
    assert cli.main(["bench", server.url, *options]) == 1
    assert f"djl-serving bench: {dataset}: line 1: expected a prompt" in capsys.readouterr().err


def test_a_directory_is_served_and_its_cpu_time_told(echo_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", str(echo_model), *SMALL, "--max-num-seqs", "2", "--set", "job_queue_size=50"]) == 0
    printed = capsys.readouterr().out
    assert all(f"CPU of the {name}: " in printed for name in ("server", "worker", "engine"))


def test_a_terminated_benchmark_ends_its_server(echo_model: Path) -> None:
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


def test_a_server_or_model_that_is_not_there_fails_the_benchmark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", "http://127.0.0.1:1"]) == 1
    assert "ConnectionRefusedError" in capsys.readouterr().err
    assert cli.main(["bench", str(tmp_path / "nothing")]) == 1
    assert "nothing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--concurrency", "1,x"], "like 1,8,32"),
        (["--concurrency", "0"], "like 1,8,32"),
        (["--request-rate", "0,x"], "like 0.5,2,8"),
        (["--body", "[]"], "is not a JSON object"),
        (["--dialect", "grpc"], "invalid choice"),
        (["--header", "nothing"], "expected NAME:VALUE"),
        (["--dtype", "fp32"], "--set option.dtype=fp32: http://127.0.0.1:1 is a server with settings of its own"),
        (["--round", "2", "--concurency", "1"], "there is no option --concurency; did you mean --concurrency?"),
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
