"""The operations of layers with a recurrent state, one function for each kind. Runs in the engine process.

See `operations` for what arguments have in common. `states` is the state of the first slot, which changes.
"""

from __future__ import annotations

from ..thread_pool import ACTIVATIONS, Kind, Op


def convolve(
    *,
    n: int,
    tokens: int,
    taps: int,
    weight: int,
    channel_bias: int | None,
    activation: str | None,
    in_: int,
    by_token: bool = False,
    out: int,
    states: int | None = None,
) -> Op:
    """Convolve each channel of whole prompts, or of one more token of each sequence, by itself.

    Args:
        n, tokens: channels, and tokens of each sequence.
        weight: (n, taps) T, the last for the newest token.
        channel_bias: (n,) T
        in_: (sequences, n, tokens) T or, if `by_token`, (sequences, tokens, n).
        out: (sequences, tokens, n) T
        states: (sequences, n, taps) T, the last inputs, oldest first, for one more token.
    """
    return Op(
        kind=Kind.CONVOLVE, n=n, k=tokens, dim=taps, weight=weight, keys=channel_bias,
        activation=ACTIVATIONS[activation], in_=in_, mode=int(by_token), out=out, routed=states,
    )  # fmt: skip


def convolve_rows(
    *,
    n: int,
    taps: int,
    weight: int,
    bias: int | None,
    activation: str | None,
    in_: int,
    stride: int,
    in_factors: int | None = None,
    out_factors: int | None = None,
    out: int,
    states: int,
) -> Op:
    """Convolve each channel of spans of tokens by itself.

    Args:
        n: channels.
        weight: (taps, n), the last for the newest token.
        bias: (n,)
        in_, in_factors, out_factors: rows of (n,) T each, `stride` apart; factors multiply the input and the result.
        out: (tokens, n) T
        states: (taps - 1, n) T, the last inputs, oldest first.
    """
    return Op(
        kind=Kind.CONVOLVE_ROWS, n=n, dim=taps, weight=weight, bias=bias, activation=ACTIVATIONS[activation], in_=in_,
        stride=stride, keys=in_factors, values=out_factors, out=out, routed=states,
    )  # fmt: skip


def decay(
    *,
    heads: int,
    in_: int,
    input_rates: int,
    stride: int,
    decay: int,
    bias: int,
    max_beta: float,
    out: int,
) -> Op:
    """Make what `delta` needs for each head: g = decay * softplus(in_ + bias), beta = max_beta * sigmoid(input_rates).

    Args:
        in_, input_rates: rows of (heads,) T each, `stride` apart.
        decay, bias: (heads,)
        out: (tokens, 2, heads): g, then beta.
    """
    return Op(
        kind=Kind.DECAY, heads=heads, in_=in_, keys=input_rates, stride=stride, weight=decay, bias=bias,
        scale=max_beta, out=out,
    )  # fmt: skip


def delta(
    *,
    heads: int,
    key_heads: int,
    dim: int,
    value_dim: int,
    in_: int,
    keys: int,
    stride: int,
    values: int,
    value_stride: int,
    g: int,
    beta: int,
    rate_stride: int,
    scale: float,
    unit: bool,
    eps: float,
    out: int,
    states: int,
) -> Op:
    """Apply the gated delta rule.

    Args:
        heads, key_heads: of values; of queries and keys.
        dim, value_dim: of a key and of a value, multiples of 16.
        in_, keys: rows of (key_heads, dim) T each, `stride` apart: queries and keys.
        values: rows of (heads, value_dim) T, `value_stride` apart.
        g, beta: rows of (heads,) each, `rate_stride` apart: logarithms of decays, and shares of missing values.
        scale: multiplies queries.
        unit, eps: queries and keys are normalized to length one; eps is added to their squared length.
        out: (tokens, heads, value_dim) T
        states: (heads, dim, value_dim)
    """
    return Op(
        kind=Kind.DELTA, heads=heads, kv_heads=key_heads, dim=dim, value_dim=value_dim, in_=in_, keys=keys,
        stride=stride, values=values, n=value_stride, bias=g, weight2=beta, k=rate_stride, scale=scale, mode=int(unit),
        eps=eps, out=out, routed=states,
    )  # fmt: skip


def step_sizes(
    *, heads: int, in_: int, stride: int, bias: int, least_step: float, greatest_step: float, out: int
) -> Op:
    """Make each head's step size for `scan`: softplus(in_ + bias), within limits.

    Args:
        in_: rows of (heads,) T, `stride` apart.
        bias: (heads,)
        out: (tokens, heads)
    """
    return Op(
        kind=Kind.STEP_SIZES, heads=heads, in_=in_, stride=stride, bias=bias, eps=least_step, softcap=greatest_step,
        out=out,
    )  # fmt: skip


def scan(
    *,
    heads: int,
    dim: int,
    head_groups: int,
    state_size: int,
    in_: int,
    stride: int,
    B: int,
    C: int,
    shared_stride: int,
    dt: int,
    head_A: int,
    D: int | None,
    out: int,
    rounded: bool = False,
    states: int,
) -> Op:
    """Run Mamba 2's state space.

    Args:
        head_groups: heads of a group share B and C.
        state_size: numbers of state for each dimension of a head, a multiple of 16.
        in_: rows of (heads, dim) T, `stride` apart: x.
        B, C: rows of (head_groups, state_size) T each, `shared_stride` apart.
        dt: (tokens, heads) step sizes.
        head_A, D: (heads,)
        out: (tokens, heads, dim), T if `rounded`.
        states: (heads, dim, state_size)
    """
    return Op(
        kind=Kind.SCAN, heads=heads, dim=dim, kv_heads=head_groups, value_dim=state_size, in_=in_, stride=stride,
        keys=B, values=C, n=shared_stride, bias=dt, weight2=head_A, weight3=D, out=out, mode=int(rounded),
        routed=states,
    )  # fmt: skip


def selective_scan(
    *,
    channels: int,
    state_size: int,
    in_: int,
    B: int,
    C: int,
    shared_stride: int,
    dt: int,
    dt_bias: int | None,
    A: int,
    D: int | None,
    out: int,
    states: int,
) -> Op:
    """Run Mamba 1's state space.

    Args:
        state_size: numbers of state of each channel.
        in_, out: (tokens, channels) T each.
        B, C: rows of (state_size,) T each, `shared_stride` apart.
        dt: (tokens, channels): a step size is softplus(dt + dt_bias).
        dt_bias, D: (channels,)
        A: (state_size, channels)
        states: (state_size, channels)
    """
    return Op(
        kind=Kind.SELECTIVE_SCAN, dim=channels, value_dim=state_size, in_=in_, keys=B, values=C, n=shared_stride,
        bias=dt, weight2=dt_bias, weight=A, weight3=D, out=out, routed=states,
    )  # fmt: skip
