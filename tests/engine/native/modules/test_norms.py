"""Norms on the native kernels compute what the models' own compute."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.falcon_h1.modeling_falcon_h1 import FalconH1RMSNormGated
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5RMSNormGated

from djl_python.engine.native.modules.norms import NativeNorm
from djl_python.engine.native.thread_pool import ThreadPool

WIDTH = 72
FORMATS = [torch.float32, torch.bfloat16]


@pytest.fixture(scope="module")
def pools(_kernels: None) -> Iterator[tuple[ThreadPool, ThreadPool]]:
    made = ThreadPool(3), ThreadPool(1)
    yield made
    for each in made:
        each.close()


def randomized(norm: Any, dtype: torch.dtype) -> Any:
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(0.5 + torch.rand(parameter.shape, generator=torch.Generator().manual_seed(2)))
    return norm.to(dtype).eval()


def some(*shape: int, dtype: torch.dtype) -> Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(5)) * 3 + 1).to(dtype)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize(
    "own",
    [
        lambda: LlamaRMSNorm(WIDTH, eps=1e-3),
        lambda: Gemma2RMSNorm(WIDTH),  # its weight is one less
        lambda: nn.LayerNorm(WIDTH),
        lambda: nn.LayerNorm(WIDTH, bias=False),
        lambda: Qwen3_5RMSNormGated(WIDTH),
        lambda: FalconH1RMSNormGated(WIDTH, n_groups=3, norm_before_gate=True),
        lambda: FalconH1RMSNormGated(WIDTH, n_groups=3, norm_before_gate=False),
    ],
    ids=["rms", "one less", "layer", "no bias", "gated", "groups", "gate first"],
)
def test_norms(own: Any, dtype: torch.dtype, pools: tuple[ThreadPool, ThreadPool]) -> None:
    norm = randomized(own(), dtype)
    native = NativeNorm.of(norm, dtype, pools)
    assert native is not None
    gated = "Gated" in type(norm).__name__
    for rows in (1, 50, 3000):  # the last for several threads
        x = some(2, rows, WIDTH, dtype=dtype)
        given = (x, some(2, rows, WIDTH, dtype=dtype)) if gated else (x,)
        torch.testing.assert_close(
            native(*given), norm(*given), rtol=2e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5
        )
    assert native.weight is norm.weight


@torch.inference_mode()
def test_a_strided_input(pools: tuple[ThreadPool, ThreadPool]) -> None:
    norm = randomized(LlamaRMSNorm(WIDTH), torch.float32)
    native = NativeNorm.of(norm, torch.float32, pools)
    assert native is not None
    x = some(3, 4, 2 * WIDTH, dtype=torch.float32)[..., ::2].transpose(0, 1)
    torch.testing.assert_close(native(x), norm(x))


@torch.inference_mode()
def test_what_the_kernels_do_not_take_is_the_models_own_business(pools: tuple[ThreadPool, ThreadPool]) -> None:
    norm = randomized(LlamaRMSNorm(WIDTH), torch.bfloat16)
    native = NativeNorm.of(norm, torch.bfloat16, pools)
    assert native is not None
    x = some(2, 3, WIDTH, dtype=torch.float32)
    assert torch.equal(native(x), norm(x))


class Doubled(LlamaRMSNorm):  # type: ignore[misc]
    def forward(self, hidden_states: Tensor) -> Tensor:
        made: Tensor = super().forward(hidden_states)
        return made * 2


class Pair(LlamaRMSNorm):  # type: ignore[misc]
    def forward(self, hidden_states: Tensor, other: Tensor) -> Tensor:
        made: Tensor = super().forward(hidden_states)
        return made + other


@torch.inference_mode()
@pytest.mark.parametrize("own", [Doubled, Pair, lambda width: nn.PReLU(width), lambda width: nn.Linear(width, width)])
def test_what_does_more_is_left_alone(own: Any, pools: tuple[ThreadPool, ThreadPool]) -> None:
    assert NativeNorm.of(randomized(own(WIDTH), torch.float32), torch.float32, pools) is None
