"""LoRA adapters for tests: written as peft writes them, and merged into a model of transformers for comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig

MODULES = ("q_proj", "v_proj")
ALPHA = 16


def write_adapter(path: Path, checkpoint: Path, seed: int, rank: int = 8, scale: float = 0.08) -> Path:
    """An adapter of a Llama's attention, with random matrices of normally distributed numbers times `scale`."""
    path.mkdir(parents=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(checkpoint),
        "r": rank,
        "lora_alpha": ALPHA,
        "target_modules": list(MODULES),
        "bias": "none",
    }
    (path / "adapter_config.json").write_text(json.dumps(config))
    shape = AutoConfig.from_pretrained(checkpoint)
    width = shape.hidden_size // shape.num_attention_heads
    outputs = {"q_proj": shape.hidden_size, "v_proj": shape.num_key_value_heads * width}
    random = torch.Generator().manual_seed(seed)
    matrices = {}
    for layer in range(shape.num_hidden_layers):
        for module in MODULES:
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            a, b = (rank, shape.hidden_size), (outputs[module], rank)
            for part, size in (("lora_A", a), ("lora_B", b)):
                matrices[f"{name}.{part}.weight"] = scale * torch.randn(size, generator=random)
    save_file(matrices, path / "adapter_model.safetensors")
    return path


@torch.no_grad()
def merge_(model: Any, adapter: Path) -> Any:
    """Add an adapter to a model's weights, as peft's merge does; returns the model."""
    from safetensors.torch import load_file

    config = json.loads((adapter / "adapter_config.json").read_text())
    matrices = load_file(adapter / "adapter_model.safetensors")
    for name, a in matrices.items():
        if name.endswith(".lora_A.weight"):
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            b = matrices[name.replace("lora_A", "lora_B")]
            model.get_submodule(module).weight += config["lora_alpha"] / config["r"] * (b @ a)
    return model
