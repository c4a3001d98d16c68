"""SmolLM2 off the grid of the file that its weights come from: the same function, with other numbers to round.

The file has 4 bits, a step and a least number for 32 numbers: rounding to that again loses nothing, and tells nothing
of other models. Here every channel between two linears is multiplied by a factor of its own, some 15 % from 1, on one
side, and divided by it on the other: in a norm's weights and what reads it, in rows of values and columns of the output
projection, in rows of the up projection and columns of the down projection.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

_SIZE: Final = 0.15
_KV_HEADS: Final = 3
_LAYERS: Final = 30


def write(smol: Path, path: Path) -> Path:
    """Write SmolLM2 with rescaled channels in bf16, with its tokenizer."""
    path.mkdir()
    for file in smol.iterdir():
        if file.name != "model.safetensors":
            shutil.copy(file, path / file.name)
    tensors = {name: tensor.float() for name, tensor in load_file(smol / "model.safetensors").items()}
    random = torch.Generator().manual_seed(0)
    for layer in range(_LAYERS):
        _rescale_(tensors, f"model.layers.{layer}.", random)
    save_file(
        {name: tensor.bfloat16() for name, tensor in tensors.items()}, path / "model.safetensors", {"format": "pt"}
    )
    return path


def _rescale_(tensors: dict[str, Tensor], layer: str, random: torch.Generator) -> None:
    def weight(name: str) -> Tensor:
        return tensors[f"{layer}{name}.weight"]

    def factors(count: int) -> Tensor:
        return torch.exp(_SIZE * torch.randn(count, generator=random))

    readers = {"input_layernorm": ("q", "k", "v"), "post_attention_layernorm": ("gate", "up")}
    for norm, names in readers.items():
        some = factors(len(weight(norm)))
        weight(norm).mul_(some)
        for name in names:
            weight(_FULL[name]).div_(some)
    some = factors(len(weight(_FULL["up"])))
    weight(_FULL["up"]).mul_(some[:, None])
    weight(_FULL["down"]).div_(some)
    some = factors(len(weight(_FULL["v"])))
    weight(_FULL["v"]).mul_(some[:, None])
    heads = some.view(_KV_HEADS, 1, -1)
    repeated = weight(_FULL["o"]).shape[1] // len(some)
    weight(_FULL["o"]).div_(heads.expand(_KV_HEADS, repeated, heads.shape[2]).flatten())


_FULL: Final = {
    **{name: f"self_attn.{name}_proj" for name in ("q", "k", "v", "o")},
    **{name: f"mlp.{name}_proj" for name in ("gate", "up", "down")},
}
