"""`djl-serving batch` as a user runs it: processes that are stopped and killed, a server that goes and comes back."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from djl_python import cli
from djl_python.batch.journal import Journal, JournalHead
from djl_python.testing import RunningServer, free_port, running_server
from tests.batch.inputs import ids, line, read, write

COUNT = 120
TOKENS = 8


def requests(count: int = COUNT) -> list[Any]:
    return [line(f"r{number}", prompt=f"{number:04} and more", max_tokens=TOKENS) for number in range(count)]


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "djl_python", "batch", *map(str, arguments)]


def begun(folder: Path, *arguments: object) -> subprocess.Popen[str]:
    """A run that has some results and not all of them."""
    process = subprocess.Popen(command(*arguments), stderr=subprocess.PIPE, text=True)
    journal = folder / "out.jsonl.unfinished"
    deadline_s = time.monotonic() + 60
    while not journal.exists() or journal.read_bytes().count(b"\n") < 10:
        assert process.poll() is None and time.monotonic() < deadline_s
        time.sleep(0.01)
    return process


def test_every_kind_of_line_is_answered_in_order(
    demo: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(
        tmp_path / "in.jsonl",
        "Hello",
        {"inputs": "Hello", "parameters": {"max_new_tokens": 3}},
        {"messages": [{"role": "user", "content": "Hello"}], "custom_id": "mine"},
        line("tgi", "/generate", inputs="Hello", parameters={"max_new_tokens": 3}),
        line("wrong", prompt="Hello", temperature=-1),
    )
    output = tmp_path / "out.jsonl"
    body = '{"max_tokens": 4}'
    assert cli.main(["batch", "-u", demo.url, str(source), str(output), "--body", body]) == 1
    assert ids(output) == ["line-1", "line-2", "mine", "tgi"]
    first, second, third, fourth = (one["response"]["body"] for one in read(output))
    assert first["usage"]["completion_tokens"] == third["usage"]["completion_tokens"] == 4
    assert second["generated_text"] == fourth["generated_text"]
    (failed,) = read(tmp_path / "out.errors.jsonl")
    assert failed["custom_id"] == "wrong" and failed["response"]["status_code"] == 400
    assert failed["response"]["body"]["error"]["param"] == "temperature"
    assert "1 of 5 requests have errors" in capsys.readouterr().err
    assert not (tmp_path / "out.jsonl.unfinished").exists()


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, *(pytest.param(one, marks=pytest.mark.slow) for one in (signal.SIGINT, signal.SIGTERM))],
)
def test_a_run_that_was_stopped_goes_on(echo: Path, tmp_path: Path, number: signal.Signals) -> None:
    """Models in its own process, killed with it; then no request is lost, and none has two results."""
    source, output = write(tmp_path / "in.jsonl", *requests()), tmp_path / "out.jsonl"
    process = begun(tmp_path, "-m", echo, source, output)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert number == signal.SIGKILL or "the same command goes on from there" in said
    assert not output.exists()
    kept = (tmp_path / "out.jsonl.unfinished").read_bytes().splitlines(keepends=True)
    run = subprocess.run(command("-m", echo, source, output), capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 0, run.stderr
    assert "requests have their result already" in run.stderr
    assert ids(output) == [f"r{number}" for number in range(COUNT)]
    made = {one["id"]: one for one in read(output)}
    assert len(made) == COUNT
    complete = [json.loads(record)["result"] for record in kept[1:] if record.endswith(b"\n")]
    assert complete and all(made[result["id"]] == result for result in complete)
    assert all(one["response"]["body"]["choices"][0]["text"] for one in made.values())


@pytest.mark.slow
def test_a_server_that_goes_away_is_waited_for(echo: Path, tmp_path: Path) -> None:
    source, output = write(tmp_path / "in.jsonl", *requests()), tmp_path / "out.jsonl"
    with running_server("-m", f"echo={echo}") as server:
        process = begun(tmp_path, "-u", server.url, source, output, "--concurrency", "4")
    assert process.poll() is None
    port = server.url.rpartition(":")[2]
    again = [sys.executable, "-m", "djl_python", "-m", f"echo={echo}", "--port", port, "--log-level", "warning"]
    with subprocess.Popen(again, stdout=subprocess.DEVNULL) as second:
        _, said = process.communicate(timeout=60)
        second.terminate()
    assert process.returncode == 0, said
    assert ids(output) == [f"r{number}" for number in range(COUNT)]


def test_a_server_that_does_not_come_back_is_given_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = write(tmp_path / "in.jsonl", "a"), tmp_path / "out.jsonl"
    url = f"http://127.0.0.1:{free_port()}"
    assert cli.main(["batch", "-u", url, str(source), str(output), "--patience", "0.1"]) == 1
    said = capsys.readouterr().err
    assert "no request has been taken for" in said
    assert list(tmp_path.iterdir()) == [source]  # nothing that is to be gone on with


def test_results_of_another_input_are_not_gone_on_with(
    demo: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = write(tmp_path / "in.jsonl", "a"), tmp_path / "out.jsonl"
    arguments = ["batch", "-u", f"{demo.url}/v1", str(source), str(output), "--body", '{"max_tokens": 1}']
    with Journal.open(tmp_path / "out.jsonl.unfinished", JournalHead("0" * 64, 1)):
        pass
    assert cli.main(arguments) == 1
    assert "these are results of another input" in capsys.readouterr().err
    assert cli.main([*arguments, "--overwrite"]) == 0
    assert cli.main(arguments) == 1
    assert "out.jsonl is there already; --overwrite replaces it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the input has no requests"),
        ('"a"\n{\n', "line 2: not JSON"),
        ('{"custom_id": "a", "method": "PUT"}\n' * 30, "and 20 more"),
        ('{"custom_id": "a", "method": "PUT"}\n', "line 1: method: expected \"POST\", got 'PUT'"),
        ('{"prompt": "a", "stream": true}\n', "line 1: body.stream: expected false"),
    ],
)
def test_an_input_with_faults_is_refused_before_anything_is_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(content)
    assert cli.main(["batch", "-m", "/nothing", str(source), str(tmp_path / "out.jsonl")]) == 1
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "one of the arguments -m/--models -u/--url is required"),
        (["-m", "a", "-u", "http://b"], "not allowed with"),
        (["-u", "localhost:8080"], "expected http://host:port"),
        (["-u", "http://b", "--body", "[]"], "is not a JSON object"),
        (["-u", "http://b", "--concurrency", "0"], "expected a positive number"),
        (["-u", "http://b", "--header", "x"], "expected NAME:VALUE"),
        (["-u", "http://b", "--dtype", "fp32"], "http://b is a server with settings of its own"),
        (["-m", "a", "--overwrit3"], "there is no option --overwrit3; did you mean --overwrite?"),
    ],
)
def test_mistakes_in_the_arguments(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["batch", "in", "out", *arguments])
    assert ended.value.code == 2 and message in capsys.readouterr().err


def test_files_that_cant_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "in.jsonl", "a")
    assert cli.main(["batch", "-u", "http://x", str(source), str(source)]) == 1
    assert "not three different files" in capsys.readouterr().err
    assert cli.main(["batch", "-u", "http://x", str(tmp_path / "none"), str(tmp_path / "out")]) == 1
    assert "No such file" in capsys.readouterr().err


def test_a_models_settings_may_be_said(echo: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", line("a", prompt="short", max_tokens=1), line("b", prompt="x" * 40))
    output = tmp_path / "out.jsonl"
    assert cli.main(["batch", "-m", str(echo), str(source), str(output), "--max-model-len", "20"]) == 1
    assert ids(output) == ["a"]
    (wrong,) = read(tmp_path / "out.errors.jsonl")
    assert "maximum context length is 20 tokens" in json.dumps(wrong)


def test_a_model_that_does_not_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, model = write(tmp_path / "in.jsonl", "a"), tmp_path / "model"
    model.mkdir()
    (model / "model.py").write_text("raise ValueError('no such thing')\n")
    assert cli.main(["batch", "-m", str(model), str(source), str(tmp_path / "out.jsonl")]) == 1
    assert "no such thing" in capsys.readouterr().err


@pytest.mark.slow
def test_a_terminal_gets_a_bar(demo: RunningServer, tmp_path: Path) -> None:
    """And a pipe gets none: see the messages in other tests."""
    source = write(tmp_path / "in.jsonl", *requests(5))
    terminal, end = pty.openpty()
    arguments = command("-u", demo.url, source, tmp_path / "out.jsonl")
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(arguments, stderr=end, env=environment) as process:
        os.close(end)
        shown = b""
        while piece := _read(terminal):
            shown += piece
        assert process.wait(30) == 0
    os.close(terminal)
    assert b"5/5" in shown and b"tokens/s" in shown


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # Linux's way of saying that the other end is closed
        return b""
