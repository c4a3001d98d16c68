"""Lays a mixture of experts out; expert_routing.h has the steps. Runs in the engine process, once."""

from __future__ import annotations

from typing import Final

import torch

from ....reading.recipe import ExpertGroups, Experts
from ....reading.recipe_parts import Norm, NotUnderstoodError, Stacked
from ...thread_pool import Mode
from ..operations import Activated, Into, Routing
from ..operations_experts import combine, dispatch, route, sort
from .builder import Layout, Rows
from .mlp import lay_out_mlp

_MAX_EXPERTS: Final = 1024  # kMaxExperts of expert_routing.h


def lay_out_experts(layout: Layout, experts: Experts, after: Norm | None, scale: float) -> None:
    """hidden += scale * after(experts(normed))"""
    router = experts.router
    count, chosen = len(router.scores.weight), router.chosen
    if count > _MAX_EXPERTS:
        raise NotUnderstoodError(f"{count} experts")
    gates = [] if experts.shared_gate is None else [experts.shared_gate]
    scored = layout.pack_exactly(Stacked([router.scores, *gates], None).joined())
    scores = layout.buffer("scores", scored.n, torch.float32)
    layout.add_linear(scored, layout.normed, Into(scores, Mode.STORE_FP32))
    # For `Routed` of expert_routing.h: one token's row has room for the arrays by expert; its choices take 12 bytes each.
    routing = Routing(count, chosen, layout.buffer("routed", 8 * (count + 1) + 12 * chosen, torch.uint8))
    correction = None if router.correction is None else layout.keep(router.correction.float().contiguous())
    groups = router.groups or ExpertGroups(1, 1, 1)
    layout.add(
        route(
            routing=routing, in_=scores, columns=scored.n, sigmoid=router.function == "sigmoid",
            correction=correction, groups=groups.count, groups_taken=groups.taken, judges=groups.ranks,
            normalized=router.normalized, scale=router.scale,
        )
    )  # fmt: skip
    layout.add(sort(routing=routing))
    linears = [experts.up] if experts.gate is None else [experts.gate, experts.up]
    up, down = layout.pack_experts(linears, chosen), layout.pack_experts([experts.down], chosen)
    given = layout.as_wanted(up, layout.normed)
    row_bytes = given.stride * (1 if up.of_codes else layout.dtype.itemsize)
    rows = Rows(layout.buffer("rows", chosen * row_bytes, torch.uint8), given.stride)
    layout.add(dispatch(routing=routing, in_=given.at, out=rows.at, row_bytes=row_bytes))
    inner = layout.rows("inner rows", up.n, of_token=chosen)
    activated = Activated(experts.activation, experts.gate is not None, alpha=experts.alpha, limit=experts.limit)
    layout.add_product(up, rows, Into(inner.at, pitch=inner.stride), activated, routing)
    inner = layout.as_wanted(down, inner, chosen)
    parts = layout.buffer("parts", chosen * down.n, torch.float32)
    layout.add_product(down, inner, Into(parts, Mode.STORE_FP32), routing=routing)
    if experts.shared is not None:
        packed = layout.pack_finely(experts.shared.down)
        given = lay_out_mlp(layout, experts.shared)
        layout.add_linear(packed, given, Into(layout.branch, Mode.STORE_FP32))
    out, mode = (layout.hidden, Mode.ADD) if after is None else (layout.branch, Mode.STORE_FP32)
    gated = experts.shared is not None and bool(gates)
    layout.add(
        combine(
            routing=routing, n=down.n, in_=parts, out=out, mode=mode, scale=scale,
            shared=None if experts.shared is None else layout.branch, gate_scores=scores if gated else None,
            columns=scored.n if gated else 0,
        )
    )  # fmt: skip
    if after is not None:
        layout.add_norm(after, layout.branch, layout.hidden, Mode.ADD, scale=scale)
