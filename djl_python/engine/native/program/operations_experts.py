"""The operations of mixtures of experts, one function for each kind. Runs in the engine process.

See `operations` for what arguments have in common, and for `linear`, which multiplies the experts' rows.
"""

from __future__ import annotations

from ..thread_pool import Kind, Mode, Op
from .operations import Routing


def route(
    *,
    routing: Routing,
    in_: int,
    columns: int,
    sigmoid: bool,
    correction: int | None,
    groups: int,
    groups_taken: int,
    judges: int,
    normalized: bool,
    scale: float,
) -> Op:
    """Choose each token's experts, and their weights.

    Args:
        in_: (tokens, columns): scores of the experts, and further columns.
        sigmoid: of scores it makes weights, else softmax does.
        correction: (experts,) added to weights for the choice alone.
        groups, groups_taken: the experts are so many groups, of which the best so many are chosen from.
        judges: a group is as good as the sum of its so many (1 or 2) best experts.
        normalized: weights are made to add up to 1.
        scale: then multiplies weights.
    """
    return Op(
        kind=Kind.ROUTE, **routing._asdict(), in_=in_, k=columns, mode=int(sigmoid), bias=correction, heads=groups,
        kv_heads=groups_taken, dim=judges, n=int(normalized), scale=scale,
    )  # fmt: skip


def sort(*, routing: Routing) -> Op:
    """Assign a row to each choice, ordered by expert."""
    return Op(kind=Kind.SORT, **routing._asdict())


def dispatch(*, routing: Routing, in_: int, out: int, row_bytes: int) -> Op:
    """Copy each token's row to all rows that its choices have: (tokens,) to (tokens * chosen,) rows."""
    return Op(kind=Kind.DISPATCH, **routing._asdict(), in_=in_, out=out, n=row_bytes)


def combine(
    *,
    routing: Routing,
    n: int,
    in_: int,
    out: int,
    mode: Mode,
    scale: float = 1.0,
    shared: int | None = None,
    gate_scores: int | None = None,
    columns: int = 0,
) -> Op:
    """Add up the weighted results of each token's experts, and the result of a shared expert.

    Args:
        in_: (tokens * chosen, n)
        out: (tokens, n) to which results are added (Mode.ADD) or stored (Mode.STORE_FP32).
        scale: multiplies what is added.
        shared: (tokens, n)
        gate_scores: (tokens, columns), the `in_` of `route`: the sigmoid of column `experts` multiplies `shared`.
    """
    return Op(
        kind=Kind.COMBINE, **routing._asdict(), n=n, in_=in_, out=out, mode=mode,
        scale=scale if mode == Mode.ADD else 0.0, weight=shared, weight2=gate_scores, k=columns,
    )  # fmt: skip
