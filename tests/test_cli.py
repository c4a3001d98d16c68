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
from djl_python.commands import models
from djl_python.commands.table import COMMANDS
from djl_python.config import ModelConfig, ModelSpec, ServerConfig
from djl_python.core import logs
from djl_python.core.errors import ConfigError

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

    def serve(config: ServerConfig, model_configs: Mapping[ModelSpec, ModelConfig | ConfigError]) -> int:
        calls.append((config, model_configs))
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


def test_help_is_a_command_and_so_is_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out == f"djl-serving {__version__}\n"
    assert cli.main(["help"]) == 0
    assert "djl-serving check /models" in capsys.readouterr().out
    for name in COMMANDS:
        assert cli.main(["help", name]) == 0
        assert capsys.readouterr().out.startswith("usage: djl-serving")


def test_help_explains_settings(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("max-model-len", "--max-model-len", "option.max_model_len"):
        assert cli.main(["help", name]) == 0
        assert capsys.readouterr().out.startswith(
            "--max-model-len INTEGER\n    option.max_model_len, of a model. Tokens"
        )
    assert cli.main(["help", "settings"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert {"--dtype VALUE", "--trust-remote-code", "--job-queue-size INTEGER", "--max-request-size INTEGER"} <= {
        *listed
    }
    assert cli.main(["help", "dtpe"]) == 2
    assert "no setting dtpe; did you mean dtype?" in capsys.readouterr().err


@pytest.mark.parametrize(("word", "meant"), [("chek", "check"), ("bnech", "bench"), ("versoin", "version")])
def test_a_mistyped_command_is_no_model(
    word: str, meant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([word, "/models/llama"]) == 2
    first, *_ = capsys.readouterr().err.splitlines()
    assert first == f"djl-serving: there is no command and no model {word}; did you mean djl-serving {meant}?"


def test_a_model_may_be_called_nearly_like_a_command(
    model: Path, served: list[Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    model.rename("chek")
    assert cli.main(["chek"]) == 0
    assert [spec.name for spec in served[0][1]] == ["chek"]


def configs(served: list[Served]) -> list[ModelConfig]:
    """The configurations of the models that were to be served last."""
    return [known for known in served[-1][1].values() if isinstance(known, ModelConfig)]


def test_settings_of_all_models_and_of_one(model: Path, served: list[Served]) -> None:
    both = [f"a={model}", f"b:2={model}"]
    settings = ["--max-model-len=2048", "--set", "b:dtype=fp32", "--set=a:dtype=bf16", "--set", "a:max_model_len=16"]
    assert cli.main([*both, *settings]) == 0
    a, b = configs(served)
    assert (a.option.dtype, a.option.max_model_len) == ("bf16", 16), (
        "what names a model is stronger than what is for all"
    )
    assert (b.option.dtype, b.option.max_model_len) == ("fp32", 2048)
    assert a.provenance["option.dtype"] == "command line"
    assert cli.main([*both, "--set", "b:2:dtype=fp32"]) == 0
    assert [one.option.dtype for one in configs(served)] == ["fp16", "fp32"]


def test_settings_of_the_server_and_a_name_of_the_only_model(model: Path, served: list[Served]) -> None:
    arguments = ["--set", "max_request_size=1000", "--cors-allowed-origin", "*", "--served-model-name", "owner/name"]
    assert cli.main([str(model), *arguments]) == 0
    server, model_configs = served[-1]
    assert (server.max_request_size, server.cors_allowed_origin) == (1000, "*")
    assert server.provenance["max_request_size"] == "command line"
    assert [spec.name for spec in model_configs] == ["owner/name"]
    assert cli.main(["--model", str(model), "-m", f"b={model}", "--served-model-name", "c"]) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["--max-modle-len", "3"],
            "there is no option --max-modle-len; did you mean --max-model-len? (option.max_model",
        ),
        (
            ["--tensor-paralel-size=3"],
            "no option --tensor-paralel-size; did you mean --tensor-parallel-size? (option.t",
        ),
        (["--hosst", "::"], "there is no option --hosst; did you mean --host?"),
        (["--nothing-like-it"], "there is no option --nothing-like-it; djl-serving help settings"),
        (["--max-model-len"], "--max-model-len: expected a value (option.max_model_len: Tokens of"),
        (["--max-model-len", "--dtype=bf16"], "--max-model-len: expected a value"),
        (["--enforce-eager=maybe"], "--enforce-eager=maybe: expected no value, or true or false"),
        (
            ["--set", "dtpe=3"],
            "--set dtpe=3: there is no setting dtpe; did you mean dtype? (option.dtype: Number format",
        ),
        (["--set", "dtype"], "--set dtype: expected KEY=VALUE, or MODEL:KEY=VALUE"),
        (["--set", "eco:dtype=fp16"], "there is no model eco; there is echo"),
        (["--set", "echo:max_request_size=3"], "max_request_size is the server's, not a model's"),
        (["--dtype", "fp99"], "command line: option.dtype=fp99: expected one of auto"),
    ],
)
def test_mistakes_in_settings(
    model: Path, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str], served: list[Served]
) -> None:
    try:
        status = cli.main([str(model), *arguments])
    except SystemExit as ended:
        status = int(str(ended.code))
    assert status in (1, 2) and not served
    assert told in capsys.readouterr().err


def test_when_all_models_are_wrong_each_is_named(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([f"a={model}", f"b={model}", "--dtype", "fp99", "--set", "b:max_model_len=x"]) == 1
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.startswith("djl-serving: model a: command line: option.dtype=fp99")
    assert [line.partition(": command line")[0] for line in rest] == ["  model b", "  model b"]


def test_with_nothing_to_serve_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(models, "CONTAINER_STORE", tmp_path / "missing")
    assert cli.main([]) == 2
    assert "djl-serving DIR" in capsys.readouterr().err


def test_a_container_serves_its_model_directory(
    monkeypatch: pytest.MonkeyPatch, model: Path, served: list[Served]
) -> None:
    monkeypatch.setattr(models, "CONTAINER_STORE", model.parent)
    assert cli.main([]) == 0
    ((_, model_configs),) = served
    assert [spec.name for spec in model_configs] == ["echo"]


def test_models_are_positional_or_options_and_the_port_is_the_command_lines(model: Path, served: list[Served]) -> None:
    assert cli.main([str(model), "-m", f"other:2={model}", "-p", "0", "--host", "127.0.0.2"]) == 0
    config, model_configs = served[0]
    assert [(spec.name, spec.version) for spec in model_configs] == [("echo", ""), ("other", "2")]
    assert [known.name for known in model_configs.values() if isinstance(known, ModelConfig)] == ["echo", "other"]
    assert (config.inference_address.host, config.inference_address.port) == ("127.0.0.2", 0)


def test_serve_may_be_said(model: Path, served: list[Served]) -> None:
    assert cli.main(["serve", str(model), "-p", "9000"]) == 0
    (config, model_configs), *_ = served
    assert (config.inference_address.port, len(model_configs)) == (9000, 1)


def test_a_model_store_is_added_to_named_models(model: Path, tmp_path: Path, served: list[Served]) -> None:
    assert cli.main(["-s", str(tmp_path), "-m", f"named={model}"]) == 0
    ((_, model_configs),) = served
    assert sorted(spec.name for spec in model_configs) == ["echo", "named"]


def test_of_several_models_one_may_be_configured_wrongly(model: Path, tmp_path: Path, served: list[Served]) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "serving.properties").write_text("option.dtype=fp99\n")
    assert cli.main([str(model), "-m", f"wrong:2={bad}"]) == 0
    _, model_configs = served[0]
    (good, config), (wrong, error) = model_configs.items()
    assert good.name == "echo" and isinstance(config, ModelConfig)
    assert (wrong.name, wrong.version) == ("wrong", "2") and isinstance(error, ConfigError)
    assert "option.dtype=fp99: expected one of" in error.message


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
    monkeypatch.setattr(models, "CONTAINER_STORE", model.parent)
    monkeypatch.setenv("SAGEMAKER_MULTI_MODEL", "true")
    monkeypatch.setenv("SAGEMAKER_BIND_TO_PORT", "9876")
    assert cli.main([]) == 0
    ((config, model_configs),) = served
    assert model_configs == {} and config.inference_address.port == 9876
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
