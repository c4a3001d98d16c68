"""Runners are held against the model's own logits, or against what it says in fp32 where rounding is amplified."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from djl_python.engine.agreement import Agreement, check_ids
from djl_python.engine.loading import LoadedModel, load_model
from djl_python.engine.quantization import Quantize
from djl_python.engine.rolling_batch import EngineSettings
from djl_python.errors import ModelLoadError
from tests.checkpoints import build_checkpoint


@dataclass
class Answering:
    """A runner with the same logits for everything."""

    logits: Tensor
    forgotten: int = 0

    def run(self, chunks: Any) -> Tensor:
        return self.logits[None]

    def forget(self, sequence: Any) -> None:
        self.forgotten += 1

    def operator_seconds(self) -> dict[str, float]:
        return {}


def loaded(path: Path, dtype: torch.dtype) -> LoadedModel:
    checkpoint = build_checkpoint(path, "llama", dtype)
    return load_model(EngineSettings(model_path=str(checkpoint)), lambda *_: None)


def logits(model: LoadedModel) -> Tensor:
    with torch.inference_mode():
        found: Tensor = model.model(torch.tensor([check_ids(model)])).logits[0, -1].float()
        return found


def test_the_models_own_logits_agree_and_the_sequence_is_forgotten(tmp_path: Path) -> None:
    model = loaded(tmp_path, torch.float32)
    runner = Answering(logits(model))
    assert Agreement(model, None).with_runner(runner)
    assert runner.forgotten == 1
    assert not Agreement(model, None).with_runner(Answering(logits(model) + 0.1))


def test_a_model_whose_logits_are_no_numbers_is_refused(tmp_path: Path) -> None:
    model = loaded(tmp_path, torch.bfloat16)
    with torch.no_grad():
        model.model.get_output_embeddings().weight.fill_(float("nan"))
    with pytest.raises(ModelLoadError, match=r"its logits are not numbers \(NaN\) in bfloat16"):
        Agreement(model, None)


@pytest.mark.parametrize(("quantize", "allowed"), [(None, True), ("int8", False)])
def test_what_is_as_near_to_fp32_as_the_model_agrees(
    quantize: Quantize | None, allowed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(tmp_path, torch.bfloat16)
    before = {name: tensor.clone() for name, tensor in model.model.state_dict().items()}
    agreement = Agreement(model, quantize)
    exact = agreement._exact
    assert exact is not None
    assert all(torch.equal(before[name], tensor) for name, tensor in model.model.state_dict().items())
    assert 0 < (exact - logits(model)).norm() < 0.1 * exact.norm()
    # As a model that amplifies what rounding costs.
    noise = torch.randn(exact.shape, generator=torch.Generator().manual_seed(1))
    noise *= 0.4 * exact.norm() / noise.norm()
    agreement._reference = exact + noise
    assert agreement.with_runner(Answering(exact + noise.roll(1))) == allowed
    assert not agreement.with_runner(Answering(exact + 2.2 * noise.roll(1)))
    agreement._reference = exact + 3 * noise
    assert not agreement.with_runner(Answering(exact.roll(1)))


@pytest.mark.parametrize(("off", "allowed"), [(0.05, True), (0.08, False)])
def test_rounding_alone_is_not_that_far_from_fp32(off: float, allowed: bool, tmp_path: Path) -> None:
    """An attention that is another may be as near in a short prompt."""
    model = loaded(tmp_path, torch.bfloat16)
    own = logits(model)
    signs = torch.tensor([1.0, -1.0]).repeat(len(own) // 2)
    runner = Answering(own + off * max(1.0, float(own.abs().max())) * signs)
    assert Agreement(model, None).with_runner(runner) == allowed


def test_without_memory_nothing_is_computed_in_fp32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded(tmp_path, torch.bfloat16)
    monkeypatch.setattr("djl_python.engine.agreement.available_bytes", lambda: 1000)
    assert Agreement(model, None)._exact is None


def test_before_changes_the_model_is_asked_for_fp32_if_it_is_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(tmp_path, torch.bfloat16)
    small, large = Agreement(model, None), Agreement(model, None)
    small.before_changes()
    monkeypatch.setattr("djl_python.engine.agreement._EXACT_AT_ONCE", 1000)
    large.before_changes()
    for parameter in model.model.parameters():
        parameter.data = torch.zeros_like(parameter)
    assert small._exact is not None and bool(small._exact.any())
    assert large._exact is None
