"""Runners are held against the model's own logits, or against what it says in fp32 where rounding is amplified."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from djl_python.engine.agreement import CHECK_TOKENS, Agreement, check_ids
from djl_python.engine.loading import LoadedModel, load_model
from djl_python.engine.quantization import Quantize
from djl_python.engine.rolling_batch import EngineSettings
from djl_python.engine.routes import Routes, routing
from djl_python.errors import ModelLoadError
from tests.checkpoints import CACHE, build_checkpoint


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


def loaded(path: Path, dtype: torch.dtype, architecture: str = "llama") -> LoadedModel:
    checkpoint = build_checkpoint(path, architecture, dtype)
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


@dataclass
class Routed(Answering):
    """A runner that gets the right logits with the right experts only; its own are `others` than the model's."""

    right: Tensor = field(default_factory=lambda: torch.empty(0))
    others: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    _given: bool = False

    def run(self, chunks: Any) -> Tensor:
        return (self.right if self._given else self.logits)[None]

    @contextmanager
    def routing(self, choose: Any) -> Iterator[None]:
        with torch.inference_mode():
            for layer, (experts, weights) in self.others.items():
                choose(layer, torch.arange(CHECK_TOKENS), experts.clone(), weights.clone())
        self._given = True
        yield
        self._given = False


def one_token(experts: Tensor, weights: Tensor) -> None:
    experts[5] = (experts[5] + 1) % 32


def half_a_token(experts: Tensor, weights: Tensor) -> None:
    free = (each for each in range(32) if each not in experts[5])
    experts[5, -1] = next(free)


def every_token(experts: Tensor, weights: Tensor) -> None:
    experts += 1
    experts %= 32


def weights_of_others(experts: Tensor, weights: Tensor) -> None:
    weights *= 1.15


def none_at_all(experts: Tensor, weights: Tensor) -> None:
    return


@pytest.mark.parametrize(
    ("other", "quantize", "agrees"),
    [
        (none_at_all, None, True),
        (one_token, None, True),
        (half_a_token, "int8", True),
        (half_a_token, "int4", False),  # what 4 bits leave of a model has logits that are near at least
        (every_token, None, False),
        (every_token, "int8", False),
        (weights_of_others, None, False),
        (weights_of_others, "int8", False),
    ],
)
def test_experts_that_rounding_chooses_are_no_disagreement(
    other: Any, quantize: Quantize | None, agrees: bool, tmp_path: Path
) -> None:
    model = loaded(tmp_path, torch.bfloat16, "qwen3_moe")
    right = logits(model)
    routes = Routes()
    with routing(model.model, routes.note):
        logits(model)
    assert routes._chosen.keys() == {0, 1}
    with torch.inference_mode():
        other(*routes._chosen[1])
    runner = Routed(right.roll(1), right=right, others=routes._chosen)
    agreement = Agreement(model, quantize)
    assert agreement.with_runner(runner, runner.routing) == agrees
    assert not agreement.with_runner(runner)
    runner.right = right.roll(2)
    assert not agreement.with_runner(runner, runner.routing)
    runner.right, runner.others = right, {0: routes._chosen[0]}  # a layer that it does not choose experts for
    assert not agreement.with_runner(runner, runner.routing)


def test_a_model_reads_in_pieces_with_the_experts_that_it_is_given(tmp_path: Path) -> None:
    model = loaded(tmp_path, torch.float32, "qwen3_moe").model
    ids = torch.arange(3, 15)[None]
    routes = Routes()
    with torch.inference_mode():
        with routing(model, routes.note):
            expected = model(ids).logits
        gate = model.model.layers[2].mlp.gate
        gate.weight.data = gate.weight.roll(1, 0)
        assert not torch.allclose(model(ids).logits, expected, atol=1e-2)
        with routing(model, routes.give):
            first = model(ids[:, :7], use_cache=True)
            rest = model(ids[:, 7:], **{CACHE: first[CACHE]})
    assert torch.allclose(torch.cat([first.logits, rest.logits], 1), expected, atol=1e-4)
    assert sum(routes.off[0]) < 1e-4
    assert min(routes.off[1]) > 0.1
    assert [len(each) for each in routes.off.values()] == [12, 12]
