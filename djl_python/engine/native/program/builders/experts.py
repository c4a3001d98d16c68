"""Builds a mixture of experts; expert_routing.h has the steps. Runs in the engine process, once."""

from __future__ import annotations

import torch

from ....reading.recipe.decoder import ExpertGroups, Experts
from ....reading.recipe.primitives import Norm, NotUnderstoodError, Stacked
from ...abi.enums import MAX_EXPERTS, Activation, Mode
from ...abi.experts import CombineOp, DispatchOp, RouteOp, SortOp
from ...abi.parts import Epilogue, Output, Routing
from .builder import ProgramBuilder, Rows
from .mlp import build_mlp


def build_experts(builder: ProgramBuilder, experts: Experts, after: Norm | None, scale: float) -> None:
    """hidden += scale * after(experts(normed))"""
    router = experts.router
    count, chosen = len(router.scores.weight), router.chosen
    if count > MAX_EXPERTS:
        raise NotUnderstoodError(f"{count} experts")
    gates = [] if experts.shared_gate is None else [experts.shared_gate]
    scored = builder.pack_exactly(Stacked([router.scores, *gates], None).joined())
    scores = builder.buffer("scores", scored.n, torch.float32)
    builder.add_linear(scored, builder.normed, Output(out=scores, mode=Mode.STORE_FP32))
    # For `Routed` of expert_routing.h: one token's row has room for the arrays by expert; its own take 12 bytes each.
    routed = builder.buffer("routed", 8 * (count + 1) + 12 * chosen, torch.uint8)
    routing = Routing(experts=count, chosen=chosen, routed=routed)
    correction = None if router.correction is None else builder.keep(router.correction.float().contiguous())
    groups = router.groups or ExpertGroups(1, 1, 1)
    builder.add(
        RouteOp(
            routing=routing, in_=scores, columns=scored.n, sigmoid=router.function == "sigmoid",
            correction=correction, groups=groups.count, groups_taken=groups.taken, judges=groups.ranks,
            normalized=router.normalized, scale=router.scale,
        )
    )  # fmt: skip
    builder.add(SortOp(routing=routing))
    linears = [experts.up] if experts.gate is None else [experts.gate, experts.up]
    up, down = builder.pack_experts(linears, chosen, "up"), builder.pack_experts([experts.down], chosen, "out")
    given = builder.quantized_for(up, builder.normed)
    row_bytes = given.stride * (1 if up.of_codes else builder.dtype.itemsize)
    rows = Rows(builder.buffer("rows", chosen * row_bytes, torch.uint8), given.stride)
    builder.add(DispatchOp(routing=routing, in_=given.at, out=rows.at, row_bytes=row_bytes))
    inner = builder.rows("inner rows", up.n, of_token=chosen)
    epilogue = Epilogue(
        activation=Activation.named(experts.activation), gated=experts.gate is not None, alpha=experts.alpha,
        limit=experts.limit,
    )  # fmt: skip
    builder.add_product(up, rows, Output(out=inner.at, pitch=inner.stride), epilogue, routing)
    inner = builder.quantized_for(down, inner, chosen)
    parts = builder.buffer("parts", chosen * down.n, torch.float32)
    builder.add_product(down, inner, Output(out=parts, mode=Mode.STORE_FP32), routing=routing)
    if experts.shared is not None:
        packed = builder.pack(experts.shared.down, role="out")
        given = build_mlp(builder, experts.shared)
        builder.add_linear(packed, given, Output(out=builder.branch, mode=Mode.STORE_FP32))
    out, mode = (builder.hidden, Mode.ADD) if after is None else (builder.branch, Mode.STORE_FP32)
    gated = experts.shared is not None and bool(gates)
    builder.add(
        CombineOp(
            routing=routing, n=down.n, in_=parts, out=out, mode=mode, scale=scale,
            shared=None if experts.shared is None else builder.branch, gate_scores=scores if gated else None,
            columns=scored.n if gated else 0,
        )
    )  # fmt: skip
    if after is not None:
        builder.add_norm(after, builder.branch, builder.hidden, Mode.ADD, scale=scale)
