"""The operations of layers with a recurrent state; `states` is the first slot's, which changes. No torch."""

from __future__ import annotations

from .enums import Activation, Kind
from .structures import Flag, Float, In, InFloats, Int32, Operation, Out, OutFloats, structure


@structure
class CausalConvOp(Operation):
    """Convolves each channel of whole prompts, or of one more token of each sequence, by itself (causal_conv.h).

    Attributes:
        n, tokens: channels, and tokens of each sequence.
        taps: of a channel, the last for the newest token.
        weight, bias: (n, taps) T; (n,) T
        in_: (sequences, n, tokens) T or, if `by_token`, (sequences, tokens, n).
        out: (sequences, tokens, n) T
        states: (sequences, n, taps) T, the last inputs, oldest first, which change; None: nothing precedes the tokens.
    """

    KIND = Kind.CAUSAL_CONV
    n: Int32
    tokens: Int32
    taps: Int32
    weight: In
    bias: In | None
    activation: Activation
    in_: In
    by_token: Flag = False
    out: Out
    states: Out | None = None


@structure
class CausalConvSpansOp(Operation):
    """Convolves each channel of spans of tokens by itself, with states in slots (causal_conv.h).

    Attributes:
        n, taps: channels, and taps of each, the last for the newest token.
        weight, bias: (taps, n); (n,)
        in_, stride: rows of (n,) T.
        in_factors, out_factors: rows of (n,) T, `stride` apart, too, that multiply the input and the result.
        out: (tokens, n) T
        states: (taps - 1, n) T, the last inputs, oldest first.
    """

    KIND = Kind.CAUSAL_CONV_SPANS
    n: Int32
    taps: Int32
    weight: InFloats
    bias: InFloats | None
    activation: Activation
    in_: In
    stride: Int32
    in_factors: In | None = None
    out_factors: In | None = None
    out: Out
    states: Out


@structure
class DeltaRatesOp(Operation):
    """Makes what a DeltaRuleOp needs for each head: g, its decay's logarithm, and beta (delta_rule.h).

    beta is the share of the missing value that is added. g = decay * softplus(in_ + bias), beta = max_beta *
    sigmoid(input_rates).

    Attributes:
        heads: of values.
        in_, input_rates, stride: rows of (heads,) T each.
        decay, bias: (heads,)
        max_beta: the greatest that beta may be.
        out: (tokens, 2, heads): g, then beta.
    """

    KIND = Kind.DELTA_RATES
    heads: Int32
    in_: In
    input_rates: In
    stride: Int32
    decay: InFloats
    bias: InFloats
    max_beta: Float
    out: OutFloats


@structure
class DeltaRuleOp(Operation):
    """Applies the gated delta rule (delta_rule.h).

    Attributes:
        heads, key_heads: of values; of queries and keys, whose number divides that of values.
        dim, value_dim: of a key and of a value, multiples of 16.
        in_, keys, stride: rows of (key_heads, dim) T each: queries and keys.
        values, value_stride: rows of (heads, value_dim) T, value_stride apart.
        g, beta, rate_stride: rows of (heads,) each, rate_stride apart.
        scale: multiplies queries.
        unit, eps: queries and keys are normalized to length one before; eps is added to the squared length.
        out: (tokens, heads, value_dim) T
        states: (heads, dim, value_dim) fp32
    """

    KIND = Kind.DELTA_RULE
    heads: Int32
    key_heads: Int32
    dim: Int32
    value_dim: Int32
    in_: In
    keys: In
    stride: Int32
    values: In
    value_stride: Int32
    g: InFloats
    beta: InFloats
    rate_stride: Int32
    scale: Float
    unit: Flag
    eps: Float
    out: Out
    states: Out


@structure
class StepSizesOp(Operation):
    """Makes each head's step size for a Mamba2ScanOp: softplus(in_ + bias), within limits (state_space.h).

    Attributes:
        in_, stride: rows of (heads,) T.
        bias: (heads,)
        out: (tokens, heads)
    """

    KIND = Kind.STEP_SIZES
    heads: Int32
    in_: In
    stride: Int32
    bias: InFloats
    least_step: Float
    greatest_step: Float
    out: OutFloats


@structure
class Mamba2ScanOp(Operation):
    """Runs Mamba 2's state space (state_space.h).

    Attributes:
        heads, dim: of the input x.
        head_groups: heads of a group share B and C.
        state_size: numbers of state for each dimension of a head, a multiple of 16.
        in_, stride: rows of (heads, dim) T: x.
        B, C, shared_stride: rows of (head_groups, state_size) T, shared_stride apart.
        dt: (tokens, heads) step sizes.
        A, D: (heads,)
        out: (tokens, heads, dim), T if `rounded`.
        states: (heads, dim, state_size) fp32
    """

    KIND = Kind.MAMBA2_SCAN
    heads: Int32
    dim: Int32
    head_groups: Int32
    state_size: Int32
    in_: In
    stride: Int32
    B: In
    C: In
    shared_stride: Int32
    dt: InFloats
    A: InFloats
    D: InFloats | None
    out: Out
    rounded: Flag = False
    states: Out


@structure
class Mamba1ScanOp(Operation):
    """Runs Mamba 1's state space (state_space.h).

    Attributes:
        channels, state_size: how many channels, and how many numbers of state each has.
        in_, out: (tokens, channels) T each.
        B, C, shared_stride: rows of (state_size,) T, shared_stride apart.
        dt, dt_bias: (tokens, channels); (channels,): a step size is softplus(dt + dt_bias).
        A, D: (state_size, channels); (channels,)
        states: (state_size, channels) fp32
    """

    KIND = Kind.MAMBA1_SCAN
    channels: Int32
    state_size: Int32
    in_: In
    B: In
    C: In
    shared_stride: Int32
    dt: InFloats
    dt_bias: InFloats | None
    A: InFloats
    D: InFloats | None
    out: Out
    states: Out
