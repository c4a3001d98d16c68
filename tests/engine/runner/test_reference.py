"""Runners are held against the model's own logits, or against what it says in fp32 where rounding is amplified."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from djl_python.core.errors import ModelLoadError
from djl_python.engine.checkpoints.loading import LoadedModel, load_model
from djl_python.engine.checkpoints.rounding import Quantize
from djl_python.engine.native.api import exact_logits
from djl_python.engine.runner.probe import Probe, distances, ids_of_probe
from djl_python.engine.runner.reference import Reference
from djl_python.engine.settings import BuiltInSettings
from tests.checkpoints import build_checkpoint

BLOCK = 16
BLOCKS = 8


@dataclass
class Answering:
    """A runner with these logits, (tokens, vocabulary), whatever it is asked."""

    logits: Tensor
    forgotten: int = 0
    _at: int = 0

    def run(self, chunks: Any) -> Tensor:
        (chunk,) = chunks
        self._at += chunk.length
        return self.logits[self._at - chunk.length : self._at]

    def forget(self, sequence: Any) -> None:
        self.forgotten += 1
        self._at = 0

    def operator_seconds(self) -> dict[str, float]:
        return {}


def loaded(path: Path, dtype: torch.dtype, architecture: str = "llama") -> LoadedModel:
    checkpoint = build_checkpoint(path, architecture, dtype)
    return load_model(BuiltInSettings(model_path=str(checkpoint)), lambda *_: None)


def probe(model: LoadedModel) -> Probe:
    return Probe.of(ids_of_probe(model, []), model.vocabulary)


def logits(model: LoadedModel) -> Tensor:
    with torch.inference_mode():
        row: Tensor = model.model(torch.tensor([probe(model).ids])).logits[0].float()
        return row


def accepts(reference: Reference, logits: Tensor, blocks: int = BLOCKS) -> bool:
    return reference.accepts(Answering(logits), blocks, BLOCK)


def noise_like(x: Tensor, size: float) -> Tensor:
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    return size * x.std() * noise


def test_the_models_own_logits_agree_and_the_sequence_is_forgotten(tmp_path: Path) -> None:
    model = loaded(tmp_path, torch.float32)
    runner, reference = Answering(logits(model)), Reference.of(model, None, probe(model), exact_logits)
    assert reference.accepts(runner, BLOCKS, BLOCK)
    assert runner.forgotten == 1
    assert not accepts(reference, logits(model) + noise_like(runner.logits, 0.05))
    assert accepts(reference, logits(model) + 3)  # of which a distribution knows nothing


def test_every_position_counts(tmp_path: Path) -> None:
    """As far as there are blocks for."""
    model = loaded(tmp_path, torch.float32)
    reference, changed = Reference.of(model, None, probe(model), exact_logits), logits(model).clone()
    changed[16:] = changed[16:].roll(1, 0)
    assert accepts(reference, changed, blocks=2)
    assert not accepts(reference, changed)


def test_distances_are_relative_to_those_between_positions() -> None:
    expected = torch.randn(64, 100, generator=torch.Generator().manual_seed(1))
    for size in (1.0, 0.01):  # a model that prefers some tokens, one that hardly does
        assert distances(size * expected, size * expected).max() < 1e-12
        assert distances(size * expected.roll(1, 0), size * expected).median() == pytest.approx(1)
    assert distances(expected.index_fill(0, torch.tensor([3]), torch.nan), expected)[3] == torch.inf


def test_a_model_whose_logits_are_no_numbers_is_refused(tmp_path: Path) -> None:
    model = loaded(tmp_path, torch.bfloat16)
    with torch.no_grad():
        model.model.get_output_embeddings().weight.fill_(float("nan"))
    with pytest.raises(ModelLoadError, match=r"its logits are not numbers \(NaN\) in bfloat16"):
        Reference.of(model, None, probe(model), exact_logits)


@pytest.mark.parametrize(("quantize", "size", "allowed"), [(None, 0.5, True), ("int8", 1.5, False)])
def test_logits_are_accepted_by_their_distance_from_fp32(
    quantize: Quantize | None, size: float, allowed: bool, tmp_path: Path
) -> None:
    model = loaded(tmp_path, torch.bfloat16)
    before = {name: tensor.clone() for name, tensor in model.model.state_dict().items()}
    reference = Reference.of(model, quantize, probe(model), exact_logits)
    exact = reference.exact()
    assert exact is not None and exact.shape[1] == model.vocabulary
    assert all(torch.equal(before[name], tensor) for name, tensor in model.model.state_dict().items())
    assert 0 < distances(logits(model), exact).median() < 0.01
    # As a model that amplifies what rounding costs.
    noise = noise_like(exact, size)
    reference = replace(reference, logits=exact + noise)
    assert accepts(reference, exact + noise.roll(1)) == allowed
    assert not accepts(reference, exact + 4 * noise.roll(1))


def test_logits_that_have_nothing_to_do_with_those_in_fp32_tell_nothing(tmp_path: Path) -> None:
    reference = Reference.of(model := loaded(tmp_path, torch.bfloat16), None, probe(model), exact_logits)
    exact = reference.exact()
    assert exact is not None
    reference = replace(reference, logits=exact + noise_like(exact, 4.0))
    assert not accepts(reference, exact.roll(1))


@pytest.mark.parametrize(("size", "allowed"), [(0.05, True), (0.3, False)])
def test_rounding_alone_is_not_that_far_from_fp32(size: float, allowed: bool, tmp_path: Path) -> None:
    model = loaded(tmp_path, torch.bfloat16)
    own = logits(model)
    assert accepts(Reference.of(model, None, probe(model), exact_logits), own + noise_like(own, size)) == allowed


@pytest.mark.parametrize(
    ("size", "quantize", "allowed", "told"),
    [(0.3, "int8", True, False), (1.1, "int8", False, False), (0.9, "int4", True, True), (2.0, "int4", False, False)],
)
def test_rounded_weights_may_be_further_off_and_are_warned_of(
    size: float, quantize: Quantize, allowed: bool, told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = loaded(tmp_path, torch.bfloat16)
    own = logits(model)
    assert accepts(Reference.of(model, quantize, probe(model), exact_logits), own + noise_like(own, size)) == allowed
    assert ("predict other tokens" in caplog.text) == told


def test_without_memory_nothing_is_computed_in_fp32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded(tmp_path, torch.bfloat16)
    monkeypatch.setattr("djl_python.engine.runner.reference.available_bytes", lambda: 1000)
    assert Reference.of(model, None, probe(model), exact_logits).exact() is None


def test_before_changes_the_model_is_asked_for_fp32_if_it_is_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(tmp_path, torch.bfloat16)
    reference = Reference.of(model, None, probe(model), exact_logits)
    small = reference.chosen(model)
    monkeypatch.setattr("djl_python.engine.runner.reference.EXACT_AT_ONCE", 1000)
    large = Reference.of(model, None, probe(model), exact_logits).chosen(model)
    for parameter in model.model.parameters():
        parameter.data = torch.zeros_like(parameter)
    exact = small.exact()
    assert exact is not None and bool(exact.any())
    assert large.exact() is None
