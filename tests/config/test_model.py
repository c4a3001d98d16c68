"""What is known of a model, its checkpoint included."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from djl_python.config import Checkpoint, ModelConfig, read_json_object
from djl_python.core.errors import ModelLoadError


def test_a_config_round_trips() -> None:
    config = ModelConfig(name="m", checkpoint=Checkpoint(generation_config={"temperature": 0.5}, takes_images=True))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=ModelConfig) == config


def test_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.5}')
    assert Checkpoint.read(tmp_path) == Checkpoint(generation_config={"temperature": 0.5})


def test_a_generation_config_that_is_not_there_decides_nothing(tmp_path: Path) -> None:
    assert Checkpoint.read(tmp_path) == Checkpoint()


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", "[" * 100_000, "\x80"])
def test_a_generation_config_that_is_broken_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "generation_config.json"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(ModelLoadError, match=f"^{file}(: expected a JSON object| is not valid JSON)"):
        Checkpoint.read(tmp_path)


def test_a_file_that_can_not_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ModelLoadError, match=r"config\.json can't be read: Is a directory"):
        read_json_object(tmp_path / "config.json")


def test_numbers_that_are_not_jsons_are_taken(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"time_step_limit": [0.0, Infinity]}')
    assert read_json_object(tmp_path / "config.json") == {"time_step_limit": [0.0, float("inf")]}
