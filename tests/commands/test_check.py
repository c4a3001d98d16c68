"""`djl-serving check` as a user runs it."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from djl_python import cli
from djl_python.commands import models
from tests.conftest import DEMO
from tests.sketches import write_sketch


def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "djl_python", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=30,
        **options,
    )


def test_check_prints_settings_warnings_and_handler(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", str(model)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("model echo: nothing is wrong with it, but there is 1 warning\n\nwarnings\n")
    assert "  serving.properties:2: option.predict_timout is not known: passed to the handler; did you mean" in out
    assert f"\nhandler\n  {model / 'model.py'}, function handle\n" in out
    assert "\n  option.dtype           fp16  serving.properties:1\n" in out
    assert "option.predict_timeout  " not in out, "it has its default"
    assert cli.main(["check", str(model), "--all"]) == 0
    assert "option.predict_timeout  " in capsys.readouterr().out


def test_settings_of_the_command_line_win_and_are_shown(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", str(model), "--dtype", "bf16", "--set", "batch_size=4", "--enable-lora"]) == 0
    out = capsys.readouterr().out
    for key, value in (("option.dtype", "bf16"), ("batch_size", "4"), ("option.enable_lora", "true")):
        assert [key, value, "command", "line"] in [line.split() for line in out.splitlines()]
    assert "option.enable_lora has no effect" not in out


def test_memory_is_estimated_before_anything_is_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert cli.main(["check", str(DEMO), "--set", "kv_cache_memory_mb=8"]) == 0
    out = capsys.readouterr().out
    assert re.search(
        r"\nmemory\n  weights         about \d+ MiB\n  KV cache        up to 8 MiB, 1 MiB of it at once\n", out
    )
    assert " MiB before any request, and " in out and "\n  free now        " in out
    assert cli.main(["check", "owner/model"]) == 0
    out = capsys.readouterr().out
    assert "\n  unknown: owner/model is not downloaded yet\n" in out
    assert "\nnot looked at\n  the checkpoint owner/model, which start would download\n" in out


def test_memory_is_told_of_a_model_with_formatters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "serving.properties").write_text(f"option.model_id={DEMO}\n")
    formatters = "from djl_python.output_formatter import output_formatter\n@output_formatter\ndef f(response): ...\n"
    (tmp_path / "model.py").write_text(formatters)
    assert cli.main(["check", str(tmp_path)]) == 0
    assert "\nmemory\n  weights  " in capsys.readouterr().out


def test_a_checkpoint_of_djls_service_that_is_not_here_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "serving.properties"
    settings.write_text(
        "option.model_id=owner/model\noption.task=fill-mask\noption.entryPoint=djl_python.huggingface\n"
    )
    assert cli.main(["check", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "nothing is wrong with the parts that are here" in out
    assert "\nnot looked at\n  the checkpoint owner/model, which start would download\n" in out
    settings.write_text("option.model_id=owner/model\n")
    assert cli.main(["check", str(tmp_path)]) == 0
    assert "built in, with the checkpoint owner/model (its config.json decides the task)" in capsys.readouterr().out


def test_check_downloads_nothing_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """What the command line says of the model is checked all the same."""
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        nobody.setblocking(False)
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/x.zip"
        assert cli.main(["check", url]) == 0
        out = capsys.readouterr().out
        assert out.startswith("model x: nothing is wrong with the parts that are here\n\nnot looked at\n")
        assert f"\n  {url}, which start would download: its serving.properties, its code, its checkpoint, " in out
        assert "\nhandler\n" not in out
        assert cli.main(["check", url, "--set", "dtype=fp31"]) == 1
        assert "dtype=fp31: expected" in capsys.readouterr().err
        with pytest.raises(BlockingIOError):
            nobody.accept()


def test_check_names_the_built_in_handler_and_a_chosen_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    write_sketch(tmp_path)
    assert cli.main(["check", str(tmp_path)]) == 0
    assert f"text-generation, built in, with the checkpoint {tmp_path}\n" in capsys.readouterr().out
    (tmp_path / "serving.properties").write_text(
        "option.tensor_parallel_degree=max\noption.enforce_eager=true\nbatch_size=4\n"
    )
    assert cli.main(["check", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    for gpus in ("tensor_parallel_degree=max", "enforce_eager=true"):
        assert re.search(rf"\n  serving.properties:[12]: option.{gpus} has no effect: there is no GPU\n", out)
    assert "\n  serving.properties:3: batch_size=4 has no effect" in out
    (tmp_path / "serving.properties").write_text("option.entryPoint=mine.py\noption.handler=answer\n")
    assert cli.main(["check", str(tmp_path)]) == 1
    assert f"mine.py does not exist in {tmp_path}" in capsys.readouterr().err
    (tmp_path / "mine.py").write_text("def answer(inputs): ...\n")
    assert cli.main(["check", str(tmp_path)]) == 0
    assert "mine.py (option.entryPoint), function answer" in capsys.readouterr().out


def test_check_load_runs_a_handler_and_ends_it(model: Path) -> None:
    (model / "serving.properties").write_text("minWorkers=3\n")
    (model / "model.py").write_text("import os\nopen('pid', 'a').write(f'{os.getpid()} ')\ndef handle(inputs): ...\n")
    done = run("check", model, "--load")
    assert (done.returncode, done.stderr) == (0, "model echo: loading its handler\n")
    assert done.stdout.startswith("model echo: it loads\n")
    assert "\nloaded\n  the model's own handler runs it\n" in done.stdout
    (pid,) = (model / "pid").read_text().split()
    assert not Path("/proc", pid).exists()
    (model / "model.py").write_text("def handle(inputs): ...\n1 / 0\n")
    done = run("check", model, "--load")
    assert done.returncode == 1 and "djl-serving: it does not load: ZeroDivisionError" in done.stderr
    assert "ZeroDivisionError" in done.stderr


def test_check_says_what_would_be_installed_and_installs_nothing(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DJL_VENV_DIR", str(tmp_path / "venvs"))
    (model / "requirements.txt").write_text("no-such-package\n")
    assert cli.main(["check", str(model)]) == 0
    out = capsys.readouterr().out
    assert f"\nenvironment\n  interpreter  {sys.executable} (Python 3." in out
    assert f"\n  installs     {model}/requirements.txt\n  into         {tmp_path}/venvs/" in out
    assert not (tmp_path / "venvs").exists()


def test_check_prints_what_the_terminal_has_no_letters_for(tmp_path: Path) -> None:
    model = tmp_path / "日本"
    model.mkdir()
    (model / "model.py").write_text("def handle(inputs): ...")
    done = subprocess.run(
        [sys.executable, "-m", "djl_python", "check", str(model)],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\u65e5\\u672c" in done.stdout


def test_check_ends_quietly_when_its_output_is_read_no_further(model: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "djl_python", "check", str(model)]
    try:
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=30)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_check_without_a_model_looks_at_what_would_be_served(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(models, "CONTAINER_STORE", tmp_path / "missing")
    assert cli.main(["check"]) == 2
    assert "nothing to serve" in capsys.readouterr().err
    monkeypatch.setenv("HF_MODEL_ID", str(write_sketch(tmp_path / "small")))
    assert cli.main(["check"]) == 0
    assert "text-generation, built in" in capsys.readouterr().out
    monkeypatch.setenv("HF_MODEL_ID", "owner/name")
    monkeypatch.setenv("OPTION_OUTPUT_FORMATTER", "xml")
    assert cli.main(["check"]) == 1
    said = capsys.readouterr()
    assert "environment HF_MODEL_ID" in said.out
    assert said.err.startswith(
        "djl-serving: environment OPTION_OUTPUT_FORMATTER: option.output_formatter=xml: expected"
    )


def test_check_tells_the_faults_of_every_model_and_of_the_server(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "serving.properties").write_text("option.dtype=fp99\noption.handler=anser\n")
    (bad / "model.py").write_text("import nosuchmodule\ndef answer(inputs): ...\n")
    monkeypatch.setenv("SERVING_JOB_QUEUE_SIZE", "none")
    assert cli.main(["check", "-s", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert f"{model / 'model.py'}, function handle" in said.out
    server, title, *faults = said.err.splitlines()
    assert server == "djl-serving: environment SERVING_JOB_QUEUE_SIZE: job_queue_size=none: expected an integer >= 1"
    assert title == "djl-serving: model bad:"
    assert [fault.strip().partition(" ")[0] for fault in faults] == [
        "serving.properties:1:",
        f"{bad}/model.py:1:",
        "model.py",
    ]
    assert faults[-1].endswith("did you mean answer?")
