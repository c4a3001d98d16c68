"""Builds an MLP, except its down projection. Runs in the engine process, once."""

from __future__ import annotations

import torch

from ....checkpoints.linears import Linear
from ....reading.recipe.decoder import Mlp
from ...abi.decoder import GateOp
from ...abi.enums import Activation, Mode
from ...abi.parts import Epilogue, Output
from .builder import ProgramBuilder, Rows, type_of_blocks


def build_mlp(builder: ProgramBuilder, mlp: Mlp) -> Rows:
    """Build an MLP; returns the rows that `mlp.down` reads."""
    inner = builder.rows("inner", len(mlp.up.weight))
    if mlp.gate is not None and type_of_blocks(mlp.gate) != type_of_blocks(mlp.up):
        _build_apart(builder, mlp, mlp.gate, inner)
        return inner
    packed = builder.pack(*([mlp.up] if mlp.gate is None else [mlp.gate, mlp.up]), role="up")
    builder.add_linear(packed, builder.normed, Output(out=inner.at, pitch=inner.stride), epilogue_of(mlp))
    return inner


def _build_apart(builder: ProgramBuilder, mlp: Mlp, gate: Linear, inner: Rows) -> None:
    """Two products, of weights in blocks of different types, which can't share panels."""
    columns = len(mlp.up.weight)
    gates = builder.buffer("gates", columns, torch.float32)
    activated = epilogue_of(mlp)
    activated.gated = False
    gate_rows = Output(out=gates, mode=Mode.STORE_FP32)
    builder.add_linear(builder.pack(gate, role="up"), builder.normed, gate_rows, activated)
    builder.add_linear(builder.pack(mlp.up, role="up"), builder.normed, Output(out=inner.at, pitch=inner.stride))
    builder.add(GateOp(n=columns, in_=gates, stride=columns, out=inner.at, pitch=inner.stride, plain=True))


def epilogue_of(mlp: Mlp) -> Epilogue:
    """What happens to the first product before `mlp.down`."""
    above, below, slope = mlp.curve or (0.0, 0.0, 0.0)
    return Epilogue(
        activation=Activation.named(mlp.activation), gated=mlp.gate is not None, xielu_above=above, xielu_below=below,
        xielu_slope=slope,
    )  # fmt: skip
