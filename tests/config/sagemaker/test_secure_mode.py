"""Secure mode refuses each way to what a control forbids, in a line, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from djl_python.config import ModelSpec, ServerConfig
from djl_python.config.sagemaker.secure_mode import PICKLES
from djl_python.core.errors import ConfigError
from djl_python.sources import load_model_config
from tests.sketches import write_sketch


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_sketch(tmp_path / "model")


def load(model: Path, controls: str, **environ: str) -> None:
    variables = {"SAGEMAKER_SECURE_MODE": "true", "SAGEMAKER_SECURITY_CONTROLS": controls, **environ}
    variables.setdefault("SAGEMAKER_UNTRUSTED_CHANNELS", str(model))
    load_model_config(ModelSpec(name="mine", url=str(model)), ServerConfig(), variables)


def refusals(model: Path, controls: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(model, controls, **environ)
    return caught.value.message.splitlines()


def write(name: str, text: str = "") -> Callable[[Path], None]:
    def make(model: Path) -> None:
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text(text)

    return make


def adapter_with_code(model: Path) -> None:
    for name in ("adapter_config.json", "model.py"):
        (model / "adapters" / "a").mkdir(parents=True, exist_ok=True)
        (model / "adapters" / "a" / name).write_text("{}")


def linked(model: Path) -> None:
    elsewhere = model.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "weights.PT").touch()
    (elsewhere / "back").symlink_to(model)
    (model / "link").symlink_to(elsewhere)


REMOTE, SCRIPTS = "DISALLOW_TRUST_REMOTE_CODE", "DISALLOW_CUSTOM_INFERENCE_SCRIPTS"
PICKLED, TEMPLATES, REQUIREMENTS = "DISALLOW_PICKLE_FILES", "DISALLOW_CHAT_TEMPLATE", "DISALLOW_REQUIREMENTS_TXT"


@pytest.mark.parametrize(
    ("control", "violate", "message"),
    [
        (REMOTE, write("serving.properties", "option.trust_remote_code=true"), "serving.properties:1: option.trust_"),
        (SCRIPTS, write("model.py"), "model.py: secure mode runs no code"),
        (SCRIPTS, write("mine.py"), "mine.py: secure mode runs no code"),
        (SCRIPTS, adapter_with_code, "adapter a: "),
        (SCRIPTS, write("MAR-INF/MANIFEST.json"), "MAR-INF: secure mode runs no code"),
        (SCRIPTS, write("serving.properties", "option.entryPoint=other.py"), "serving.properties:1: option.entryPoint"),
        (SCRIPTS, write("serving.properties", "option.entryPoint=json:loads"), "option.entryPoint=json:loads"),
        (SCRIPTS, write("serving.properties", "option.rolling_batch=mine:Engine"), "option.rolling_batch=mine:Engine"),
        (SCRIPTS, write("serving.properties", "option.tool_call_parser=mine:P"), "option.tool_call_parser=mine:P"),
        (SCRIPTS, write("serving.properties", "option.reasoning_parser=mine:P"), "option.reasoning_parser=mine:P"),
        (REQUIREMENTS, write("requirements.txt", "numpy"), "requirements.txt: secure mode installs no requirements"),
        (REQUIREMENTS, write("requirements/a.whl"), "requirements: secure mode installs no requirements"),
        (PICKLED, linked, "link/weights.PT: secure mode takes no files of pickle's"),
        *((PICKLED, write(f"deep/weights{end}"), f"deep/weights{end}: secure mode takes no files") for end in PICKLES),
        (
            TEMPLATES,
            write("tokenizer_config.json", '{"chat_template": "x"}'),
            "tokenizer_config.json: secure mode takes",
        ),
        (TEMPLATES, write("tokenizer_config.json", "{"), "tokenizer_config.json: secure mode takes"),
        (TEMPLATES, write("chat_template.jinja"), "chat_template.jinja: secure mode takes"),
        (
            TEMPLATES,
            write("serving.properties", "option.chat_template={{ messages }}"),
            "serving.properties:1: option.chat_template: secure mode takes no chat templates",
        ),
        (TEMPLATES, write("chat_template.json", "{}"), "chat_template.json: secure mode takes"),
        (TEMPLATES, write("additional_chat_templates/x.jinja"), "additional_chat_templates/x.jinja: secure mode takes"),
    ],
)
def test_a_control_refuses_models_that_violate_it(
    model: Path, control: str, violate: Callable[[Path], None], message: str
) -> None:
    load(model, control)
    violate(model)
    (line,) = refusals(model, control)
    assert message in line
    assert line.endswith(f"({control})")
    others = {REMOTE, SCRIPTS, REQUIREMENTS, PICKLED, TEMPLATES} - {control}
    load(model, ", ".join(others))
    load(model, control, SAGEMAKER_SECURE_MODE="false")


@pytest.mark.parametrize(
    ("variable", "value", "control"),
    [
        ("OPTION_TRUST_REMOTE_CODE", "true", REMOTE),
        ("HF_MODEL_TRUST_REMOTE_CODE", "true", REMOTE),
        ("OPTION_ENTRYPOINT", "other.py", SCRIPTS),
        ("DJL_ENTRY_POINT", "https://example.com/model.py", SCRIPTS),
        ("OPTION_ROLLING_BATCH", "mine:Engine", SCRIPTS),
    ],
)
def test_variables_violate_them_too(model: Path, variable: str, value: str, control: str) -> None:
    (line,) = refusals(model, control, **{variable: value})
    assert line.startswith(f"environment {variable}: ")


def test_handlers_of_ours_are_taken(model: Path) -> None:
    for entry_point in ("djl_python.huggingface", "djl_python.lmi_vllm.vllm_async_service"):
        (model / "serving.properties").write_text(f"option.entryPoint={entry_point}\n")
        load(model, SCRIPTS)


@pytest.mark.parametrize("setting", ["option.pythonExecutable=/usr/bin/python3", "option.env=PYTHONPATH=/x", "own=1"])
def test_some_settings_are_never_a_users(model: Path, setting: str) -> None:
    (model / "serving.properties").write_text(f"{setting}\n")
    (line,) = refusals(model, REMOTE)
    assert line.startswith(f"serving.properties:1: {setting.partition('=')[0]} may not be set in secure mode")


def test_every_violation_is_told(model: Path) -> None:
    (model / "model.py").touch()
    (model / "requirements.txt").touch()
    (model / "weights.bin").touch()
    (model / "serving.properties").write_text("option.trust_remote_code=true\noption.dtype=fp99\n")
    assert len(refusals(model, ",".join([REMOTE, SCRIPTS, REQUIREMENTS, PICKLED]))) == 5


def test_only_untrusted_channels_are_looked_through(model: Path, tmp_path: Path) -> None:
    (model / "weights.bin").touch()
    load(model, PICKLED, SAGEMAKER_UNTRUSTED_CHANNELS="")
    channel = tmp_path / "channel"
    channel.mkdir()
    load(model, PICKLED, SAGEMAKER_UNTRUSTED_CHANNELS=str(channel))
    (channel / "requirements.txt").touch()
    assert "channel/requirements.txt" in refusals(model, REQUIREMENTS, SAGEMAKER_UNTRUSTED_CHANNELS=str(channel))[0]
    (line,) = refusals(model, PICKLED, SAGEMAKER_UNTRUSTED_CHANNELS=f"{channel}, /no/such")
    assert line == "environment SAGEMAKER_UNTRUSTED_CHANNELS: /no/such is not a directory"


def test_no_control_is_left_out_by_a_mistake_in_its_name(model: Path) -> None:
    (line,) = refusals(model, f"{REMOTE},DISALLOW_PICKLE_FILE")
    assert "DISALLOW_PICKLE_FILE is not known; expected some of DISALLOW_REQUIREMENTS_TXT" in line
    assert line.endswith("; did you mean DISALLOW_PICKLE_FILES?")
    (line,) = refusals(model, "")
    assert line.startswith("environment SAGEMAKER_SECURE_MODE: SAGEMAKER_SECURITY_CONTROLS is not set")


def test_a_tokenizer_without_a_template_is_taken(model: Path) -> None:
    assert "chat_template" not in json.loads((model / "tokenizer_config.json").read_text())
    load(model, TEMPLATES)


@pytest.mark.parametrize(("mode", "controls"), [("true", SCRIPTS), ("true", REMOTE), ("false", SCRIPTS)])
def test_code_of_adapters_that_are_registered_later_is_refused_too(model: Path, mode: str, controls: str) -> None:
    environ = {"SAGEMAKER_SECURE_MODE": mode, "SAGEMAKER_SECURITY_CONTROLS": controls}
    config = load_model_config(ModelSpec(name="mine", url=str(model)), ServerConfig(), environ)
    assert config.runs_adapter_code is not (mode == "true" and controls == SCRIPTS)
