"""An adapter of two linears, without a model: for tests of what is kept of adapters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file

#: The modules that it changes -> (outputs, inputs).
SHAPES: Final = {"up": (6, 4), "down": (4, 6)}


def write_small_adapter(path: Path, rank: int = 2) -> Path:
    """Write one, in the place of what is there."""
    path.mkdir(parents=True, exist_ok=True)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 4, "target_modules": list(SHAPES)}
    (path / "adapter_config.json").write_text(json.dumps(config))
    tensors = {}
    for name, (outputs, inputs) in SHAPES.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = torch.ones(rank, inputs)
        tensors[f"base_model.model.{name}.lora_B.weight"] = torch.ones(outputs, rank)
    save_file(tensors, path / "adapter_model.safetensors")
    return path
