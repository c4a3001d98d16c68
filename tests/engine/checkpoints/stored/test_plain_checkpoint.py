"""Experts that stay where their checkpoint has them: the model computes what transformers' own does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import SamplingParams
from djl_python.engine.checkpoints.expert_stacks import stacks_of, unpack_experts_
from djl_python.engine.checkpoints.loading import load_model
from djl_python.engine.checkpoints.stored.plain_checkpoint import PlainCheckpoint
from djl_python.engine.native.opening.exact import ExactModel
from djl_python.engine.runner.probe import Probe, ids_of_probe
from djl_python.engine.settings import BuiltInSettings
from tests.checkpoints import build_checkpoint
from tests.engines import open_batch, run_to_end

IDS = torch.tensor([list(range(3, 40))])


@torch.inference_mode()
def logits_of(model: torch.nn.Module) -> Tensor:
    logits: Tensor = model(IDS).logits[0].float()
    return logits


def load(path: Path, **settings: Any) -> Any:
    return load_model(BuiltInSettings(model_path=str(path), **settings), lambda *_: None).model


@pytest.mark.parametrize("architecture", ["qwen3_moe", "qwen2_moe", "glm4_moe"])
def test_stacks_compute_what_tensors_do(tmp_path: Path, architecture: str) -> None:
    path = build_checkpoint(tmp_path / "model", architecture)
    stacked, own = load(path), load(path, kernels="torch")
    assert any(map(stacks_of, stacked.modules()))
    assert not any(map(stacks_of, own.modules()))
    assert not stacked.is_quantized
    assert not any(getattr(module.config, "_is_quantized", False) for module in (stacked, stacked.model))
    expected = logits_of(own)
    assert torch.allclose(logits_of(stacked), expected, atol=1e-4)
    unpack_experts_(stacked, torch.device("cpu"))
    assert not any(map(stacks_of, stacked.modules()))
    assert {name for name, _ in stacked.named_parameters()} == {name for name, _ in own.named_parameters()}
    assert torch.allclose(logits_of(stacked), expected, atol=1e-4)


def test_exact_logits_compute_the_experts_in_fp32(tmp_path: Path) -> None:
    path = build_checkpoint(tmp_path / "model", "qwen3_moe")
    loaded = load_model(BuiltInSettings(model_path=str(path), dtype="bf16"), lambda *_: None)
    before = logits_of(loaded.model)
    probe = Probe.of(ids_of_probe(loaded, []), loaded.vocabulary)
    exact = ExactModel(loaded, probe).logits()
    assert exact.dtype == torch.float32
    assert torch.equal(logits_of(loaded.model), before), "and it is as it was"


def test_a_model_that_wants_tensors_gets_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

    forward = Qwen3MoeExperts.forward

    def with_all_at_once(self: Any, *given: Any) -> Any:
        self.down_proj.transpose(1, 2)  # as whoever multiplies with all of them does
        return forward(self, *given)

    monkeypatch.setattr(Qwen3MoeExperts, "forward", with_all_at_once)
    path = build_checkpoint(tmp_path / "model", "qwen3_moe")
    batch = open_batch(path)
    batch.add(SequenceRequest(IDS[0].tolist(), SamplingParams(max_new_tokens=4, ignore_eos=True), id=0))
    assert len(run_to_end(batch)[0]) == 4


def test_rows_are_those_of_the_tensors(tmp_path: Path) -> None:
    path = build_checkpoint(tmp_path / "model", "qwen3_moe")
    names = [f"model.layers.0.mlp.experts.5.{part}_proj" for part in ("gate", "up")]
    tensors = load_file(path / "model.safetensors")
    gate, up = (tensors[f"{name}.weight"] for name in names)
    weight = PlainCheckpoint(path).weight(names, (2 * len(gate), gate.shape[1]), torch.float32)
    both = torch.cat([gate, up])
    for rows in (slice(None), slice(0, len(gate)), slice(len(gate), None), slice(1, None, 2), slice(3, 50)):
        assert torch.equal(weight[rows].dense(), both[rows])
        assert weight[rows].shape == both[rows].shape
    assert len(weight[: len(gate)].checkpoint_tensors) == 1, "the other is not read"


def test_a_model_without_experts_is_loaded_as_ever(tmp_path: Path) -> None:
    path = build_checkpoint(tmp_path / "model", "llama")
    assert PlainCheckpoint(path).linears == []
