"""Short causal convolutions on the native kernels, in place of transformers' functions. Runs in the engine process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from ...reading.recipe.limits import MAX_TAPS
from ..abi.enums import Activation
from ..abi.operations import OperationArray
from ..abi.recurrent import CausalConvOp
from ..abi.step_inputs import StepInputs
from ..thread_pool import FORMATS, ThreadPool

_ACTIVATIONS: Final = {None: Activation.NONE, "silu": Activation.SILU, "swish": Activation.SILU}


def native(own: Callable[..., Any], pool: ThreadPool) -> Callable[..., Any]:
    """`causal_conv1d_fn` on the kernels, for prefill: (sequences, channels, tokens); `own` for unsupported inputs."""

    def convolve(
        hidden_states: Tensor, weight: Tensor, bias: Tensor | None = None, activation: Any = None, **others: Any
    ) -> Any:
        if not _fits(hidden_states, weight, bias, activation):
            return own(hidden_states, weight, bias, activation=activation, **others)
        by_token = hidden_states.transpose(1, 2)
        in_order = by_token.is_contiguous()
        given = by_token if in_order else hidden_states.contiguous()
        return _run(pool, given, weight, bias, activation, hidden_states.shape, by_token=in_order)

    return convolve


def native_update(own: Callable[..., Any], pool: ThreadPool) -> Callable[..., Any]:
    """`causal_conv1d_update` on the kernels: one more token, (sequences, channels, 1); updates the state in place."""

    def convolve(
        hidden_states: Tensor, conv_state: Tensor, weight: Tensor, bias: Tensor | None = None, activation: Any = None
    ) -> Any:
        if (
            not _fits(hidden_states, weight, bias, activation)
            or hidden_states.shape[2] != 1
            or conv_state.shape[2] != weight.shape[1]
            or conv_state.dtype != weight.dtype
            or not conv_state.is_contiguous()
        ):
            return own(hidden_states, conv_state, weight, bias, activation)
        given, state = hidden_states[:, :, 0].contiguous(), conv_state.data_ptr()
        return _run(pool, given, weight, bias, activation, hidden_states.shape, states=state)

    return convolve


def tried(function: Callable[..., Any]) -> list[Tensor]:
    """Results of a `causal_conv1d_fn` for inputs laid out channel by channel and token by token."""
    hidden, weight, bias = _numbers(2, 21, 37), _numbers(21, 4), _numbers(21)
    by_token = hidden.transpose(1, 2).contiguous().transpose(1, 2)
    return [function(hidden, weight, bias, activation="silu"), function(by_token, weight, None, activation=None)]


def tried_update(function: Callable[..., Any]) -> list[Tensor]:
    """Results of a `causal_conv1d_update` for two tokens in turn, and the state after them."""
    state, weight, bias = _numbers(2, 21, 4), _numbers(21, 4), _numbers(21)
    return [*(function(_numbers(2, 21, 1), state, weight, bias, "silu") for _ in range(2)), state]


def _numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def _fits(hidden: Tensor, weight: Tensor, bias: Tensor | None, activation: Any) -> bool:
    return (
        weight.dtype in FORMATS
        and hidden.dtype == weight.dtype
        and (bias is None or bias.dtype == weight.dtype)
        and weight.shape[1] <= MAX_TAPS
        and activation in _ACTIVATIONS
    )


def _run(
    pool: ThreadPool,
    given: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: Any,
    shape: torch.Size,
    *,
    by_token: bool = False,
    states: int | None = None,
) -> Tensor:
    """Run the convolution: (sequences, channels, tokens), with each token's channels contiguous."""
    sequences, channels, tokens = shape
    made = torch.empty(sequences, tokens, channels, dtype=weight.dtype)
    weight = weight.contiguous()
    operation = CausalConvOp(
        n=channels, tokens=tokens, taps=weight.shape[1], weight=weight.data_ptr(),
        bias=None if bias is None else bias.data_ptr(), activation=_ACTIVATIONS[activation],
        in_=given.data_ptr(), by_token=by_token, out=made.data_ptr(), states=states,
    )  # fmt: skip
    pool.run(OperationArray([operation]), StepInputs(wanted=sequences), bf16=weight.dtype == torch.bfloat16)
    return made.transpose(1, 2)
