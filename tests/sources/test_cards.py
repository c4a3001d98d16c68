"""What the files of models say of them: a GGUF file that gguf-py wrote, and the demo's checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest

from djl_python.config import ModelConfig, Options
from djl_python.core.model_files.model_card import ModelCard
from djl_python.sources import cards
from djl_python.sources.cards import card_of
from tests.conftest import DEMO
from tests.gguf.models import WORDS, random_model, write_model


def of(path: Path, model_id: str = "", **options: bool) -> ModelCard:
    return card_of(ModelConfig(name="m", path=str(path), option=Options(model_id=model_id)), **options)


def test_a_gguf_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJL_CACHE_DIR", str(tmp_path / "cache"))
    model, file = random_model("llama"), tmp_path / "model.gguf"
    write_model(model, "llama", file, gguf.GGMLQuantizationType.Q8_0)
    card = of(tmp_path)
    numbers = sum(weight.numel() for weight in model.parameters())
    assert (card.format, card.architecture, card.quantization) == ("gguf", "llama", "Q8_0")
    assert (card.parameters, card.size_bytes) == (numbers, file.stat().st_size)
    config = model.config
    assert card.info["general.architecture"] == "llama" and card.info["general.parameter_count"] == numbers
    assert card.info["llama.context_length"] == config.max_position_embeddings
    assert card.info["llama.block_count"] == config.num_hidden_layers
    assert card.info["llama.attention.head_count_kv"] == config.num_key_value_heads
    assert card.info["tokenizer.ggml.model"] == "llama" and card.info["tokenizer.ggml.tokens"] == []
    assert of(tmp_path, whole=True).info["tokenizer.ggml.tokens"] == list(WORDS)
    assert of(tmp_path) is card  # kept
    json.dumps(of(tmp_path, whole=True).info)


def test_a_checkpoint() -> None:
    card, config = of(DEMO), json.loads((DEMO / "config.json").read_text())
    assert (card.format, card.architecture) == ("safetensors", config["model_type"])
    assert card.size_bytes == (DEMO / "model.safetensors").stat().st_size
    assert card.quantization in ("F32", "F16", "BF16")
    assert card.size_bytes == pytest.approx(card.parameters * {"F32": 4}.get(card.quantization, 2), rel=0.01)
    assert card.info[f"{card.architecture}.block_count"] == config["num_hidden_layers"]
    assert card.info[f"{card.architecture}.context_length"] == config["max_position_embeddings"]
    assert "<|im_start|>" in card.template and not (card.takes_images or card.shows_tools)


def test_files_beside_a_checkpoint_are_read(tmp_path: Path) -> None:
    config = {
        "model_type": "seer",
        "vision_config": {},
        "text_config": {"hidden_size": 8, "rope_parameters": {"rope_theta": 9.0}},
    }
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "gptq"}}))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(
            {"chat_template": [{"name": "tool_use", "template": "{{ tools }}"}, {"name": "default", "template": "b"}]}
        )
    )
    (tmp_path / "LICENSE.txt").write_text("Do as you like.")
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 20)
    card = of(tmp_path)
    assert (card.template, card.shows_tools) == ("b", True)
    assert (card.license, card.takes_images) == ("Do as you like.", True)
    assert (card.quantization, card.parameters, card.size_bytes) == ("gptq", 0, 20)
    assert card.info == {"general.architecture": "seer", "seer.embedding_length": 8, "seer.rope.freq_base": 9.0}


def test_a_model_whose_files_tell_nothing(tmp_path: Path) -> None:
    (tmp_path / "model.py").touch()
    (tmp_path / "config.json").write_text("no JSON")
    assert of(tmp_path) == ModelCard()
    assert of(tmp_path, str(tmp_path / "nowhere")) == ModelCard()
    assert cards.card_of(ModelConfig(name="m", option=Options(model_id="no-such/model"))) == ModelCard()


@pytest.mark.parametrize(
    ("fields", "quantization", "info"),
    [
        ({"quantization_config": "gptq", "vocab_size": 7}, "", {"odd.vocab_size": 7}),
        ({"quantization_config": {"quant_method": "\ud800"}}, "?", {}),
        ({"text_config": [1], "vocab_size": 7}, "", {"odd.vocab_size": 7}),
        ({"rope_parameters": [1], "vocab_size": 7}, "", {"odd.vocab_size": 7}),
        ({"vocab_size": 1 << 70, "rope_theta": float("inf"), "head_dim": True, "hidden_size": "8"}, "", {}),
    ],
)
def test_fields_of_an_odd_checkpoint_are_left_out(
    tmp_path: Path, fields: dict[str, Any], quantization: str, info: dict[str, int]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "odd", **fields}))
    card = of(tmp_path)
    assert (card.quantization, card.info) == (quantization, {"general.architecture": "odd", **info})


def test_files_of_an_odd_checkpoint_that_are_no_utf_8(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "odd\\ud800"}')
    (tmp_path / "chat_template.jinja").write_bytes("{{ tools }} für".encode("latin-1"))
    header = b'{"w":{"shape":[1]},"\xff":0}'
    (tmp_path / "1.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    header = b'{"w":{"x":' + b"[" * 100_000
    (tmp_path / "2.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    header = json.dumps({"w": {"shape": [1 << 62] * 50}}).encode()
    (tmp_path / "3.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    card = of(tmp_path)
    assert (card.architecture, card.template, card.shows_tools, card.parameters) == (
        "odd?",
        "{{ tools }} f\ufffdr",
        True,
        0,
    )
