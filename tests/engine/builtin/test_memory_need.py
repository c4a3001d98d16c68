"""Estimates of memory, of checkpoints that are headers alone; tests/real compares one with a real load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from djl_python.config import ModelConfig, ModelSpec, ServerConfig
from djl_python.engine.builtin.memory_need import ENGINE_BYTES, WORKER_BYTES, MemoryNeed, memory_need
from djl_python.sources import load_model_config

LAYER = {"model.layers.0.mlp.down_proj.weight": ("BF16", [64, 256]), "model.norm.weight": ("BF16", [64])}
TIED = {"model.embed_tokens.weight": ("BF16", [1000, 64]), **LAYER}
UNTIED = {**TIED, "lm_head.weight": ("BF16", [1000, 64])}
CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 100,
}


@pytest.fixture(autouse=True)
def on_this_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same estimates on every machine: no GPU, and kernels."""
    monkeypatch.setattr("djl_python.engine.builtin.memory_need.has_gpu", lambda: False)
    monkeypatch.setattr("djl_python.engine.builtin.memory_need.lacking", lambda: "")


def write(directory: Path, files: dict[str, dict[str, Any]], config: dict[str, Any]) -> Path:
    for name, tensors in files.items():
        described = {
            key: {"dtype": kind, "shape": shape, "data_offsets": [0, 0]} for key, (kind, shape) in tensors.items()
        }
        header = json.dumps({"__metadata__": {"format": "pt"}, **described}).encode()
        (directory / name).write_bytes(len(header).to_bytes(8, "little") + header)
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def need_of(directory: Path, **settings: object) -> MemoryNeed:
    environ = {f"OPTION_{name.upper()}": str(value) for name, value in settings.items()}
    config: ModelConfig = load_model_config(ModelSpec(name="m", url=str(directory)), ServerConfig(), environ)
    need = memory_need(config, directory)
    assert need is not None
    return need


@pytest.mark.parametrize(
    ("tensors", "settings", "weights"),
    [
        (TIED, {"kernels": "torch"}, 2 * (64000 + 16384 + 64)),
        (TIED, {"kernels": "torch", "dtype": "fp32"}, 4 * (64000 + 16384 + 64)),
        (TIED, {"dtype": "fp32"}, 4 * (2 * 64000 + 16384 + 64)),  # the head is packed beside the embedding
        (TIED, {}, (2 + 2.5) * 64000 + 1.5 * 16384 + 2 * 64),
        (UNTIED, {}, (2 + 2.5) * 64000 + 1.5 * 16384 + 2 * 64),
        (UNTIED, {"quantize": "int8"}, (2 + 1.01) * 64000 + 1.01 * 16384 + 2 * 64),
        (UNTIED, {"quantize": "int4"}, (2 + 1.01) * 64000 + 0.705 * 16384 + 2 * 64),  # down projections have 5 bits
    ],
)
def test_weights(tmp_path: Path, tensors: dict[str, Any], settings: dict[str, Any], weights: float) -> None:
    need = need_of(write(tmp_path, {"model.safetensors": tensors}, CONFIG), **settings)
    assert need.weights == int(weights)
    assert need.loaded == WORKER_BYTES + ENGINE_BYTES + need.weights + need.cache_at_once
    assert need.peak >= need.loaded


def test_shards_are_those_that_the_index_names(tmp_path: Path) -> None:
    index = {"weight_map": dict.fromkeys(LAYER, "b.safetensors") | {"model.embed_tokens.weight": "a.safetensors"}}
    embedding = {"model.embed_tokens.weight": TIED["model.embed_tokens.weight"]}
    write(tmp_path, {"a.safetensors": embedding, "b.safetensors": LAYER, "old.safetensors": LAYER}, CONFIG)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert need_of(tmp_path, kernels="torch").weights == 2 * (64000 + 16384 + 64)


def test_the_cache_is_as_large_as_sequences_may_be_or_as_memory_permits(tmp_path: Path) -> None:
    write(tmp_path, {"model.safetensors": TIED}, CONFIG)
    token = 2 * 2 * 2 * 16 * 2  # keys and values of two layers with two heads of 16 numbers in bf16
    assert need_of(tmp_path, max_rolling_batch_size=3).cache == 3 * 112 * token  # whole blocks of 16 tokens
    assert need_of(tmp_path, max_rolling_batch_size=1, max_model_len=16).cache == 16 * token
    assert need_of(tmp_path, max_rolling_batch_size=10_000, kv_cache_memory_mb=1).cache == 1 << 20


@pytest.mark.parametrize("change", [{"kv_lora_rank": 8}, {"layer_types": ["linear_attention"]}, {"hidden_size": None}])
def test_a_cache_that_config_json_does_not_tell_is_not_guessed(tmp_path: Path, change: dict[str, Any]) -> None:
    need = need_of(write(tmp_path, {"model.safetensors": TIED}, {**CONFIG, **change}))
    assert (need.cache, need.cache_at_once) == (None, 0)


def test_a_quantized_checkpoint_stays_as_it_is(tmp_path: Path) -> None:
    tensors = {"a.qweight": ("I32", [8, 64]), "a.scales": ("F16", [1, 64])}
    config = {**CONFIG, "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 64}}
    assert need_of(write(tmp_path, {"model.safetensors": tensors}, config)).weights == 4 * 512 + 2 * 64


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, b"\x02\0\0\0\0\0\0\0[]", b"\x04\0\0\0\0\0\0\0{..}"])
def test_a_broken_weights_file_has_no_estimate(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, {}, CONFIG)
    (tmp_path / "model.safetensors").write_bytes(content)
    config = load_model_config(ModelSpec(name="m", url=str(tmp_path)), ServerConfig(), {})
    assert memory_need(config, tmp_path) is None
