"""Lays an MLP out, except its down projection. Runs in the engine process, once."""

from __future__ import annotations

from ....reading.recipe import Mlp
from ..operations import Activated, Into
from .builder import Layout, Rows


def lay_out_mlp(layout: Layout, mlp: Mlp) -> Rows:
    """Lay out an MLP; returns the rows that `mlp.down` reads."""
    inner = layout.rows("inner", len(mlp.up.weight))
    packed = layout.pack(mlp.up) if mlp.gate is None else layout.pack(mlp.gate, mlp.up)
    layout.add_linear(packed, layout.normed, Into(inner.at, pitch=inner.stride), activated(mlp))
    return inner


def activated(mlp: Mlp) -> Activated:
    """What happens to the first product before `mlp.down`."""
    return Activated(mlp.activation, mlp.gate is not None, *(mlp.curve or ()))
