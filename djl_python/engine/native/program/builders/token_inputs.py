"""Lays out per-layer token inputs beside the residual stream, and the branches that use them. Engine process, once."""

from __future__ import annotations

import torch

from ....reading.recipe import TokenBranch, TokenInputs
from ...thread_pool import Mode
from ..operations import Into, embed, gate, norm
from .builder import Layout
from .mlp import lay_out_mlp


def lay_out_inputs(layout: Layout, inputs: TokenInputs, layers: int) -> None:
    columns = layers * inputs.width
    layout.add_normed(None)
    projected = layout.buffer("projected inputs", columns, torch.float32)
    layout.add_linear(layout.pack(inputs.projection), layout.normed, Into(projected, Mode.STORE_FP32))
    looked_up = layout.buffer("inputs", columns, torch.float32)
    layout.add(
        embed(
            n=columns, scale=inputs.table_scale * inputs.scale, out=looked_up,
            weight=layout.keep(inputs.table.to(layout.dtype).contiguous()),
        )
    )  # fmt: skip
    layout.add(
        norm(
            n=inputs.width, in_=projected, out=looked_up, norm=inputs.norm.kind, eps=inputs.norm.eps,
            weight=layout.keep(inputs.norm.weight.contiguous()), mode=Mode.ADD, scale=inputs.scale, chosen=layers,
        )
    )  # fmt: skip
    layout.inputs = looked_up, columns


def lay_out_branch(layout: Layout, branch: TokenBranch, index: int) -> None:
    assert layout.inputs is not None
    address, columns = layout.inputs
    layout.add_normed(None)
    inner, width = lay_out_mlp(layout, branch.mlp), len(branch.mlp.up.weight)
    of_layer = address + 4 * index * width
    layout.add(gate(n=width, in_=of_layer, stride=columns, out=inner.at, pitch=inner.stride, plain=True))
    layout.add_branch(layout.pack_finely(branch.mlp.down), inner, branch.after, 1.0)
