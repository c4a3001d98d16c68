"""Builds per-layer token inputs beside the residual stream, and the branches that use them. Engine process, once."""

from __future__ import annotations

import torch

from ....reading.recipe.decoder import TokenBranch, TokenInputs
from ...abi.decoder import EmbedOp, GateOp, NormOp
from ...abi.enums import Mode, NormKind
from ...abi.parts import Output
from .builder import ProgramBuilder
from .mlp import build_mlp


def build_inputs(builder: ProgramBuilder, inputs: TokenInputs, layers: int) -> None:
    columns = layers * inputs.width
    builder.add_normed(None)
    projected = builder.buffer("projected inputs", columns, torch.float32)
    builder.add_linear(builder.pack(inputs.projection), builder.normed, Output(out=projected, mode=Mode.STORE_FP32))
    looked_up = builder.buffer("inputs", columns, torch.float32)
    builder.add(
        EmbedOp(
            n=columns, scale=inputs.table_scale * inputs.scale, out=looked_up,
            table=builder.keep(inputs.table.to(builder.dtype).contiguous()),
        )
    )  # fmt: skip
    builder.add(
        NormOp(
            n=inputs.width, in_=projected, out=looked_up, norm=NormKind.named(inputs.norm.kind), eps=inputs.norm.eps,
            weight=builder.keep(inputs.norm.weight.contiguous()), mode=Mode.ADD, scale=inputs.scale,
            rows_per_token=layers,
        )
    )  # fmt: skip
    builder.inputs = looked_up, columns


def build_branch(builder: ProgramBuilder, branch: TokenBranch, index: int) -> None:
    assert builder.inputs is not None
    address, columns = builder.inputs
    builder.add_normed(None)
    inner, width = build_mlp(builder, branch.mlp), len(branch.mlp.up.weight)
    of_layer = address + 4 * index * width
    builder.add(GateOp(n=width, in_=of_layer, stride=columns, out=inner.at, pitch=inner.stride, plain=True))
    builder.add_branch(builder.pack(branch.mlp.down, role="out"), inner, branch.after, 1.0)
