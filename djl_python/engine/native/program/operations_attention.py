"""The operations of attention, one function for each kind. Runs in the engine process.

See `operations` for what arguments have in common.
"""

from __future__ import annotations

from typing import NamedTuple

from ..thread_pool import Kind, Op


class HeadRows(NamedTuple):
    """An attention's heads.

    Args:
        heads, kv_heads: of queries, and of keys and values.
        dim, value_dim: numbers of a query or key, and of a value.
        stride: of rows that have (heads, dim) queries, then (kv_heads, dim) keys and (kv_heads, value_dim) values.
        cache: address of the layer's part of the cache's first block; None: rows have queries only.
    """

    heads: int
    kv_heads: int
    dim: int
    value_dim: int
    stride: int
    cache: int | None


class Rotation(NamedTuple):
    """A rotary embedding.

    Args:
        rotary: how many numbers of a head are rotated.
        interleaved: two neighbours are rotated together, else one number of each half.
        cosines, sines: (positions, rotary / 2)
    """

    rotary: int
    interleaved: bool
    cosines: int
    sines: int


def heads(
    *,
    rows: HeadRows,
    in_: int | None = None,
    query_norm: int | None = None,
    key_norm: int | None = None,
    norms_across: bool = False,
    eps: float = 0.0,
    value_norm: int | None = None,
    value_eps: float = 0.0,
    rotation: Rotation | None = None,
) -> Op:
    """Norm and rotate queries, in place, and keys; norm values; put keys and values into the cache.

    Args:
        in_: first of the rows.
        query_norm, key_norm: weights (dim,), or of all heads together if `norms_across`.
        eps: of these norms.
        value_norm: weight (value_dim,)
    """
    turned = Rotation(0, False, 0, 0) if rotation is None else rotation
    return Op(
        kind=Kind.HEADS, **_fields_of(rows), in_=in_, weight2=query_norm, weight3=key_norm, mode=int(norms_across),
        eps=eps, bias=value_norm, softcap=value_eps, rotary=turned.rotary, interleaved=int(turned.interleaved),
        cosines=turned.cosines, sines=turned.sines,
    )  # fmt: skip


def clear_values() -> Op:
    """Prepare the cache for the step's tokens, in programs without `embed`, which does it too."""
    return Op(kind=Kind.CLEAR_VALUES)


def attend(
    *,
    rows: HeadRows,
    in_: int | None = None,
    out: int | None = None,
    pitch: int = 0,
    scale: float,
    softcap: float,
    window: int,
    sinks: int | None = None,
    slopes: int | None = None,
) -> Op:
    """Attend to the cache.

    Args:
        in_: first of the rows, which begin with queries.
        out: rows of (heads, value_dim) T, `pitch` apart.
        scale, softcap: scores are multiplied by scale, then capped to +-softcap if that is not 0.
        window: how many keys a token sees at most; 0: all.
        sinks: (heads,) scores of a key without a value.
        slopes: (heads,) what a key's score gains with each position (ALiBi).
    """
    return Op(
        kind=Kind.ATTEND, **_fields_of(rows), in_=in_, out=out, pitch=pitch, scale=scale, softcap=softcap,
        window=window, sinks=sinks, slopes=slopes,
    )  # fmt: skip


def _fields_of(rows: HeadRows) -> dict[str, int | None]:
    fields = rows._asdict()
    return {"keys": fields.pop("cache"), **fields}


def latents(
    *,
    in_: int,
    out: int,
    rank: int,
    rotary: int,
    latent_norm: int,
    eps: float,
    query_rotary: int,
    stride: int,
    heads: int,
    dim: int,
) -> Op:
    """Make the rows of latent attention for `heads`: one key and one value from a latent.

    Args:
        in_: (tokens, rank + rotary) T: the latent, and the key's rotated numbers.
        out: (tokens, HeadRows.stride) whose queries have what is multiplied with latents.
        latent_norm: weight (rank,)
        query_rotary: rows of (heads, rotary) T, `stride` apart.
        dim: of a query: rotary + rank.
    """
    return Op(
        kind=Kind.LATENTS, in_=in_, out=out, value_dim=rank, rotary=rotary, weight2=latent_norm, eps=eps,
        weight=query_rotary, stride=stride, heads=heads, dim=dim,
    )  # fmt: skip
