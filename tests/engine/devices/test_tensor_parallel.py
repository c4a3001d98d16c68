"""How many devices share a model, and that models of all kinds that they can share compute what they compute alone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen3NextConfig
from transformers.distributed import configuration_utils

from djl_python.core.errors import ModelLoadError
from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import ImagePrompt, Images, SamplingParams
from djl_python.engine.devices import tensor_parallel as sharing
from djl_python.engine.devices.tensor_parallel import degree_of, placement, settings_of
from djl_python.engine.settings import BuiltInSettings
from tests.checkpoints import build_checkpoint
from tests.engine.devices.shared_models import computed, errors, note_error, shareable
from tests.engines import open_batch, run_to_end


def has_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: count > 0)


def settings(path: Path, degree: int, **more: Any) -> BuiltInSettings:
    return BuiltInSettings(model_path=str(path), tensor_parallel_degree=degree, **more)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    LlamaConfig(hidden_size=96, num_attention_heads=12, num_key_value_heads=6).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("gpus", "asked", "expected"),
    [(0, 2, 2), (0, 0, 1), (1, 0, 1), (3, 0, 3), (4, 0, 3), (5, 0, 3), (8, 0, 6), (8, 2, 2), (8, 1, 1)],
)
def test_as_many_as_were_asked_for_or_as_there_are_and_can(
    llama: Path, gpus: int, asked: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_gpus(monkeypatch, gpus)
    assert degree_of(settings(llama, asked)) == expected


def test_a_model_that_nothing_divides_runs_on_one_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    LlamaConfig(hidden_size=96, num_attention_heads=12, num_key_value_heads=1).save_pretrained(tmp_path)
    has_gpus(monkeypatch, 2)
    assert degree_of(settings(tmp_path, 0)) == 1


def test_a_batch_of_as_many_as_there_are_opens(tmp_path: Path) -> None:
    batch = open_batch(build_checkpoint(tmp_path, "llama"), tensor_parallel_degree=0, device="cpu")
    batch.add(SequenceRequest([5, 6], SamplingParams(max_new_tokens=2, ignore_eos=True), id=1))
    assert len(run_to_end(batch)[1]) == 2


@pytest.mark.parametrize(
    ("gpus", "asked", "reason"),
    [
        (2, 3, "there are 2 GPUs from cuda on"),
        (8, 4, "it does not divide num_key_value_heads, which is 6"),
        (0, 5, "it does not divide num_attention_heads, which is 12"),
    ],
)
def test_too_many_devices_are_refused(
    llama: Path, gpus: int, asked: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_gpus(monkeypatch, gpus)
    with pytest.raises(ModelLoadError) as caught:
        degree_of(settings(llama, asked))
    assert caught.value.message == f"option.tensor_parallel_degree={asked}: {reason}"


def test_devices_are_counted_from_the_models_own_on(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_gpus(monkeypatch, 5)
    monkeypatch.setattr(sharing, "pick_device", torch.device)
    assert degree_of(settings(llama, 0, device="cuda:2")) == 3
    assert [settings_of(rank, settings(llama, 3, device="cuda:2")).device for rank in (0, 2)] == ["cuda:2", "cuda:4"]
    with pytest.raises(ModelLoadError, match="there are 2 GPUs from cuda:3 on"):
        degree_of(settings(llama, 3, device="cuda:3"))


@pytest.mark.parametrize(
    ("config", "more", "what"),
    [
        (GPT2Config, {}, "a model of type gpt2"),
        (Qwen3NextConfig, {}, "a model with layers of type linear_attention"),
        (LlamaConfig, {"image_example": ImagePrompt([], Images({}, (), 0))}, "a model that takes images"),
        (LlamaConfig, {"quantize": "int8"}, "a model with option.quantize=int8"),
        (LlamaConfig, {"kernels": "native"}, "a model with option.kernels=native"),
    ],
)
def test_models_for_one_device_are_refused_on_several(
    config: Callable[[], Any],
    more: dict[str, Any],
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config().save_pretrained(tmp_path)
    has_gpus(monkeypatch, 2)
    with pytest.raises(ModelLoadError) as caught:
        degree_of(settings(tmp_path, 2, **more))
    assert caught.value.message == f"option.tensor_parallel_degree=2: {what} runs on one device"
    with caplog.at_level(logging.WARNING):
        assert degree_of(settings(tmp_path, 0, **more)) == 1
    assert caplog.messages == [f"option.tensor_parallel_degree=max: {what} runs on one device"]


def test_processors_do_not_share_a_model_beside_gpus(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers would take the GPUs."""
    has_gpus(monkeypatch, 2)
    with pytest.raises(ModelLoadError, match=r"a model with option\.device=cpu beside GPUs"):
        degree_of(settings(llama, 2, device="cpu"))


def test_each_rank_has_a_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    has_gpus(monkeypatch, 0)
    assert [settings_of(rank, settings(tmp_path, 2)).device for rank in range(2)] == ["cpu", "cpu"]
    has_gpus(monkeypatch, 2)
    each = [settings_of(rank, settings(tmp_path, 2)) for rank in range(2)]
    assert [one.device for one in each] == ["cuda:0", "cuda:1"]
    assert {(one.tensor_parallel_degree, one.kernels) for one in each} == {(2, "torch")}


def test_an_old_transformers_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(configuration_utils, "DistributedConfig", lambda enable_expert_parallel=False: None)
    assert placement(settings(tmp_path, 1), torch.device("cuda:0")) == {"device_map": {"": torch.device("cuda:0")}}
    with pytest.raises(ModelLoadError, match=r"=2 needs transformers 5\.13 or newer"):
        placement(settings(tmp_path, 2), torch.device("cuda:0"))


def test_an_old_torch_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("torch.distributed.tensor.distribute_tensor", lambda of, mesh=None, placements=None: None)
    with pytest.raises(ModelLoadError, match=r"=2 needs torch 2\.7 or newer"):
        placement(settings(tmp_path, 2), torch.device("cuda:0"))


def compute(rank: int, folder: Path, checkpoints: list[Path]) -> None:
    """One of two processes: compare each model's logits with its own alone."""
    for path, _, logits in computed(rank, folder, checkpoints, tensor_parallel_degree=2):
        if rank == 0:
            note_error(folder, path, logits, AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32))


@pytest.mark.slow
@pytest.mark.skipif(torch.accelerator.is_available(), reason="processors don't share a model beside GPUs")
def test_models_of_all_kinds_compute_what_they_compute_alone(tmp_path: Path) -> None:
    checkpoints = shareable(tmp_path, lambda path: degree_of(settings(path, 2, device="cpu")))
    names = {path.name for path in checkpoints}
    assert {"llama", "gemma2", "gemma4", "gpt_neox", "qwen3_moe", "glm4_moe", "deepseek_v3"} <= names
    off = errors(tmp_path, compute, checkpoints)
    assert {name: error for name, error in off.items() if error > 1e-5} == {}
