"""Settings that the built-in handler takes no notice of. What it refuses: tests/commands/test_handler_check.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from djl_python.config import ModelConfig, Options, ServingSettings
from djl_python.handlers.checks import without_effect


@pytest.mark.parametrize(
    ("option", "batch_size", "named"),
    [
        ({"task": "text-generation"}, 1, []),
        ({}, 4, ["batch_size=4"]),
        ({"tensor_parallel_degree": "max"}, 1, ["option.tensor_parallel_degree=max"]),
        ({"tensor_parallel_degree": 1}, 1, []),
        ({"enable_streaming": True}, 1, ["option.enable_streaming"]),
        ({"rolling_batch": "disable", "enable_streaming": True}, 4, []),
    ],
)
def test_without_effect(
    option: dict[str, Any], batch_size: int, named: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    config = ModelConfig(name="m", option=Options(**option), serving=ServingSettings(batch_size=batch_size))
    assert [remark.partition(" has no effect")[0] for remark in without_effect(config)] == named


@pytest.mark.parametrize(
    ("config", "option", "told"),
    [
        ('{"vision_config": {}}', {}, True),
        ('{"vision_config": {}}', {"allow_remote_images": True}, False),
        ("{}", {}, False),
    ],
)
def test_whether_images_are_fetched_is_said_of_a_model_that_takes_some(
    tmp_path: Path, config: str, option: dict[str, Any], told: bool
) -> None:
    (tmp_path / "config.json").write_text(config)
    remarks = without_effect(ModelConfig(name="m", path=str(tmp_path), option=Options(**option)))
    assert any("option.allow_remote_images=true" in remark for remark in remarks) is told


@pytest.mark.parametrize(("quantize", "told"), [("awq", True), ("gptq", False)])
def test_a_format_that_the_checkpoint_does_not_have_is_told(tmp_path: Path, quantize: str, told: bool) -> None:
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "gptq"}}')
    config = ModelConfig(name="m", engine_options={"quantize": quantize})
    remarks = without_effect(config, tmp_path)
    assert any("option.quantize=awq has no effect" in remark for remark in remarks) is told
