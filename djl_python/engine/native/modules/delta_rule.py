"""The gated delta rule on the native kernels, in place of transformers' functions. Runs in the engine process.

transformers' modules have one function for prefill, which goes through a prompt in chunks, and one for decode, token
by token. Here both are one kernel, which reads and writes each recurrent state once, in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...reading.recipe.limits import LANES, MAX_KEY_DIM
from ...reading.recipe.mixers import DELTA_RULE_EPS
from ..abi.operations import OperationArray
from ..abi.recurrent import DeltaRuleOp
from ..abi.step_inputs import StepInputs
from ..program.step_arrays import StateArrays, even_state_arrays
from ..thread_pool import FORMATS, ThreadPool


def native(own: Callable[..., Any], pool: ThreadPool) -> Callable[..., Any]:
    """The function on native kernels; calls `own` for inputs that they don't support."""

    def rule(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        initial_state: Tensor | None = None,
        output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False,
        **others: Any,  # transformers' functions ignore these too, except the chunk length
    ) -> Any:
        if not _fits(query, key, value, initial_state):
            return own(
                query, key, value, g, beta, initial_state=initial_state, output_final_state=output_final_state,
                use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel, **others,
            )  # fmt: skip
        state = initial_state
        if state is None:
            state = value.new_empty(len(key), value.shape[2], key.shape[3], value.shape[3], dtype=torch.float32)
        elif not output_final_state:  # otherwise the caller's state is updated in place
            state = state.clone()
        spans = even_state_arrays(*key.shape[:2], initial_state is None)
        made = _run(pool, query, key, value, g, beta, state, use_qk_l2norm_in_kernel, spans)
        return made, state if output_final_state else None

    return rule


def tried(rule: Callable[..., Any]) -> list[Tensor]:
    """Results of a function for two sequences of five tokens, then for one more token each, and the final states."""
    random = torch.Generator().manual_seed(1)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random)

    state, answers = None, []
    for tokens in (5, 1):
        query, key = numbers(2, tokens, 2, LANES), numbers(2, tokens, 2, LANES)
        value = numbers(2, tokens, 4, 2 * LANES)
        g, beta = -numbers(2, tokens, 4).abs(), numbers(2, tokens, 4).sigmoid()
        answer, state = rule(
            query, key, value, g=g, beta=beta, initial_state=state, output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )  # fmt: skip
        answers.append(answer)
    assert state is not None
    return [*answers, state]


def _run(
    pool: ThreadPool,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    unit: bool,
    spans: StateArrays,
) -> Tensor:
    """Run the rule: (sequences, tokens, value heads, value size), as `value` is; updates `state` in place."""
    query, key, value = (each.contiguous() for each in (query, key, value))
    g, beta = (each.float().contiguous() for each in (g, beta))
    made = torch.empty_like(value)
    sequences, tokens, heads, size = value.shape
    key_heads, dim = key.shape[2:]
    operation = DeltaRuleOp(
        heads=heads, key_heads=key_heads, dim=dim, value_dim=size, in_=query.data_ptr(), keys=key.data_ptr(),
        stride=key_heads * dim, values=value.data_ptr(), value_stride=heads * size, g=g.data_ptr(),
        beta=beta.data_ptr(), rate_stride=heads, scale=dim**-0.5, unit=unit, eps=DELTA_RULE_EPS, out=made.data_ptr(),
        states=state.data_ptr(),
    )  # fmt: skip
    step = StepInputs(tokens=sequences * tokens)
    spans.bind(step, state[0].nbytes)
    pool.run(OperationArray([operation]), step, bf16=value.dtype == torch.bfloat16)
    return made


def _fits(query: Tensor, key: Tensor, value: Tensor, state: Tensor | None) -> bool:
    """Whether the kernel supports these inputs."""
    return (
        query.dtype in FORMATS
        and query.dtype == key.dtype == value.dtype
        and key.shape[3] % LANES == value.shape[3] % LANES == 0
        and key.shape[3] <= MAX_KEY_DIM
        and value.shape[2] % key.shape[2] == 0
        and (state is None or (state.dtype == torch.float32 and state.is_contiguous()))
    )
