"""Which way DeepSpeed places a model, by what it makes of the model: a fake of the few calls, over a real small model.

The real one is in tests/real/test_deepspeed.py.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from djl_python.engine.deepspeed.configuration import PartitionPlan
from djl_python.engine.devices.placement import Placed
from djl_python.engine.settings import BuiltInSettings
from tests.checkpoints import build_checkpoint
from tests.engine.deepspeed.conftest import Change, FakeDeepSpeed, FakeZeroConfig

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint(tmp_path_factory.mktemp("llama"), "llama")


def place(
    checkpoint: Path, plan: PartitionPlan, degree: int = 1, **settings: Any
) -> tuple[Placed, list[Mapping[str, Any]]]:
    """The model as it is placed, and what transformers was told each time that it was loaded."""
    read: list[Mapping[str, Any]] = []

    def load(where: Mapping[str, Any]) -> Any:
        read.append(where)
        return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()

    given = BuiltInSettings(
        model_path=str(checkpoint),
        tensor_parallel_degree=degree,
        placement_options=msgspec.to_builtins(plan),
        **settings,
    )
    placing = importlib.import_module("djl_python.engine.deepspeed.placing")
    placed: Placed = placing.DeepSpeedPlacement(given, CPU).place(load, torch.float32)
    return placed, read


@pytest.fixture
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the other rank of two would: it has the same to say."""
    monkeypatch.setattr(dist, "all_gather_object", lambda reasons, said: reasons.__setitem__(slice(None), [said, said]))


def damage(model: Any, config: Mapping[str, Any]) -> None:
    """Divide a model as if one of its products were added up nowhere."""
    with torch.no_grad():
        model.model.layers[0].self_attn.o_proj.weight.mul_(0.5)


def refuse(model: Any, config: Mapping[str, Any]) -> None:
    raise AssertionError("no policy for it\nand more")


@pytest.mark.usefixtures("two_ranks")
def test_a_model_that_is_divided_rightly_stays(fake: FakeDeepSpeed, checkpoint: Path) -> None:
    placed, read = place(checkpoint, PartitionPlan(tensor_parallel={"tp_grain_size": 64}), degree=2)
    assert (placed.offloaded, placed.keeps_one_text, read) == ("", False, [{}])
    assert fake.inference == [
        {"dtype": torch.float32, "tensor_parallel": {"tp_size": 2, "tp_grain_size": 64}},
    ]
    assert not fake.initialized


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize(
    ("change", "said"),
    [(damage, "its logits would differ by"), (refuse, "AssertionError: no policy for it; ")],
)
def test_a_model_without_tensor_parallelism_is_partitioned_with_a_reason(
    change: Change, said: str, fake: FakeDeepSpeed, checkpoint: Path
) -> None:
    fake.change = change
    placed, read = place(checkpoint, PartitionPlan(), degree=2)
    assert f"DeepSpeed's tensor parallelism can't be used for LlamaForCausalLM: {said}" in placed.offloaded
    assert "MiB of weights are in equal parts on 2 devices: every step gathers them" in placed.offloaded
    (told,) = fake.initialized
    assert told["zero_optimization"] == {"stage": 3}
    assert read == [{}, {}]  # what was changed is not used
    assert FakeZeroConfig.alive == 0  # a draft model is loaded as a whole


def test_kernels_that_compute_something_else_are_not_used(fake: FakeDeepSpeed, checkpoint: Path) -> None:
    fake.change = damage
    placed, read = place(checkpoint, PartitionPlan(kernels={"min_out_tokens": 8}), max_model_len=64)
    assert placed.offloaded.startswith("DeepSpeed's kernels can't be used for LlamaForCausalLM: its logits would")
    assert (placed.keeps_one_text, read) == (False, [{}, {"device_map": None}])
    (told,) = fake.inference
    assert {name: told[name] for name in ("replace_with_kernel_inject", "max_out_tokens", "min_out_tokens")} == {
        "replace_with_kernel_inject": True,
        "max_out_tokens": 64,
        "min_out_tokens": 8,
    }
    assert told["return_tuple"] is False


def test_kernels_keep_the_text_that_they_have_read(fake: FakeDeepSpeed, checkpoint: Path) -> None:
    """The fake's are transformers' layers, over a cache that the model keeps."""

    def keep(model: Any, config: Mapping[str, Any]) -> None:
        from tests.engine.torch_backend.test_one_text_runner import KeepsOneText

        inner = KeepsOneText(AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval())
        model.forward = inner.forward

    fake.change = keep
    placed, _ = place(checkpoint, PartitionPlan(kernels={}))
    assert (placed.offloaded, placed.keeps_one_text) == ("", True)


@pytest.mark.parametrize(
    ("offload", "said"),
    [
        ({"device": "cpu"}, ""),  # where the model computes
        ({"device": "nvme", "nvme_path": "nvme"}, "MiB of weights are on NVMe: every step reads them again"),
    ],
)
def test_zero_has_weights_elsewhere(
    offload: dict[str, Any], said: str, fake: FakeDeepSpeed, checkpoint: Path, tmp_path: Path
) -> None:
    if "nvme_path" in offload:
        offload = offload | {"nvme_path": str(tmp_path / "nvme")}
    placed, _ = place(checkpoint, PartitionPlan(zero={"zero_optimization": {"stage": 3, "offload_param": offload}}))
    assert placed.offloaded.endswith(said) and bool(placed.offloaded) == bool(said)
    (told,) = fake.initialized
    assert (told["fp16"], told["bf16"]) == ({"enabled": False}, {"enabled": False})
    section = told["zero_optimization"]["offload_param"]
    assert section["device"] == offload["device"]
    if offload["device"] == "nvme":
        own = Path(section["nvme_path"])
        assert own.parent == tmp_path / "nvme" and own.is_dir()
        model = AutoModelForCausalLM.from_pretrained(checkpoint)
        assert section["buffer_size"] == max(weight.numel() for weight in model.parameters())
        del placed
        importlib.import_module("gc").collect()
        assert not own.exists()
