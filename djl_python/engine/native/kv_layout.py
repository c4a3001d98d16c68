"""The heads that the kernels' KV cache supports, and their places in rows. Runs in the engine process."""

from __future__ import annotations

from ..attention.parameters import LayerShape
from .abi.parts import HeadRows


def heads_fit(shape: LayerShape) -> bool:
    """Whether the kernels support heads of these sizes."""
    return shape.key_dim % 2 == shape.value_dim % 16 == 0


def head_rows(shape: LayerShape, cache: int | None, stride: int | None = None) -> HeadRows:
    """A layer's heads.

    Args:
        cache: address of the layer's part of the first block; None: rows have queries only.
        stride: numbers from one row to the next; None: rows have nothing else.
    """
    own = (shape.heads + shape.kv_heads) * shape.key_dim + shape.kv_heads * shape.value_dim
    return HeadRows(
        heads=shape.heads, kv_heads=shape.kv_heads, dim=shape.key_dim, value_dim=shape.value_dim,
        stride=own if stride is None else stride, cache=cache,
    )  # fmt: skip
