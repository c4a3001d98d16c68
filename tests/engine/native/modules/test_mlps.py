"""MLPs on the native kernels compute what the models' own compute."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, CLIPVisionConfig, GPT2Config, LlamaConfig, Phi3Config
from transformers.activations import ACT2FN
from transformers.models.bert.modeling_bert import BertSelfAttention
from transformers.models.clip.modeling_clip import CLIPMLP
from transformers.models.gpt2.modeling_gpt2 import GPT2MLP
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.models.phi3.modeling_phi3 import Phi3MLP

from djl_python.engine.attention.lookup import PAGED, register
from djl_python.engine.checkpoints.quantization import Quantize, finer
from djl_python.engine.native.modules.linears import NativeLinears
from djl_python.engine.native.modules.mlps import NativeMlp, as_mlp
from djl_python.engine.native.modules.modules import replace_mlps_, replace_norms_
from djl_python.engine.reading.linears import as_linear
from djl_python.engine.reading.recipe.primitives import Linear

_SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 100, "num_hidden_layers": 1}


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def linears(request: pytest.FixtureRequest) -> Iterator[NativeLinears]:
    made = NativeLinears(request.param, threads=2)
    yield made
    made.pool.close()


class Model(nn.Module):
    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        self.mlp = mlp

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.mlp(x)
        return made


def a_model(mlp: nn.Module, dtype: torch.dtype) -> Model:
    random = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in mlp.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random) * 0.2)
    return Model(mlp).to(dtype).eval()


KINDS = {
    "gated": lambda: LlamaMLP(LlamaConfig(**_SIZES)),
    "gated in one": lambda: Phi3MLP(Phi3Config(**_SIZES, pad_token_id=0)),
    "quick": lambda: CLIPMLP(CLIPVisionConfig(hidden_size=64, intermediate_size=96, num_attention_heads=4)),
    "biases, transposed": lambda: GPT2MLP(96, GPT2Config(n_embd=64, n_head=4)),
}


@torch.inference_mode()
@pytest.mark.parametrize("kind", KINDS)
def test_mlps(kind: str, linears: NativeLinears) -> None:
    model = a_model(KINDS[kind](), linears.dtype)
    x = torch.randn(2, 5, 64).to(linears.dtype)
    expected = model(x)
    replace_mlps_(model, linears, None)
    assert isinstance(model.mlp, NativeMlp)
    tolerance = 1e-4 if linears.dtype == torch.float32 else 3e-2
    torch.testing.assert_close(model(x), expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))
    assert model(x[:, :0]).shape == (2, 0, 64)


@torch.inference_mode()
@pytest.mark.parametrize("activation", ["quick_gelu", "gelu_pytorch_tanh"])
def test_an_activation_is_as_good_as_what_it_is_stored_in(activation: str, linears: NativeLinears) -> None:
    config = CLIPVisionConfig(hidden_size=64, intermediate_size=64, num_attention_heads=4, hidden_act=activation)
    mlp = CLIPMLP(config)
    model = a_model(mlp, linears.dtype)
    for linear in (mlp.fc1, mlp.fc2):
        linear.weight.copy_(torch.eye(64))
        linear.bias.zero_()
    x = torch.linspace(-9, 9, 64 * 200).reshape(200, 64).to(linears.dtype)
    expected = ACT2FN[activation](x.double())
    replace_mlps_(model, linears, None)
    assert isinstance(model.mlp, NativeMlp)
    error = ((model(x).double() - expected) / expected).abs()[expected.abs() > 1e-6].max()
    assert error < (1e-5 if linears.dtype == torch.float32 else 2**-8 * 1.05)  # half of the last place


@torch.inference_mode()
@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
@pytest.mark.parametrize("activation", ["relu", "relu2", "gelu", "quick_gelu", "gelu_pytorch_tanh"])
def test_what_is_no_number_stays_none(activation: str, quantize: Quantize | None, linears: NativeLinears) -> None:
    config = CLIPVisionConfig(hidden_size=64, intermediate_size=96, num_attention_heads=4, hidden_act=activation)
    model = a_model(CLIPMLP(config), linears.dtype)
    replace_mlps_(model, linears, quantize)
    assert isinstance(model.mlp, NativeMlp)
    x = torch.randn(3, 64).to(linears.dtype)
    x[1, 7] = float("nan")
    assert model(x).isnan().all(1).tolist() == [False, True, False]


@torch.inference_mode()
@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_rounded_weights_are_those_of_rounded_linears(quantize: Quantize, linears: NativeLinears) -> None:
    whole, apart = (a_model(KINDS["gated"](), linears.dtype) for _ in range(2))
    replace_mlps_(whole, linears, quantize)
    for name, each in apart.mlp.named_children():
        if isinstance(each, nn.Linear):
            made = linears.make(Linear(each.weight.data, None), finer(quantize) if name == "down_proj" else quantize)
            assert made is not None
            setattr(apart.mlp, name, made)
    x = torch.randn(7, 64).to(linears.dtype)
    expected = apart(x)
    torch.testing.assert_close(whole(x), expected, rtol=5e-2, atol=5e-2 * float(expected.abs().max()))


class Residual(LlamaMLP):  # type: ignore[misc]
    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = super().forward(x)
        return made + x


class Scaled(LlamaMLP):  # type: ignore[misc]
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.scale = nn.Parameter(torch.ones(1))


@torch.inference_mode()
def test_what_does_more_is_left_alone() -> None:
    for kind in (Residual, Scaled):
        assert as_mlp(a_model(kind(LlamaConfig(**_SIZES)), torch.float32).mlp) is None
    assert as_mlp(nn.Sequential(nn.Linear(8, 8), nn.Softplus(), nn.Linear(8, 8))) is None
    assert as_mlp(nn.Linear(8, 8)) is None


@torch.inference_mode()
def test_an_attention_of_three_linears_is_none() -> None:
    """It asks for its attention function, which runs in a step only."""
    register()
    config = BertConfig(hidden_size=64, num_attention_heads=4)
    config._attn_implementation = PAGED
    assert as_mlp(BertSelfAttention(config).eval()) is None


class Grouped(nn.Linear):
    """Takes its input in another shape."""

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = super().forward(x.view(-1, 4, self.in_features))
        return made


class Plain(nn.Linear):
    """Is called otherwise, and computes the same, as Falcon's."""

    def forward(self, x: Tensor) -> Tensor:
        made = x @ self.weight.T
        return made if self.bias is None else made + self.bias


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_inherits_from_a_linear_is_one_if_it_computes_the_same(dtype: torch.dtype) -> None:
    assert as_linear(Grouped(64, 32, dtype=dtype)) is None
    for bias in (True, False):
        found = as_linear(Plain(64, 32, bias=bias, dtype=dtype))
        assert found is not None and (found.bias is not None) == bias


@torch.inference_mode()
def test_what_is_replaced_is_not_replaced_again(linears: NativeLinears) -> None:
    model = a_model(KINDS["gated"](), linears.dtype)
    for _ in range(2):
        replace_mlps_(model, linears, None)
        replace_norms_(model, linears)
    assert [type(each).__name__ for each in model.modules()] == ["Model", "NativeMlp"]
