"""Lays out per-layer token inputs beside the residual stream, and the branches that use them. Engine process, once."""

from __future__ import annotations

import torch

from .lay_out_mlp import lay_out_mlp
from .layout import ADD, STORE_FP32, Layout
from .pool import NORMS, Kind
from .recipe import TokenBranch, TokenInputs


def lay_out_inputs(layout: Layout, inputs: TokenInputs, layers: int) -> None:
    columns = layers * inputs.width
    layout.add_normed(None)
    projected = layout.buffer("projected inputs", columns, torch.float32)
    layout.add_linear(layout.pack(inputs.projection), layout.normed, projected, mode=STORE_FP32, scale=1.0)
    looked_up = layout.buffer("inputs", columns, torch.float32)
    layout.add(
        Kind.EMBED, n=columns, scale=inputs.table_scale * inputs.scale, out=looked_up,
        weight=layout.keep(inputs.table.to(layout.dtype).contiguous()),
    )  # fmt: skip
    layout.add(
        Kind.NORM, of_experts=1, chosen=layers, n=inputs.width, norm=NORMS[inputs.norm.kind], eps=inputs.norm.eps,
        weight=layout.keep(inputs.norm.weight.contiguous()), in_=projected, out=looked_up, mode=ADD, scale=inputs.scale,
    )  # fmt: skip
    layout.inputs = looked_up, columns


def lay_out_branch(layout: Layout, branch: TokenBranch, index: int) -> None:
    assert layout.inputs is not None
    address, columns = layout.inputs
    layout.add_normed(None)
    inner, width = lay_out_mlp(layout, branch.mlp), len(branch.mlp.up.weight)
    layout.add(
        Kind.GATE, mode=1, n=width, in_=address + 4 * index * width, out=inner.at, stride=columns, pitch=inner.stride
    )
    layout.add_branch(branch.mlp.down, inner, branch.after, 1.0)
