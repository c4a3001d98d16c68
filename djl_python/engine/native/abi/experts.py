"""The operations of mixtures of experts (expert_routing.h). No torch."""

from __future__ import annotations

from .enums import Kind, Mode
from .parts import Routing
from .structures import Flag, Float, In, InFloats, Int32, Operation, Out, OutFloats, structure


@structure
class RouteOp(Operation):
    """Chooses each token's experts, and their weights.

    Attributes:
        in_, columns: (tokens, columns) fp32: scores of the experts, and further columns.
        sigmoid: what makes weights of scores, else softmax does.
        correction: (experts,) added to weights for the choice alone.
        groups, groups_taken: the experts are so many groups; the best so many of them are chosen from.
        judges: a group is as good as the sum of its so many (1 or 2) best experts.
        normalized: weights are made to add up to 1.
        scale: then multiplies weights.
    """

    KIND = Kind.ROUTE
    routing: Routing
    in_: InFloats
    columns: Int32
    sigmoid: Flag
    correction: InFloats | None
    groups: Int32
    groups_taken: Int32
    judges: Int32
    normalized: Flag
    scale: Float


@structure
class SortOp(Operation):
    """Assigns a row to each pair of token and expert, ordered by expert."""

    KIND = Kind.SORT
    routing: Routing


@structure
class DispatchOp(Operation):
    """Copies each token's row to all rows that a SortOp assigned to it.

    Attributes:
        row_bytes: of a row.
        in_, out: (tokens,) and (tokens * chosen,) rows.
    """

    KIND = Kind.DISPATCH
    routing: Routing
    in_: In
    out: Out
    row_bytes: Int32


@structure
class CombineOp(Operation):
    """Adds up the weighted results of each token's experts, and the result of a shared expert.

    Attributes:
        n: numbers of a row.
        in_: (tokens * chosen, n), as a SortOp assigned them.
        out: (tokens, n), to which sums are added (ADD), or where they are stored (STORE_FP32).
        scale: multiplies what is added.
        shared: (tokens, n): the shared expert's results.
        gate_scores, columns: a RouteOp's `in_`, whose column `experts` has the shared expert's gate.
    """

    KIND = Kind.COMBINE
    routing: Routing
    n: Int32
    in_: InFloats
    out: OutFloats
    mode: Mode
    scale: Float = 1.0
    shared: InFloats | None = None
    gate_scores: InFloats | None = None
    columns: Int32 = 0
