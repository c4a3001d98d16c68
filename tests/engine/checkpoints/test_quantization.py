"""Rounded weights: how far they are from what was rounded, and that both ways to run them compute the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from djl_python.core.errors import ModelLoadError
from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import SamplingParams
from djl_python.engine.checkpoints.linears import as_linear
from djl_python.engine.checkpoints.quantization import BLOCK, GROUP, quantized
from djl_python.engine.checkpoints.rounding import Quantize, Role, Rounding, rounding_of
from djl_python.engine.native.library import library
from djl_python.engine.torch_backend.linears import QuantizedLinear, on_torch, replace_linears_
from tests.checkpoints import build_checkpoint
from tests.engines import open_batch, run_to_end
from tests.kernels import kernels_or_skip


def a_weight(n: int = 96, k: int = 3 * GROUP) -> Tensor:
    return torch.randn(n, k, generator=torch.Generator().manual_seed(1)) * torch.logspace(-2, 1, n)[:, None]


def test_eight_bits_are_off_by_half_a_step_at_most() -> None:
    weight = a_weight()
    steps = weight.abs().amax(1, keepdim=True) / 127
    error = (quantized(weight, "int8").values(weight.shape[1]) - weight).abs()
    assert bool((error <= 0.5001 * steps).all())
    assert bool((error.amax(1, keepdim=True) > 0.4 * steps).all())


@pytest.mark.parametrize(("rounding", "bits"), [("int4", 4), ("int5", 5), ("int6", 6)])
def test_fewer_bits_are_within_the_blocks_step_and_small_in_the_mean(rounding: Rounding, bits: int) -> None:
    weight = a_weight()
    made = quantized(weight, rounding).values(weight.shape[1])
    relative = ((made - weight).norm(dim=1) / weight.norm(dim=1)).mean()
    assert 0.06 < float(relative) * 2 ** (bits - 4) < 0.08
    blocks, off = weight.view(96, -1, BLOCK), (made - weight).view(96, -1, BLOCK).abs().amax(2)
    steps = (blocks.amax(2) - blocks.amin(2)) / (2**bits - 1)
    assert bool((off <= 1.7 * steps).all())


def test_more_bits_where_rounding_costs_more() -> None:
    roles: list[Role] = ["up", "out", "other", "head"]
    assert [rounding_of(role, "int4", 4096) for role in roles] == ["int4", "int5", "int6", "int8"]
    assert [rounding_of(role, "int4", 576) for role in roles] == ["int5", "int5", "int6", "int8"]
    assert {rounding_of(role, "int8", 4096) for role in roles} == {"int8"}
    assert {rounding_of(role, None, 4096) for role in roles} == {None}


def test_numbers_that_are_none_stay_so() -> None:
    weight = a_weight()
    weight[5, 7] = float("nan")
    rows = quantized(weight, "int4").values(weight.shape[1]).isnan().any(1)
    assert rows.nonzero().tolist() == [[5]]


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_zeros_and_partial_groups_are_rounded(quantize: Quantize) -> None:
    weight = a_weight(4, GROUP + 10)
    weight[1] = 0
    codes = quantized(weight, quantize)
    assert codes.codes.shape == (4, 2 * GROUP)
    values = codes.values(GROUP + 10)
    assert values.shape == weight.shape
    assert values[1].abs().max() == 0
    assert torch.isfinite(values).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("quantize", ["int8", "int4"])
@pytest.mark.parametrize("rows", [5, 40])
def test_torchs_kernels_compute_what_the_codes_stand_for(quantize: Quantize, dtype: torch.dtype, rows: int) -> None:
    weight, bias = a_weight(), torch.randn(96)
    codes = quantized(weight, quantize)
    x = torch.randn(2, rows, weight.shape[1], generator=torch.Generator().manual_seed(2))
    expected = x @ codes.values(weight.shape[1]).T + bias
    made = QuantizedLinear(codes, weight.shape[1], bias.to(dtype))(x.to(dtype))
    assert made.dtype == dtype
    assert torch.allclose(made.float(), expected, atol=2e-2 * float(expected.abs().max()))


@torch.inference_mode()
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("k", [33, 34, 36, 90, 100])
def test_eight_bits_on_torch_take_any_width(k: int, dtype: torch.dtype, rows: int) -> None:
    """torch's own kernel reads beyond the rows where a width is no multiple of 8."""
    weight, x = a_weight(k=k), torch.randn(rows, k, generator=torch.Generator().manual_seed(2)).to(dtype)
    codes = quantized(weight, "int8")
    expected = x.float() @ codes.values(k).T
    made = QuantizedLinear(codes, k, None)(x)
    assert torch.allclose(made.float(), expected, atol=2e-2 * float(expected.abs().max()))


@torch.inference_mode()
def test_a_head_keeps_eight_bits() -> None:
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.layer, self.head = nn.Embedding(16, GROUP), nn.Linear(GROUP, 16), nn.Linear(GROUP, 16)

        def get_output_embeddings(self) -> nn.Module:
            return self.head

        def get_input_embeddings(self) -> nn.Module:
            return self.embedding

    model: Any = Small()
    x = torch.randn(3, GROUP)
    layer, head = model.layer(x), model.head(x)
    replace_linears_(model, "int4", on_torch)
    assert 0.02 < float((model.layer(x) - layer).norm() / layer.norm()) < 0.2
    assert float((model.head(x) - head).norm() / head.norm()) < 0.02


@torch.inference_mode()
def test_a_head_that_is_the_embedding_is_rounded_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(16, GROUP), nn.Linear(GROUP, 16, bias=False)
            self.head.weight = self.embedding.weight

        def get_output_embeddings(self) -> nn.Module:
            return self.head

        def get_input_embeddings(self) -> nn.Module:
            return self.embedding

    model: Any = Tied().bfloat16()
    codes = quantized(model.head.weight, "int8")
    replace_linears_(model, "int8", on_torch)
    assert torch.equal(model.head.weight, (codes.codes.int() - codes.zero).to(torch.int8))
    assert torch.equal(model.embedding.weight, codes.values(GROUP).bfloat16())


@torch.inference_mode()
def round_linears(model: Any, rounding: Callable[[str], Rounding]) -> None:
    """Replace the weights by what their codes stand for.

    Args:
        rounding: of the weight of a module, or of experts, of this name.
    """
    for path, module in model.named_modules():
        for name in ("gate_up_proj", "down_proj"):  # of experts
            if isinstance(weight := getattr(module, name, None), torch.nn.Parameter):
                rows = weight.flatten(0, 1)
                weight.copy_(quantized(rows, rounding(name)).values(rows.shape[1]).view_as(weight))
        if (linear := as_linear(module)) is not None:
            head = module is model.get_output_embeddings()
            assert isinstance(linear.weight, torch.Tensor)
            codes = quantized(linear.weight, "int8" if head else rounding(path.rpartition(".")[2]))
            linear.weight.copy_(codes.values(linear.weight.shape[1]))


def by_role(name: str, quantize: Quantize) -> Rounding:
    """What the native program rounds the weight of this name to, in a narrow model."""
    up, out = ("up_proj", "gate_proj", "gate_up_proj", "c_fc", "dense_h_to_4h"), ("c_proj", "o_proj", "down_proj")
    role: Role = "up" if name in up else "out" if name in (*out, "dense", "dense_4h_to_h") else "other"
    made = rounding_of(role, quantize, 64)
    assert made is not None
    return made


def generated(path: Path, **settings: str) -> tuple[list[int], str]:
    batch = open_batch(path, **settings)
    batch.add(SequenceRequest(list(range(3, 60)), SamplingParams(max_new_tokens=12, ignore_eos=True), id=0))
    events = run_to_end(batch)[0]
    return [event.token_id for event in events], batch.description


@pytest.mark.parametrize("quantize", ["int8", "int4"])
@pytest.mark.parametrize("architecture", ["llama", "gpt2", "qwen3_moe", "bloom"])
def test_the_engine_runs_rounded_models(
    tmp_path: Path, architecture: str, quantize: Quantize, caplog: pytest.LogCaptureFixture
) -> None:
    """What is multiplied is rounded too, to bf16 by torch's kernels: among tokens as good as equal that may decide."""
    from transformers import AutoModelForCausalLM

    def good_tokens(rounding: Callable[[str], Rounding]) -> set[int]:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        round_linears(model, rounding)
        logits = model(torch.arange(3, 60)[None]).logits[0, -1]
        return set((logits > logits.max() - 0.1 * logits.std()).nonzero().flatten().tolist())

    path = build_checkpoint(tmp_path, architecture)
    on_torch, how = generated(path, quantize=quantize, kernels="torch")
    assert "native" not in how
    assert ("transformers' own cache" in how) == (architecture == "bloom")
    if architecture == "qwen3_moe":
        assert f"not all weights are {quantize}: " in caplog.text and "Qwen3MoeExperts.gate_up_proj" in caplog.text
    else:
        assert on_torch[0] in good_tokens(lambda name: quantize)
    kernels_or_skip(library)
    native, how = generated(path, quantize=quantize, kernels="native")
    assert f"with {quantize} weights on cpu (native kernels, " in how
    assert native[0] in good_tokens(lambda name: by_role(name, quantize))


def test_a_quantized_checkpoint_is_not_rounded_and_a_plain_one_is_what_it_is(tmp_path: Path) -> None:
    path = build_checkpoint(tmp_path, "llama")
    assert open_batch(path, quantize="gptq").info.quantize == "none"
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=r"option.quantize=int8: the checkpoint is quantized already, with gptq"):
        open_batch(path, quantize="int8")
