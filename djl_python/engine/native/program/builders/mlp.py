"""Builds an MLP, except its down projection. Runs in the engine process, once."""

from __future__ import annotations

from ....reading.recipe.decoder import Mlp
from ...abi.enums import Activation
from ...abi.parts import Epilogue, Output
from .builder import ProgramBuilder, Rows


def build_mlp(builder: ProgramBuilder, mlp: Mlp) -> Rows:
    """Build an MLP; returns the rows that `mlp.down` reads."""
    inner = builder.rows("inner", len(mlp.up.weight))
    packed = builder.pack(mlp.up) if mlp.gate is None else builder.pack(mlp.gate, mlp.up)
    builder.add_linear(packed, builder.normed, Output(out=inner.at, pitch=inner.stride), epilogue_of(mlp))
    return inner


def epilogue_of(mlp: Mlp) -> Epilogue:
    """What happens to the first product before `mlp.down`."""
    above, below, slope = mlp.curve or (0.0, 0.0, 0.0)
    return Epilogue(
        activation=Activation.named(mlp.activation), gated=mlp.gate is not None, xielu_above=above, xielu_below=below,
        xielu_slope=slope,
    )  # fmt: skip
