"""The operations of a program, one function for each kind. Runs in the engine process.

The table in program.h says what a kind reads and writes; arguments have its names. Addresses are of contiguous arrays
unless a distance between rows is given, in numbers. T is the model's dtype, bf16 or fp32; other numbers are fp32 unless
said otherwise. R is the number of rows: one for each token, unless tokens have more. `operations_attention`,
`operations_experts` and `operations_states` have further kinds.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ..thread_pool import ACTIVATIONS, NORMS, Kind, Mode, Op


class Weights(NamedTuple):
    """A packed weight: `WeightFormat` of program.h, and addresses of its parts; `Packed` says what they are."""

    format: int
    weight: int
    weight2: int | None
    weight3: int | None


class Activated(NamedTuple):
    """What is done to a product in T before it is stored.

    Args:
        activation: a name in `ACTIVATIONS`.
        gated: the weight is a gated pair: activation(first half) * second half is stored.
        curve_above, curve_below, curve_slope: of "xielu": factors of x * x above 0, of exp(x) - 1 - x below, and of x.
        alpha, limit: of "clamped_swiglu".
    """

    activation: str | None = None
    gated: bool = False
    curve_above: float = 0.0
    curve_below: float = 0.0
    curve_slope: float = 0.0
    alpha: float = 0.0
    limit: float = 0.0


#: Nothing is done to it.
UNCHANGED: Final = Activated()


class Into(NamedTuple):
    """Where a product goes.

    Args:
        out: (R, n), T with Mode.STORE, else fp32; rows are `pitch` apart.
        scale: multiplies what is added or stored in fp32.
        softcap: fp32 results are capped to +-softcap; 0: they are not.
    """

    out: int | None = None
    mode: Mode = Mode.STORE
    pitch: int = 0
    scale: float = 1.0
    softcap: float = 0.0


class Routing(NamedTuple):
    """A mixture of experts: how many there are, how many a token chooses, and the address of `Routed` of expert_routing.h."""

    experts: int
    chosen: int
    routed: int


def embed(
    *,
    n: int,
    out: int,
    weight: int | Weights | None = None,
    scale: float = 0.0,
    positions: int | None = None,
    position_offset: int = 0,
) -> Op:
    """Begin the residual stream: out = scale * weight[id] + positions[position + position_offset].

    Args:
        n: numbers of an embedding.
        out: (tokens, n)
        weight: (vocabulary, n) T, or the lm_head's packed weight.
        positions: (.., n) T, learned.
    """
    packed = isinstance(weight, Weights)
    table = weight._asdict() if isinstance(weight, Weights) else {"weight": weight}
    return Op(
        kind=Kind.EMBED, n=n, out=out, scale=scale, bias=positions, k=position_offset, mode=int(packed), **table
    )  # fmt: skip


def norm(
    *,
    n: int,
    in_: int,
    out: int,
    norm: str | None,
    eps: float = 0.0,
    weight: int | None = None,
    bias: int | None = None,
    mode: Mode = Mode.STORE,
    pitch: int = 0,
    scale: float = 1.0,
    chosen: int | None = None,
) -> Op:
    """Norm rows.

    Args:
        n: numbers of a row.
        in_: (R, n)
        out: (R, n), T with Mode.STORE, with rows `pitch` apart; else fp32.
        norm: "rms", "layer", or None to change the format only.
        weight, bias: (n,)
        scale: multiplies what is added (Mode.ADD).
        chosen: rows of each token, if not one.
    """
    return Op(
        kind=Kind.NORM, n=n, in_=in_, out=out, norm=NORMS[norm], eps=eps, weight=weight, bias=bias, mode=mode,
        pitch=pitch, scale=scale if mode == Mode.ADD else 0.0, of_experts=int(chosen is not None), chosen=chosen or 0,
    )  # fmt: skip


def linear(
    *,
    n: int,
    k: int,
    weights: Weights,
    in_: int | None = None,
    stride: int = 0,
    bias: int | None = None,
    into: Into,
    activated: Activated = UNCHANGED,
    side_by_side: int = 0,
    apart: int = 0,
    routing: Routing | None = None,
) -> Op:
    """Multiply rows by a packed weight.

    Args:
        n, k: columns and rows of the weight: of a gated pair's half, of one expert, of one product.
        in_: rows of (k,) T or, if the weight is of integers, what `quantize` writes.
        bias: (n,) padded to whole panels.
        activated: only with Mode.STORE.
        side_by_side: number of products, each of its own k numbers of a row; 0: it is one.
        apart: numbers from where one of these products goes to where the next one does.
        routing: each expert's rows are multiplied by its own weight.
    """
    fields = {} if routing is None else {"of_experts": 1, **routing._asdict()}
    if into.mode != Mode.STORE:
        eps, softcap, scale = 0.0, into.softcap, into.scale
    elif activated.activation == "xielu":
        eps, softcap, scale = activated.curve_above, activated.curve_below, activated.curve_slope
    else:
        eps, softcap, scale = activated.alpha, activated.limit, 0.0
    return Op(
        kind=Kind.LINEAR, n=n, k=k, **weights._asdict(), in_=in_, stride=stride, bias=bias, out=into.out,
        mode=into.mode, pitch=into.pitch, activation=ACTIVATIONS[activated.activation], gated=int(activated.gated),
        eps=eps, softcap=softcap, scale=scale, heads=side_by_side, dim=apart, **fields,
    )  # fmt: skip


def quantize(
    *,
    k: int,
    in_: int | None = None,
    stride: int = 0,
    out: int | None = None,
    order: int | None = None,
    chosen: int | None = None,
) -> Op:
    """Round rows to integers for `linear`, in groups with a scale each.

    Args:
        in_: (R, k) T
        out: R rows of `Pool.codes_bytes(k)` bytes.
        order: (k,) int32, in which the numbers of a row are taken.
        chosen: rows of each token, if not one.
    """
    return Op(
        kind=Kind.QUANTIZE, k=k, in_=in_, stride=stride, out=out, weight=order, of_experts=int(chosen is not None),
        chosen=chosen or 0,
    )  # fmt: skip


def pack(
    *, n: int, k: int, in_: int, second: int | None, out: int, tables: int, lists: int, room: int, counts: int
) -> Op:
    """Pack a weight, or a gated pair, in 12 bits; bf16_12bit.h has the layout.

    Args:
        in_, second: (n, k) bf16, each.
        out: the packed panels.
        tables: (panels, 16) uint8
        lists: (panels, room) int32: weights that a panel's table can't encode.
        counts: (panels, parts) int32: how many weights each part lists, -1 where the room was not enough.
    """
    return Op(
        kind=Kind.PACK, n=n, k=k, in_=in_, weight=second, out=out, keys=tables, weight3=lists, heads=room,
        values=counts,
    )  # fmt: skip


def gather(*, n: int, in_: int, out: int) -> Op:
    """Copy the rows whose logits are wanted: (tokens, n) to (wanted, n) numbers of 32 bits."""
    return Op(kind=Kind.GATHER, n=n, in_=in_, out=out)


def norm_rows(
    *,
    n: int,
    part: int,
    norm: str | None,
    eps: float = 0.0,
    weight: int,
    bias: int | None = None,
    in_: int | None = None,
    out: int | None = None,
    pitch: int = 0,
    gate: int | None = None,
    gate_stride: int = 0,
    gate_first: bool = False,
) -> Op:
    """Norm each `part` numbers of a row by themselves, and multiply by silu(gate).

    Args:
        in_: (tokens, n) T
        out: (tokens, n) T, rows `pitch` apart.
        norm: "rms", "layer", or None for no norm.
        weight, bias: (n,)
        gate: rows of (n,) T, `gate_stride` apart.
        gate_first: the gate multiplies what is normed, else the norm's result.
    """
    return Op(
        kind=Kind.NORM_ROWS, n=n, k=part, norm=NORMS[norm], eps=eps, weight=weight, bias=bias, in_=in_, out=out,
        pitch=pitch, keys=gate, stride=gate_stride, mode=int(gate_first),
    )  # fmt: skip


def aim_norm_rows(operation: Op, *, in_: int, out: int, gate: int | None) -> None:
    """Point what `norm_rows` made at other rows: making it anew takes ten times as long."""
    operation.in_, operation.out, operation.keys = in_, out, gate


def gate(*, n: int, in_: int, stride: int, out: int, pitch: int, plain: bool = False) -> Op:
    """Multiply rows by the sigmoid of others or, if `plain`, by these as they are.

    Args:
        in_: rows of (n,), `stride` apart.
        out: rows of (n,) T, `pitch` apart, which change.
    """
    return Op(kind=Kind.GATE, n=n, in_=in_, stride=stride, out=out, pitch=pitch, mode=int(plain))


def choose(
    *,
    n: int,
    in_: int,
    maxima: int | None,
    changed: int | None,
    choices: int,
    max_alternatives: int,
    logprobs: int,
    token_ids: int,
) -> Op:
    """Choose a token for each row of logits.

    Args:
        n: tokens of the vocabulary.
        in_: (rows, n) logits, which are written to meanwhile.
        maxima: (rows, panels) each panel's greatest logit, if they are known.
        changed: (.., n) scores that some rows' choices are made of instead.
        choices: (rows,) of dtype CHOICE, which are filled in.
        logprobs, token_ids: (rows, max_alternatives) fp32 and int64, which are filled in.
    """
    return Op(
        kind=Kind.CHOOSE, n=n, in_=in_, maxima=maxima, weight=changed, sinks=choices,
        kv_heads=max_alternatives, values=logprobs, routed=token_ids,
    )  # fmt: skip


def pick(
    *,
    n: int,
    k: int,
    weights: Weights,
    in_: int,
    stride: int,
    bias: int | None,
    scale: float,
    softcap: float,
    codes: int,
    weight_squares: int,
    error_squares: int,
) -> Op:
    """Choose a token for each row, given what a product with rounded weights keeps of each panel.

    Args:
        n, k, weights, in_, stride, bias, scale, softcap: of the lm_head's product, whose weight is packed in 12 bits.
        codes: the rows as `quantize` wrote them.
        weight_squares, error_squares: what `round_` told of the head's weights.
    """
    return Op(
        kind=Kind.PICK, n=n, k=k, **weights._asdict(), in_=in_, stride=stride, bias=bias, scale=scale, softcap=softcap,
        keys=codes, cosines=weight_squares, sines=error_squares,
    )  # fmt: skip


def round_(*, n: int, k: int, in_: int, out: int, scales: int, weight_squares: int, error_squares: int) -> Op:
    """Round a bf16 weight to 8 bits, and tell by how much.

    Args:
        in_: (n, k) as checkpoints have it.
        out: packed panels.
        scales: (n,) padded to whole panels.
        weight_squares, error_squares: (groups, panels), as `Rounded` has them.
    """
    return Op(
        kind=Kind.ROUND, n=n, k=k, in_=in_, out=out, maxima=scales, cosines=weight_squares, sines=error_squares
    )  # fmt: skip
