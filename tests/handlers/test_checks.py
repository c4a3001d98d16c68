"""Settings that the built-in handler takes no notice of. What it refuses: tests/test_checking.py."""

from __future__ import annotations

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
