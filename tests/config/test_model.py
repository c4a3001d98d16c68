"""What is known of a model, its checkpoint included."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from djl_python.config import Checkpoint, ModelConfig


def test_a_config_round_trips() -> None:
    config = ModelConfig(name="m", checkpoint=Checkpoint(generation_config={"temperature": 0.5}, takes_images=True))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=ModelConfig) == config


def test_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.5}')
    assert Checkpoint.read(tmp_path) == Checkpoint(generation_config={"temperature": 0.5})


@pytest.mark.parametrize("text", [None, "", "{", "[1]", "null"])
def test_a_generation_config_that_decides_nothing(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "generation_config.json").write_text(text)
    assert Checkpoint.read(tmp_path) == Checkpoint()
