"""Lays a mixture of experts out; routing.h has the steps. Runs in the engine process, once."""

from __future__ import annotations

from typing import Final

import torch

from .lay_out_mlp import lay_out_mlp
from .layout import ADD, STORE, STORE_FP32, Layout, Rows
from .pool import ACTIVATIONS, Kind
from .recipe import ExpertGroups, Experts
from .recipe_parts import Norm, NotUnderstoodError, Stacked

_MAX_EXPERTS: Final = 1024  # kMaxExperts of routing.h


def lay_out_experts(layout: Layout, experts: Experts, after: Norm | None, scale: float) -> None:
    """hidden += scale * after(experts(normed))"""
    router = experts.router
    count, chosen = len(router.scores.weight), router.chosen
    if count > _MAX_EXPERTS:
        raise NotUnderstoodError(f"{count} experts")
    gates = [] if experts.shared_gate is None else [experts.shared_gate]
    scored = layout.pack_exactly(Stacked([router.scores, *gates], None).joined())
    scores = layout.buffer("scores", scored.n, torch.float32)
    layout.add_linear(scored, layout.normed, scores, mode=STORE_FP32, scale=1.0)
    # For `Routed` of routing.h: one token's row has room for the arrays by expert; its choices take 12 bytes each.
    routed = layout.buffer("routed", 8 * (count + 1) + 12 * chosen, torch.uint8)
    shape = {"experts": count, "chosen": chosen, "routed": routed}
    correction = None if router.correction is None else layout.keep(router.correction.float().contiguous())
    mode = ("softmax", "sigmoid").index(router.function)
    groups = router.groups or ExpertGroups(1, 1, 1)
    layout.add(
        Kind.ROUTE, in_=scores, k=scored.n, mode=mode, n=int(router.normalized), scale=router.scale,
        bias=correction, heads=groups.count, kv_heads=groups.taken, dim=groups.ranks, **shape,
    )  # fmt: skip
    layout.add(Kind.SORT, **shape)
    linears = [experts.up] if experts.gate is None else [experts.gate, experts.up]
    up, down = layout.pack_experts(linears, chosen), layout.pack_experts([experts.down], chosen)
    given = layout.as_wanted(up, layout.normed)
    row_bytes = given.stride * (1 if up.of_codes else layout.dtype.itemsize)
    rows = Rows(layout.buffer("rows", chosen * row_bytes, torch.uint8), given.stride)
    layout.add(Kind.DISPATCH, in_=given.at, out=rows.at, n=row_bytes, **shape)
    inner = layout.rows("inner rows", up.n, of_token=chosen)
    layout.add_product(
        up, rows, inner.at, pitch=inner.stride, mode=STORE, activation=ACTIVATIONS[experts.activation],
        gated=len(linears) - 1, eps=experts.alpha, softcap=experts.limit, of_experts=1, **shape,
    )  # fmt: skip
    inner = layout.as_wanted(down, inner, of_experts=1, **shape)
    parts = layout.buffer("parts", chosen * down.n, torch.float32)
    layout.add_product(down, inner, parts, mode=STORE_FP32, scale=1.0, of_experts=1, **shape)
    shared: dict[str, int] = {}
    if experts.shared is not None:
        packed = layout.pack(experts.shared.down)
        layout.add_linear(packed, lay_out_mlp(layout, experts.shared), layout.branch, mode=STORE_FP32, scale=1.0)
        shared = {"weight": layout.branch, **({"weight2": scores, "k": scored.n} if gates else {})}
    if after is None:
        layout.add(Kind.COMBINE, in_=parts, out=layout.hidden, n=down.n, mode=ADD, scale=scale, **shared, **shape)
    else:
        layout.add(Kind.COMBINE, in_=parts, out=layout.branch, n=down.n, mode=STORE_FP32, **shared, **shape)
        layout.add_norm(after, layout.branch, layout.hidden, mode=ADD, scale=scale)
