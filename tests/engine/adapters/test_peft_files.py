"""Adapters are read as peft saves them, and what can't be computed is refused before its tensors are read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Gemma3TextConfig, GPT2Config, LlamaConfig, Phi3Config, PretrainedConfig

from djl_python.core.errors import ParameterError
from djl_python.engine.adapters.peft_files import plan_adapter, read_adapter
from djl_python.engine.adapters.targets import adapter_targets
from tests.peft_adapters import PEFT_WARNS

pytestmark = PEFT_WARNS

_SHAPE: dict[str, Any] = {
    "vocab_size": 48,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "pad_token_id": 0,
}
_LLAMA = LlamaConfig(**_SHAPE)
_GPT2 = GPT2Config(vocab_size=48, n_embd=16, n_layer=2, n_head=2, n_positions=32)


def model_of(config: PretrainedConfig) -> Any:
    return AutoModelForCausalLM.from_config(config)


def saved(path: Path, config: PretrainedConfig = _LLAMA, **lora: Any) -> tuple[Any, dict[str, Any]]:
    """(a model with a random adapter of peft's, which is saved at `path`; what the base's adapter may change)."""
    model = model_of(config)
    targets = dict(adapter_targets(model))
    torch.manual_seed(1)
    made = get_peft_model(model, LoraConfig(**{"target_modules": ["q_proj", "down_proj"], **lora}))
    for name, parameter in made.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter)
    made.save_pretrained(str(path))
    return made, targets


@pytest.mark.parametrize(
    ("config", "lora"),
    [
        (_LLAMA, {"r": 4, "lora_alpha": 3}),
        (_LLAMA, {"r": 4, "lora_alpha": 12, "use_rslora": True, "target_modules": "all-linear"}),
        (_LLAMA, {"r": 4, "rank_pattern": {"layers.1.*q_proj": 2}, "alpha_pattern": {"down_proj": 5}}),
        (_LLAMA, {"r": 2, "target_modules": ["embed_tokens", "lm_head", "v_proj"]}),
        (Phi3Config(**_SHAPE), {"target_modules": ["qkv_proj", "gate_up_proj"]}),
        (Gemma3TextConfig(**_SHAPE), {"target_modules": ["embed_tokens"]}),
        (_GPT2, {"target_modules": ["c_attn", "mlp.c_proj"], "fan_in_fan_out": True}),
    ],
)
def test_products_are_pefts(tmp_path: Path, config: PretrainedConfig, lora: dict[str, Any]) -> None:
    made, targets = saved(tmp_path, config, **lora)
    adapter = read_adapter(tmp_path, targets)
    assert adapter.bytes == plan_adapter(tmp_path, targets).bytes
    changed = {name: module for name, module in made.base_model.model.named_modules() if hasattr(module, "r")}
    assert set(adapter.products) == set(changed) != set()
    for name, module in changed.items():
        delta = module.get_delta_weight("default")
        product = adapter.products[name]
        ours = product.b @ product.a
        scale = targets[name].scale
        theirs = delta if delta.shape == ours.shape else delta.T
        torch.testing.assert_close(ours, theirs * scale, rtol=1e-5, atol=1e-5)
    assert adapter.rank == max(product.rank for product in adapter.products.values())


def test_an_embedding_is_scaled_as_the_model_scales_it() -> None:
    scaled = adapter_targets(model_of(Gemma3TextConfig(**_SHAPE)))["model.embed_tokens"]
    assert scaled.embedding
    assert scaled.scale == pytest.approx(4.0)


def rewritten(path: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor | None]) -> None:
    """Change a saved adapter's configuration and tensors; None takes one away."""
    file = path / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    weights = path / "adapter_model.safetensors"
    kept: dict[str, torch.Tensor | None] = {**load_file(weights), **tensors}
    save_file({name: tensor for name, tensor in kept.items() if tensor is not None}, weights)


_Q = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("config", "tensors", "expected"),
    [
        ({"use_dora": True}, {}, "has DoRA, which is not served"),
        ({}, {f"{_Q}.lora_magnitude_vector": torch.ones(16)}, "has DoRA"),
        ({"bias": "all"}, {}, "bias=all"),
        ({"lora_bias": True}, {}, "lora_bias"),
        ({}, {f"{_Q}.lora_B.bias": torch.ones(16)}, "has biases"),
        ({"modules_to_save": ["lm_head"]}, {}, "modules_to_save): lm_head"),
        ({}, {"base_model.model.lm_head.weight": torch.ones(48, 16)}, "whole weights"),
        ({"peft_type": "IA3"}, {}, "is one of IA3; expected LORA"),
        ({"init_lora_weights": "pissa_niter_16"}, {}, "a base that init_lora_weights=pissa_niter_16 has changed"),
        ({"r": "4"}, {}, "r of model.layers.0.mlp.down_proj is '4'; expected a number of at least 1"),
        ({"r": 3}, {}, "has shape [4, 24]; expected [3, 24]"),
        ({"rank_pattern": {"(": 3}}, {}, "rank_pattern: ( is no regular expression"),
        ({}, {f"{_Q}.lora_B.weight": None}, f"there is no {_Q}.lora_B.weight"),
        ({}, {f"{_Q}.lora_A.weight": torch.ones(4, 17)}, "has shape [4, 17]; expected [4, 16] for this model"),
        ({}, {f"{_Q}.lora_A.weight": torch.ones(4, 16, dtype=torch.int64)}, "has dtype I64"),
        ({}, {f"{_Q}.lora_A.weight": torch.full((4, 16), torch.nan)}, "not finite"),
        ({}, {"base_model.model.model.layers.0.self_attn.qkv_proj.lora_A.weight": torch.ones(4, 16)}, "k_proj, o_proj"),
        ({}, {"base_model.model.model.embed_tokens.base_layer.weight": torch.ones(50, 16)}, "expected [48, 16]"),
    ],
)
def test_a_product_that_cannot_be_computed_is_refused_by_name(
    tmp_path: Path, config: dict[str, Any], tensors: dict[str, Any], expected: str
) -> None:
    _, targets = saved(tmp_path, r=4)
    rewritten(tmp_path, config, tensors)
    with pytest.raises(ParameterError) as failure:
        read_adapter(tmp_path, targets)
    assert expected in failure.value.message
    assert failure.value.field == "src"


def test_missing_damaged_and_pickled_files_are_refused(tmp_path: Path) -> None:
    _, targets = saved(tmp_path)
    weights = tmp_path / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ParameterError, match=r"adapter_model\.safetensors can't be read"):
        plan_adapter(tmp_path, targets)
    weights.rename(tmp_path / "adapter_model.bin")
    with pytest.raises(ParameterError, match=r"adapter_model\.bin is a pickle, which is never read"):
        plan_adapter(tmp_path, targets)
    (tmp_path / "adapter_config.json").unlink()
    with pytest.raises(ParameterError, match=r"there is no adapter_config\.json"):
        plan_adapter(tmp_path, targets)


def test_an_adapter_in_memory_is_not_what_its_file_becomes(tmp_path: Path) -> None:
    _, targets = saved(tmp_path)
    adapter = read_adapter(tmp_path, targets)
    before = {name: product.a.clone() for name, product in adapter.products.items()}
    file = tmp_path / "adapter_model.safetensors"
    size = file.stat().st_size
    with file.open("r+b") as opened:
        opened.seek(size // 2)
        opened.write(b"\1" * (size - size // 2))
    assert all(torch.equal(product.a, before[name]) for name, product in adapter.products.items())
