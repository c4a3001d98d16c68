"""The effective configuration, for people."""

from __future__ import annotations

from pathlib import Path

import pytest

from djl_python.config import ModelConfig, ServerConfig, describe, described_environment, parse_model_spec
from djl_python.sources import load_model_config


def test_describe(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    directory.mkdir()
    (directory / "serving.properties").write_text(
        "option.model_id=owner/name\noption.predict_timeout=2.5\noption.mine=1\noption.env=HF_TOKEN=secret,A=1\n"
    )
    environ = {"OPTION_TGI_COMPAT": "true", "OPTION_HF_TOKEN": "secret"}
    text = describe(load_model_config(parse_model_spec(str(directory)), ServerConfig(), environ))
    lines = [line.split() for line in text.splitlines()]
    for expected in (
        ["name", "demo"],
        ["path", str(directory)],
        ["engine", "Python"],
        ["job_queue_size", "1000", "default"],
        ["minWorkers", "1", "default"],
        ["option.model_id", "owner/name", "serving.properties:1"],
        ["option.predict_timeout", "2.5", "serving.properties:2"],
        ["option.model_loading_timeout", "240", "default"],
        ["option.tgi_compat", "true", "environment", "OPTION_TGI_COMPAT"],
        ["option.env", "HF_TOKEN=********,A=1", "serving.properties:4"],
        ["option.mine", "1", "serving.properties:3"],
        ["option.hf_token", "********", "environment", "OPTION_HF_TOKEN"],
    ):
        assert expected in lines
    assert "secret" not in text
    remote = describe(ModelConfig(name="m", url="https://h/m.zip?secret"))
    assert remote.split()[:5] == ["model", "name", "m", "url", "https://h/m.zip"]
    assert [line for line in text.splitlines() if line and not line.startswith(" ")] == [
        "model",
        "settings",
        "passed to the handler",
    ]
    settings = [line for line in text.splitlines() if line.endswith("default")]
    assert len({line.index("default") for line in settings}) == 1, "the sources are in one column"


def test_defaults_are_counted_where_they_are_not_shown(tmp_path: Path) -> None:
    (tmp_path / "serving.properties").write_text("option.model_id=owner/name\n")
    config = load_model_config(parse_model_spec(str(tmp_path)), ServerConfig(), {})
    whole, short = describe(config), describe(config, defaults=False)
    hidden = [line for line in whole.splitlines() if line.endswith(" default")]
    assert f"\n{len(hidden)} other settings have their defaults (--all shows them)\n" in short
    assert not any(line.endswith(" default") for line in short.splitlines())
    assert "option.model_id  owner/name  serving.properties:1" in short


def test_the_environments_settings_are_described_without_secrets() -> None:
    environment = described_environment(
        {
            "OPTION_QUANTIZE": "int9",
            "OPTION_SWAP_SPACE": "4",
            "OPTION_QUANTISE": "int8",
            "OPTION_API_KEY": "secret",
            "SERVING_JOB_QUEUE_SIZE": "5",
            "HOME": "/root",
        }
    )
    assert environment.values == {
        "OPTION_API_KEY": "********",
        "OPTION_QUANTISE": "int8",
        "OPTION_QUANTIZE": "int9",
        "OPTION_SWAP_SPACE": "4",
        "SERVING_JOB_QUEUE_SIZE": "5",
    }
    (problem,) = environment.problems
    assert problem.startswith("environment OPTION_QUANTIZE: option.quantize=int9: expected ")
    assert "OPTION_SWAP_SPACE has no effect: sequences without room in the KV cache" in " ".join(environment.warnings)
    assert any(warning.endswith("did you mean option.quantize?") for warning in environment.warnings)


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({"OPTION_QUANTIZE": "int8"}, 0),
        ({"OPTION_QUANTIZE": "int9"}, 1),
        ({"OPTION_QUANTIZE": "int9", "OPTION_ROLLING_BATCH": "vllm"}, 0),
        ({"OPTION_QUANTIZE": "int9", "OPTION_ROLLING_BATCH": "lmi-dist"}, 0),
        ({"OPTION_QUANTIZE": "int9", "OPTION_ROLLING_BATCH": "auto"}, 1),
    ],
)
def test_a_value_is_checked_as_the_engine_that_is_named_does(environ: dict[str, str], count: int) -> None:
    assert len(described_environment(environ).problems) == count


def test_an_engine_that_another_replaces_is_shown_with_both(tmp_path: Path) -> None:
    (tmp_path / "serving.properties").write_text("option.rolling_batch=trtllm\noption.model_id=owner/model\n")
    text = describe(load_model_config(parse_model_spec(f"m={tmp_path}"), ServerConfig(), {}))
    shown = [line.split() for line in text.splitlines() if "option.rolling_batch " in line]
    assert shown == [["option.rolling_batch", "auto", "(set:", "trtllm)", "serving.properties:1"]]
