import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from djl_python import __version__, cli
from djl_python.config import ModelConfig, ModelSpec, ServerConfig
from djl_python.core import logs
from djl_python.core.errors import ConfigError
from tests.sketches import write_sketch

Served = tuple[ServerConfig, Mapping[ModelSpec, ModelConfig | ConfigError]]


def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "djl_python", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=30,
        **options,
    )


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Served]:
    """What there is to be served, and nothing is."""
    calls: list[Served] = []

    def serve(config: ServerConfig, found: Mapping[ModelSpec, ModelConfig | ConfigError]) -> int:
        calls.append((config, found))
        return 0

    monkeypatch.setattr("djl_python.server.lifecycle.serve", serve)
    return calls


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "echo"
    directory.mkdir()
    (directory / "model.py").write_text("def handle(inputs):\n    return None\n")
    (directory / "serving.properties").write_text("option.dtype=fp16\noption.predict_timout=3\n")
    return directory


def test_help_shows_examples_and_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    for argument, expected in (("--help", "djl-serving check /models"), ("--version", __version__)):
        with pytest.raises(SystemExit) as exit_:
            cli.main([argument])
        assert exit_.value.code == 0
        assert expected in capsys.readouterr().out


def test_with_nothing_to_serve_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(cli, "CONTAINER_STORE", tmp_path / "missing")
    assert cli.main([]) == 2
    assert "djl-serving DIR" in capsys.readouterr().err


def test_a_container_serves_its_model_directory(
    monkeypatch: pytest.MonkeyPatch, model: Path, served: list[Served]
) -> None:
    monkeypatch.setattr(cli, "CONTAINER_STORE", model.parent)
    assert cli.main([]) == 0
    ((_, found),) = served
    assert [spec.name for spec in found] == ["echo"]


def test_models_are_positional_or_options_and_the_port_is_the_command_lines(model: Path, served: list[Served]) -> None:
    assert cli.main([str(model), "-m", f"other:2={model}", "-p", "0", "--host", "127.0.0.2"]) == 0
    config, found = served[0]
    assert [(spec.name, spec.version) for spec in found] == [("echo", ""), ("other", "2")]
    assert [known.name for known in found.values() if isinstance(known, ModelConfig)] == ["echo", "other"]
    assert (config.inference_address.host, config.inference_address.port) == ("127.0.0.2", 0)


def test_serve_may_be_said(model: Path, served: list[Served]) -> None:
    assert cli.main(["serve", str(model), "-p", "9000"]) == 0
    (config, found), *_ = served
    assert (config.inference_address.port, len(found)) == (9000, 1)


def test_a_model_store_is_added_to_named_models(model: Path, tmp_path: Path, served: list[Served]) -> None:
    assert cli.main(["-s", str(tmp_path), "-m", f"named={model}"]) == 0
    ((_, found),) = served
    assert sorted(spec.name for spec in found) == ["echo", "named"]


def test_of_several_models_one_may_be_configured_wrongly(model: Path, tmp_path: Path, served: list[Served]) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "serving.properties").write_text("option.dtype=fp99\n")
    assert cli.main([str(model), "-m", f"wrong:2={bad}"]) == 0
    _, found = served[0]
    (good, config), (wrong, error) = found.items()
    assert good.name == "echo" and isinstance(config, ModelConfig)
    assert (wrong.name, wrong.version) == ("wrong", "2") and isinstance(error, ConfigError)
    assert "option.dtype=fp99: expected one of" in error.message


def test_check_prints_settings_warnings_and_handler(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", str(model)]) == 0
    out = capsys.readouterr().out
    assert "option.dtype" in out and "serving.properties:1" in out
    assert "option.predict_timeout" in out and "option.predict_timout is not known" in out
    assert f"handler\n  {model / 'model.py'}, function handle\n" in out


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
        assert f"\n  warning: option.{gpus} has no effect: there is no GPU\n" in out
    assert "\n  warning: batch_size=4 has no effect" in out
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
    assert done.stdout.endswith("\nloaded\n  it loads, and what runs it is the handler's business\n")
    (pid,) = (model / "pid").read_text().split()
    assert not Path("/proc", pid).exists()
    (model / "model.py").write_text("def handle(inputs): ...\n1 / 0\n")
    done = run("check", model, "--load")
    assert done.returncode == 1 and "djl-serving: Model echo did not load" in done.stderr
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


@pytest.mark.parametrize("command", [["check"], []])
def test_a_wrong_setting_is_one_readable_block(model: Path, command: list[str]) -> None:
    (model / "serving.properties").write_text("option.dtype=fp99\noption.predict_timeout=soon\n")
    done = run(*command, model)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    first, second = done.stderr.splitlines()
    assert first.startswith("djl-serving: ") and "serving.properties:1: option.dtype=fp99: expected one of" in first
    assert second.startswith("  ") and "serving.properties:2: option.predict_timeout=soon" in second


def test_a_mistake_is_told_without_loading_the_server_or_torch() -> None:
    check = "cli.main(['check', '/no/such/directory']); cli.main(['check', 'serving_templates/demo'])"
    code = f"import sys; from djl_python import cli; {check}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert "text-generation, built in" in done.stdout
    loaded = done.stdout.split()
    assert "djl_python.cli" in loaded
    assert not {"torch", "tornado", "transformers"} & set(loaded)


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


def test_a_server_that_ends_with_a_broken_pipe_does_not_end_quietly(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve(*_: object) -> int:
        raise BrokenPipeError

    monkeypatch.setattr("djl_python.server.lifecycle.serve", serve)
    with pytest.raises(BrokenPipeError):
        cli.main([str(model)])


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_streams_may_be_closed(model: Path, tmp_path: Path, closed: str) -> None:
    path = tmp_path / "socket"
    environment = {**os.environ, "SERVING_INFERENCE_ADDRESS": f"unix:{path}"}
    command = f"exec {shlex.quote(sys.executable)} -m djl_python {shlex.quote(str(model))} {closed}"
    with subprocess.Popen(["sh", "-c", command], env=environment, stderr=subprocess.DEVNULL) as server:
        try:
            wait_until_listening(path, server)
        finally:
            server.terminate()
    assert server.returncode == 0


def wait_until_listening(path: Path, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while True:
        with socket.socket(socket.AF_UNIX) as client, suppress(FileNotFoundError, ConnectionRefusedError):
            client.connect(str(path))
            return
        assert server.poll() is None, f"ended with status {server.returncode}"
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_models_of_a_multi_model_endpoint_come_later(
    model: Path, monkeypatch: pytest.MonkeyPatch, served: list[Served]
) -> None:
    monkeypatch.setattr(cli, "CONTAINER_STORE", model.parent)
    monkeypatch.setenv("SAGEMAKER_MULTI_MODEL", "true")
    monkeypatch.setenv("SAGEMAKER_BIND_TO_PORT", "9876")
    assert cli.main([]) == 0
    ((config, found),) = served
    assert found == {} and config.inference_address.port == 9876
    assert cli.main(["check"]) == 0


def test_the_log_level_is_sagemakers_unless_the_command_line_has_one(
    model: Path, monkeypatch: pytest.MonkeyPatch, served: list[Served], capsys: pytest.CaptureFixture[str]
) -> None:
    for said, options, level in (("10", [], "debug"), ("10", ["--log-level", "error"], "error"), ("", [], "info")):
        monkeypatch.setenv("SAGEMAKER_CONTAINER_LOG_LEVEL", said)
        assert cli.main([str(model), *options]) == 0
        assert logs.level() == level
    monkeypatch.setenv("SAGEMAKER_CONTAINER_LOG_LEVEL", "loud")
    assert cli.main([str(model)]) == 1
    assert "SAGEMAKER_CONTAINER_LOG_LEVEL=loud: expected one of debug" in capsys.readouterr().err


def test_check_without_a_model_looks_at_what_would_be_served(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "CONTAINER_STORE", tmp_path / "missing")
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
