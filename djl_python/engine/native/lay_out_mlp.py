"""Lays an MLP out, except its down projection. Runs in the engine process, once."""

from __future__ import annotations

from .layout import STORE, Layout, Rows
from .pool import ACTIVATIONS
from .recipe import Mlp


def lay_out_mlp(layout: Layout, mlp: Mlp) -> Rows:
    """Lay out an MLP; returns the rows that `mlp.down` reads."""
    inner = layout.rows("inner", len(mlp.up.weight))
    packed = layout.pack(mlp.up) if mlp.gate is None else layout.pack(mlp.gate, mlp.up)
    layout.add_linear(packed, layout.normed, inner.at, pitch=inner.stride, mode=STORE, **between(mlp))
    return inner


def between(mlp: Mlp) -> dict[str, float]:
    """`Op` fields for what happens to the first product before `mlp.down`."""
    how: dict[str, float] = {"activation": ACTIVATIONS[mlp.activation], "gated": int(mlp.gate is not None)}
    if mlp.curve is not None:
        how |= dict(zip(("eps", "softcap", "scale"), mlp.curve, strict=True))
    return how
