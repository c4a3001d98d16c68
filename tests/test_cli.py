import subprocess
import sys
from pathlib import Path

import pytest

from djl_python import __version__, cli


def run(*arguments: object, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "djl_python", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=30,
        **options,
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "echo"
    directory.mkdir()
    (directory / "model.py").write_text("def handle(inputs):\n    return None\n")
    (directory / "serving.properties").write_text("option.dtype=fp16\noption.predict_timout=3\n")
    return directory


def test_help_shows_examples_and_the_version_is_the_packages(capsys):
    for argument, expected in (("--help", "djl-serving check /models"), ("--version", __version__)):
        with pytest.raises(SystemExit) as exit_:
            cli.main([argument])
        assert exit_.value.code == 0
        assert expected in capsys.readouterr().out


def test_with_nothing_to_serve_it_says_what_to_do(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(cli, "CONTAINER_STORE", tmp_path / "missing")
    assert cli.main([]) == 2
    assert "djl-serving DIR" in capsys.readouterr().err


def test_a_container_serves_its_model_directory(monkeypatch, model):
    served = []
    monkeypatch.setattr(cli, "CONTAINER_STORE", model.parent)
    monkeypatch.setattr("djl_python.server.lifecycle.serve", lambda config, models, broken: served.extend(models) or 0)
    assert cli.main([]) == 0
    assert [config.name for config in served] == ["echo"]


def test_models_are_positional_or_options_and_the_port_is_the_command_lines(monkeypatch, model):
    served = []
    monkeypatch.setattr("djl_python.server.lifecycle.serve", lambda *arguments: served.append(arguments) or 0)
    assert cli.main([str(model), "-m", f"other:2={model}", "-p", "0", "--host", "127.0.0.2"]) == 0
    config, models, broken = served[0]
    assert not broken
    assert [(one.name, one.version) for one in models] == [("echo", ""), ("other", "2")]
    assert (config.inference_address.host, config.inference_address.port) == ("127.0.0.2", 0)


def test_a_model_store_is_added_to_named_models(monkeypatch, model, tmp_path):
    served = []
    monkeypatch.setattr("djl_python.server.lifecycle.serve", lambda config, models, broken: served.extend(models) or 0)
    assert cli.main(["-s", str(tmp_path), "-m", f"named={model}"]) == 0
    assert sorted(one.name for one in served) == ["echo", "named"]


def test_of_several_models_one_may_be_configured_wrongly(monkeypatch, model, tmp_path):
    served = []
    monkeypatch.setattr("djl_python.server.lifecycle.serve", lambda *arguments: served.append(arguments) or 0)
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "serving.properties").write_text("option.dtype=fp99\n")
    assert cli.main([str(model), "-m", f"wrong:2={bad}"]) == 0
    _, models, broken = served[0]
    assert [one.name for one in models] == ["echo"]
    ((spec, problem),) = broken.items()
    assert (spec.name, spec.version) == ("wrong", "2") and "option.dtype=fp99: expected one of" in problem


def test_check_prints_settings_warnings_and_handler(model, capsys):
    assert cli.main(["check", str(model)]) == 0
    out = capsys.readouterr().out
    assert "option.dtype" in out and "serving.properties:1" in out
    assert "option.predict_timeout" in out and "option.predict_timout is not known" in out
    assert f"handler\n  {model / 'model.py'}, function handle\n" in out


def test_check_names_the_built_in_handler_and_a_chosen_one(tmp_path, capsys):
    (tmp_path / "config.json").write_text("{}")
    assert cli.main(["check", str(tmp_path)]) == 0
    assert f"{cli.BUILT_IN_HANDLER}, built in, with the checkpoint {tmp_path}" in capsys.readouterr().out
    (tmp_path / "serving.properties").write_text("option.entryPoint=mine.py\noption.handler=answer\n")
    assert cli.main(["check", str(tmp_path)]) == 1
    assert f"there is no mine.py in {tmp_path}" in capsys.readouterr().err
    (tmp_path / "mine.py").touch()
    assert cli.main(["check", str(tmp_path)]) == 0
    assert "mine.py (option.entryPoint), function answer" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["check"], []])
def test_a_wrong_setting_is_one_readable_block(model, command):
    (model / "serving.properties").write_text("option.dtype=fp99\noption.predict_timeout=soon\n")
    done = run(*command, model)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    first, second = done.stderr.splitlines()
    assert first.startswith("djl-serving: ") and "serving.properties:1: option.dtype=fp99: expected one of" in first
    assert second.startswith("  ") and "serving.properties:2: option.predict_timeout=soon" in second


def test_a_mistake_is_told_without_loading_the_server_or_torch():
    code = "import sys; from djl_python import cli; cli.main(['check', '/no/such/directory']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    loaded = done.stdout.split()
    assert "djl_python.cli" in loaded
    assert not {"torch", "tornado", "transformers"} & set(loaded)
