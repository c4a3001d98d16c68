import subprocess
import sys
from pathlib import Path

import pytest

from djl_python.commands.handler_check import handler_of
from djl_python.config import ENVIRONMENT_STAMP, worker_environment
from djl_python.core.errors import ModelLoadError
from djl_python.engine.deepspeed.row import ENGINE
from djl_python.server.environments import plan_of, prepare
from tests.server.environments.packages import WORKERS, bare_interpreter, model_of, read


def test_check_is_told_what_would_be_installed_and_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m" / "requirements").mkdir(parents=True)
    monkeypatch.setenv("DJL_VENV_DIR", str(tmp_path / "venvs"))
    plan = plan_of(model_of(tmp_path / "m", "cow\n", tmp_path))
    assert plan is not None and plan.venv is not None
    lines = [line.split(maxsplit=1) for line in plan.described().splitlines()]
    assert [name for name, _ in lines] == ["interpreter", "installs", "into"]
    assert lines[1][1] == f"{tmp_path}/m/requirements.txt, with what is in {tmp_path}/m/requirements"
    assert lines[2][1] == f"{plan.venv} (made when the model is loaded)"
    assert plan.venv.parent == tmp_path / "venvs" and not plan.venv.parent.exists()


def test_requirements_and_interpreter_decide_the_environments_path(tmp_path: Path) -> None:
    def venv(requirements: str, properties: str = "") -> Path | None:
        plan = plan_of(model_of(tmp_path / "m", requirements, tmp_path, properties))
        assert plan is not None
        return plan.venv

    python = bare_interpreter(tmp_path / "python", *WORKERS)
    offline = "option.env=DJL_OFFLINE=1"
    places = [venv("cow"), venv("cow==1"), venv("cow", f"option.pythonExecutable={python}"), venv("cow", offline)]
    assert len(set(places)) == 4 and None not in places
    assert venv("cow") == places[0]
    assert venv("cow", "option.enable_venv=false") is None


def test_torch_is_a_choice(tmp_path: Path) -> None:
    """It is not installed because a worker needs it; what the model's requirements name is."""
    python = bare_interpreter(tmp_path / "python")
    model_of(tmp_path / "m", None, tmp_path, f"option.pythonExecutable={python}\noption.model_id=some/model")
    (tmp_path / "m" / "model.py").unlink()
    with pytest.raises(ModelLoadError) as raised:
        plan_of(read(tmp_path / "m"))
    message = raised.value.message
    assert message.startswith(f"{python} lacks jsonlines>=4.0, msgspec>=0.21, accelerate>=1.1,")
    assert "torch is not installed unasked: " in message and message.endswith("'transformers>=5.9,<6'")
    (tmp_path / "m" / "requirements.txt").write_text("torch\n")
    assert plan_of(read(tmp_path / "m")) is not None


def test_nothing_is_fetched_offline(tmp_path: Path) -> None:
    python = bare_interpreter(tmp_path / "python", "jsonlines")
    properties = f"option.pythonExecutable={python}\noption.env=DJL_OFFLINE=true"
    with pytest.raises(ModelLoadError) as raised:
        plan_of(model_of(tmp_path / "m", "cow\n", tmp_path, properties))
    assert raised.value.message == (
        f"{python} lacks msgspec>=0.21, which workers need; nothing is fetched (DJL_OFFLINE): "
        f"{python} -m pip install 'msgspec>=0.21'"
    )
    (tmp_path / "m" / "requirements").mkdir()
    plan = plan_of(read(tmp_path / "m"))
    assert plan is not None
    folder = str(tmp_path / "m" / "requirements")
    assert plan.index() == plan.arguments()[:3] == ("--no-index", "-f", folder)


def test_a_version_that_workers_can_not_run_with_is_refused_before_anything_is_installed(tmp_path: Path) -> None:
    text = "cow\nTransformers == 4.40.0  # of last year\ntorch==2.7.0\naccelerate>=0.1\nllguidance[x]==1.0.0\n"
    model = tmp_path / "m"
    model_of(model, text, tmp_path, "option.model_id=some/model")
    assert plan_of(read(model)) is not None  # its own model.py is the user's business
    (model / "model.py").unlink()
    with pytest.raises(ModelLoadError) as raised:
        plan_of(read(model))
    assert raised.value.message.splitlines() == [
        f"{model}/requirements.txt:2: transformers==4.40.0 does not go with transformers>=5.9,<6, which workers need",
        f"{model}/requirements.txt:5: llguidance==1.0.0 does not go with llguidance>=1.9, which workers need",
    ]


async def test_code_that_imports_an_engines_package_runs_in_the_engines_environment(tmp_path: Path) -> None:
    """Where that is installed; what the model requires comes over it, and brings the package instead if it names it."""
    config = model_of(tmp_path / "m", None, tmp_path, "engine=DeepSpeed\n")
    (tmp_path / "m" / "model.py").write_text("import helper\n\n\ndef handle(inputs):\n    return None\n")
    (tmp_path / "m" / "helper.py").write_text("import deepspeed\n")
    assert plan_of(config) is None
    with pytest.raises(ModelLoadError, match="install it with: djl-serving engines install deepspeed"):
        handler_of(config)
    assert ENGINE.distribution is not None
    venv = ENGINE.distribution.directory("deepspeed", "cpu", config.cache_dir)
    python = bare_interpreter(venv, *WORKERS)
    (site,) = venv.glob("lib/*/site-packages")
    (site / "deepspeed.py").write_text("where = __file__\n")
    assert plan_of(config) is None  # until it is complete
    (venv / ENVIRONMENT_STAMP).write_text("{}")
    ready = await prepare(config, lambda _: None)
    assert ready.runtime.executable == str(python)
    command = [ready.runtime.executable, "-P", "-c", "import deepspeed; print(deepspeed.where)"]
    done = subprocess.run(command, capture_output=True, text=True, env=worker_environment(ready), cwd="/", check=True)
    assert done.stdout.strip() == str(site / "deepspeed.py")
    assert handler_of(config) == [f"{tmp_path}/m/model.py, function handle"]
    for requirements, expected in (("cow\n", str(python)), ("deepspeed==1\n", sys.executable)):
        (tmp_path / "m" / "requirements.txt").write_text(requirements)
        plan = plan_of(config)
        assert plan is not None and plan.interpreter.executable == expected and plan.venv is not None
