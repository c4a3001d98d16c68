"""A configuration that names more than the weights can hold is refused before anything is built from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from djl_python.core.errors import ModelLoadError
from djl_python.engine.checkpoints.directory import check_checkpoint, size_faults
from tests.checkpoints import ARCHITECTURES, build_checkpoint
from tests.sketches import LLAMA, write_sketch

FILE = Path("config.json")


def faults(config: dict[str, Any], stored_bytes: int = 10_000, tensors: int | None = 50) -> list[str]:
    return list(size_faults(FILE, config, stored_bytes, tensors))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_fits_its_own_weights(architecture: str, tmp_path: Path) -> None:
    config = ARCHITECTURES[architecture]()
    model = AutoModelForCausalLM.from_config(config)
    stored = list({tensor.data_ptr(): tensor for tensor in model.state_dict().values()}.values())
    elements = sum(tensor.numel() for tensor in stored)
    assert faults(config.to_dict(), elements // 2, len(stored)) == []  # in four bits each


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, and the files of weights have "),
        ({"hidden_size": 10**12}, "hidden_size is 1000000000000, and the files of weights have "),
        ({"vocab_size": 10**10}, "vocab_size is 10000000000, "),
        ({"intermediate_size": 10**10}, "intermediate_size is 10000000000, "),
        ({"num_experts": 10**9}, "num_experts is 1000000000, "),
        ({"text_config": {"num_hidden_layers": 10**9}}, "text_config.num_hidden_layers is 1000000000"),
    ],
)
def test_sizes_that_do_not_fit_the_weights_are_refused_in_a_line(
    changed: dict[str, Any], named: str, tmp_path: Path
) -> None:
    path = build_checkpoint(tmp_path, "llama")
    check_checkpoint(path, False)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **changed}))
    with pytest.raises(ModelLoadError) as caught:
        check_checkpoint(path, False)
    (line,) = caught.value.message.splitlines()
    assert line.startswith(f"{path / 'config.json'}: {named}")


def test_layers_are_counted_in_shards_and_other_formats(tmp_path: Path) -> None:
    path = write_sketch(tmp_path, {**LLAMA, "num_hidden_layers": 2})
    with pytest.raises(ModelLoadError, match="num_hidden_layers is 2, and the files of weights have 1 tensors"):
        check_checkpoint(path, False)
    (path / "model.safetensors").rename(path / "shard.safetensors")
    index = {"weight_map": {"a": "shard.safetensors", "b": "shard.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelLoadError, match="num_hidden_layers is 2, and the files of weights have 1 tensors"):
        check_checkpoint(path, False)
    assert faults({"num_hidden_layers": 100, "hidden_size": 8}, tensors=None) == []
    (fault,) = faults({"num_hidden_layers": 20_000, "hidden_size": 8}, tensors=None)
    assert "num_hidden_layers is 20000, and the files of weights have 10000 bytes" in fault


def test_sizes_that_are_no_numbers_are_left_to_transformers() -> None:
    assert faults({"num_hidden_layers": "many", "hidden_size": True, "vocab_size": None, "n_layer": -1}) == []
