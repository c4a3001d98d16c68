"""The modules that an adapter may change: a model's linears and its embedding. Runs in the engine process, at load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..checkpoints.dequantizing_linear import DequantizingEmbedding
from ..checkpoints.linears import as_linear


@dataclass(frozen=True)
class Target:
    """A linear's shape, or an embedding's.

    Attributes:
        outputs: of a linear; the width of an embedding.
        inputs: of a linear; the tokens of an embedding.
        embedding: whether it is one.
        scale: what the module multiplies an embedding by.
    """

    outputs: int
    inputs: int
    embedding: bool = False
    scale: float = 1.0


def adapter_targets(model: nn.Module) -> Mapping[str, Target]:
    """Every module of a model that an adapter may change, by its name in transformers.

    These are those of its decoder, the lm_head too, and none that encodes images. Call it before modules are replaced
    or weights are released.
    """
    parts = [model] if (decoder := _decoder(model)) is None else [decoder, *_embeddings(model)]
    own = {id(module) for part in parts for module in part.modules()}
    targets: dict[str, Target] = {}
    for name, module in model.named_modules():
        if id(module) not in own:
            continue
        if isinstance(module, DequantizingEmbedding):
            module = module.with_table(torch.empty(module.weight.shape, device="meta"))
        if isinstance(module, nn.Embedding):
            scale = getattr(module, "embed_scale", 1.0)  # Gemma's
            targets[name] = Target(module.embedding_dim, module.num_embeddings, embedding=True, scale=float(scale))
        elif (linear := as_linear(module)) is not None:
            outputs, inputs = linear.weight.shape
            targets[name] = Target(outputs, inputs)
    return targets


def whole_targets(model: Any) -> Mapping[str, Target]:
    """Those of all ranks, for a model that has a part of its layers; `adapter_targets` of the model comes first."""
    with torch.device("meta"):
        return adapter_targets(type(model)(model.config))


def _decoder(model: Any) -> nn.Module | None:
    """The decoder of a model that names one (`get_decoder`)."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    return decoder if isinstance(decoder, nn.Module) else None


def _embeddings(model: Any) -> list[nn.Module]:
    return [part for part in (model.get_input_embeddings(), model.get_output_embeddings()) if part is not None]
