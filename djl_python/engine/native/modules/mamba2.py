"""Mamba 2's state space on the native kernels, in place of transformers' functions. Runs in the engine process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from ..abi.operations import OperationArray
from ..abi.recurrent import Mamba2ScanOp
from ..abi.step_inputs import StepInputs
from ..program.step_arrays import even_state_arrays
from ..thread_pool import FORMATS, ThreadPool

LANES: Final = 16
MAX_STATE: Final = 256


def native_update(own: Callable[..., Any], pool: ThreadPool) -> Callable[..., Any]:
    """`mamba2_selective_state_update` on the kernels: one more token, (sequences, heads, dim); updates the state.

    dt, A, D and dt's bias, of which a head has one value each, come expanded to all of its dimensions.
    """

    def update(
        state: Tensor,
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None = None,
        dt_bias: Tensor | None = None,
        dt_softplus: bool = False,
        z: Tensor | None = None,
        **others: Any,
    ) -> Any:
        by_head = (dt, 2), (A, 1), (A, 2), *((each, 1) for each in (D, dt_bias) if each is not None)
        if any(each.stride(place) for each, place in by_head) or not _fits(hidden_states, B, C, state):
            return own(state, hidden_states, dt, A, B, C, D, dt_bias, dt_softplus, z, **others)
        steps = _steps(dt[:, None, :, 0], None if dt_bias is None else dt_bias[:, 0], dt_softplus)
        x, B, C = (each[:, None] for each in (hidden_states, B, C))
        made = _run(pool, x, B, C, steps, A[:, 0, 0], None if D is None else D[:, 0], state)
        gated = made[:, 0] if z is None else made[:, 0] * functional.silu(z.float())
        return gated.to(hidden_states.dtype)

    return update


def native_scan(own: Callable[..., Any], pool: ThreadPool) -> Callable[..., Any]:
    """`mamba2_chunk_scan` on the kernels, for prefill: (sequences, tokens, heads, dim); the result is fp32."""

    def scan(
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        chunk_size: int,
        D: Tensor | None = None,
        dt_bias: Tensor | None = None,
        initial_states: Tensor | None = None,
        dt_softplus: bool = False,
        dt_limit: tuple[float, float] = (0.0, float("inf")),
        return_final_states: bool = False,
        **others: Any,  # transformers' function ignores these too
    ) -> Any:
        if not _fits(hidden_states, B, C, initial_states):
            return own(
                hidden_states, dt, A, B, C, chunk_size, D=D, dt_bias=dt_bias, initial_states=initial_states,
                dt_softplus=dt_softplus, dt_limit=dt_limit, return_final_states=return_final_states, **others,
            )  # fmt: skip
        state = initial_states
        if state is None:
            sequences, _, heads, size = hidden_states.shape
            state = torch.empty(sequences, heads, size, B.shape[3])
        elif not return_final_states:  # otherwise the caller's state is updated in place
            state = state.clone()
        steps = _steps(dt, dt_bias, dt_softplus).clamp(*dt_limit)
        made = _run(pool, hidden_states, B, C, steps, A, D, state, begin=initial_states is None)
        return (made, state) if return_final_states else made

    return scan


def tried_update(function: Callable[..., Any]) -> list[Tensor]:
    """Results of a `mamba2_selective_state_update` for two tokens in turn, and the state after them."""
    x, dt, A, B, C, D, bias, state = _numbers(2)
    expanded = A[:, None, None].expand(-1, 3, LANES), D[:, None].expand(-1, 3), bias[:, None].expand(-1, 3)
    answers = [
        function(
            state, x[:, t], dt[:, t, :, None].expand(-1, -1, 3), expanded[0], B[:, t], C[:, t], expanded[1], z=z,
            dt_bias=expanded[2], dt_softplus=True,
        )
        for t, z in enumerate((None, x[:, 0]))
    ]  # fmt: skip
    return [*answers, state]


def tried(function: Callable[..., Any]) -> list[Tensor]:
    """Results and final states of a `mamba2_chunk_scan` for seven tokens, without and with an initial state."""
    x, dt, A, B, C, D, bias, state = _numbers(7)
    found = []
    for before in (None, state):
        answer, final = function(
            x, dt, A, B, C, chunk_size=4, D=D, z=None, return_final_states=True, dt_bias=bias, dt_softplus=True,
            initial_states=before, dt_limit=(0.1, 2.0),
        )  # fmt: skip
        found += [answer, final]
    return found


def _numbers(tokens: int) -> tuple[Tensor, ...]:
    """x, dt, A, B, C, D, dt's bias and a state for two sequences with four heads of three dimensions in two groups."""
    random = torch.Generator().manual_seed(2)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random)

    x, dt, A = numbers(2, tokens, 4, 3), numbers(2, tokens, 4), -numbers(4).abs()
    B, C = numbers(2, tokens, 2, LANES), numbers(2, tokens, 2, LANES)
    return x, dt, A, B, C, numbers(4), numbers(4), numbers(2, 4, 3, LANES)


def _steps(dt: Tensor, bias: Tensor | None, softplus: bool) -> Tensor:
    """dt with its bias added and softplus applied: (sequences, tokens, heads) fp32."""
    steps = dt.float() if bias is None else dt.float() + bias.float()
    return functional.softplus(steps) if softplus else steps


def _fits(hidden: Tensor, B: Tensor, C: Tensor, state: Tensor | None) -> bool:
    """Whether the kernel supports these inputs."""
    return (
        hidden.dtype in FORMATS
        and hidden.dtype == B.dtype == C.dtype
        and B.shape[-1] % LANES == 0
        and B.shape[-1] <= MAX_STATE
        and hidden.shape[-2] % B.shape[-2] == 0
        and (state is None or (state.dtype == torch.float32 and state.is_contiguous()))
    )


def _run(
    pool: ThreadPool,
    x: Tensor,
    B: Tensor,
    C: Tensor,
    steps: Tensor,
    A: Tensor,
    D: Tensor | None,
    state: Tensor,
    begin: bool = False,
) -> Tensor:
    """Run the scan: (sequences, tokens, heads, dim) fp32; updates `state` in place."""
    x, B, C, steps = (each.contiguous() for each in (x, B, C, steps))
    A = A.float().contiguous()
    D = None if D is None else D.float().contiguous()
    made = torch.empty(x.shape)
    sequences, tokens, heads, size = x.shape
    operation = Mamba2ScanOp(
        heads=heads, dim=size, head_groups=B.shape[2], state_size=B.shape[3], in_=x.data_ptr(), stride=heads * size,
        B=B.data_ptr(), C=C.data_ptr(), shared_stride=B.shape[2] * B.shape[3], dt=steps.data_ptr(),
        A=A.data_ptr(), D=None if D is None else D.data_ptr(), out=made.data_ptr(), states=state.data_ptr(),
    )  # fmt: skip
    step = StepInputs(tokens=sequences * tokens)
    even_state_arrays(sequences, tokens, begin).tell(step, state[0].nbytes)
    pool.run(OperationArray([operation]), step, bf16=x.dtype == torch.bfloat16)
    return made
