from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from djl_python.core.errors import ModelLoadError
from djl_python.engine.deepspeed.configuration import PartitionPlan, Reading, read_plan
from djl_python.engine.deepspeed.options import DeepSpeedOptions

ZERO: dict[str, Any] = {"stage": 3, "offload_param": {"device": "cpu"}}


def read(folder: Path, told: Any, degree: int = 1, *, on_cpu: bool = False, **options: Any) -> Reading:
    (folder / "ds.json").write_text(told if isinstance(told, str) else json.dumps(told))
    given = DeepSpeedOptions(deepspeed_config_path="ds.json", **options)
    return read_plan(given, folder, degree, on_cpu=on_cpu)


def test_without_a_file_and_options_there_is_nothing_to_do(tmp_path: Path) -> None:
    reading = read_plan(DeepSpeedOptions(), tmp_path, 1, on_cpu=True)
    assert reading == Reading(PartitionPlan(), [], [])
    assert reading.plan.is_empty


@pytest.mark.parametrize(
    ("told", "zero"),
    [
        ({"zero_optimization": ZERO}, {"zero_optimization": ZERO}),
        ({"zero": ZERO}, {"zero_optimization": ZERO}),
        ({"zero_optimization": {"stage": 3}, "aio": {"thread_count": 2}}, None),
        ({"zero_optimization": {"stage": 3, "stage3_max_live_parameters": "auto"}}, None),
        ({"zero_optimization": {"stage": 0}}, {}),
        ({}, {}),
    ],
)
def test_zero_is_of_stage_3(told: dict[str, Any], zero: dict[str, Any] | None, tmp_path: Path) -> None:
    reading = read(tmp_path, told)
    assert reading.plan.zero == (told if zero is None else zero)
    assert (reading.faults, reading.remarks) == ([], [])
    assert msgspec.convert(msgspec.to_builtins(reading.plan), PartitionPlan) == reading.plan  # as it goes to the engine


def test_a_folder_on_nvme_is_the_models(tmp_path: Path) -> None:
    reading = read(tmp_path, {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "x"}}})
    assert reading.plan.zero["zero_optimization"]["offload_param"]["nvme_path"] == str(tmp_path / "x")


def test_kernels_are_injected_by_option_or_file(tmp_path: Path) -> None:
    assert read(tmp_path, {}, replace_with_kernel_inject=True).plan.kernels == {}
    told = {"kernel_inject": True, "max_tokens": 2048, "tensor_parallel": {"tp_size": 2, "tp_grain_size": 64}}
    plan = read(tmp_path, told, degree=2).plan
    assert (plan.kernels, plan.tensor_parallel) == ({"max_out_tokens": 2048}, {"tp_grain_size": 64})
    assert read(tmp_path, {"replace_with_kernel_inject": False}).plan.kernels is None


@pytest.mark.parametrize(
    ("told", "fault"),
    [
        ({"zero_optimization": 3}, "zero_optimization: expected a JSON object"),
        ({"zero_optimization": {"stage": "three"}}, 'zero_optimization.stage: "three": expected 3'),
        (
            {"zero_optimization": {"stage": 3, "offload_param": {"device": "disk"}}},
            'zero_optimization.offload_param.device: "disk": expected cpu or nvme',
        ),
        (
            {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}},
            "zero_optimization.offload_param.nvme_path: expected a directory, for device nvme",
        ),
        (
            {"tensor_parallel": {"tp_size": 4}},
            "tensor_parallel.tp_size: 4: option.tensor_parallel_degree gives the model 2 device(s); expected the same",
        ),
        ({"tensor_parallel": {"tp_grain_size": 0}}, "tensor_parallel.tp_grain_size: 0: expected an integer >= 1"),
        ({"kernel_inject": "yes"}, 'replace_with_kernel_inject: "yes": expected true or false'),
        ({"kernel_inject": True, "max_tokens": "many"}, 'max_out_tokens: "many": expected an integer >= 1'),
        (
            {"zero_optimization": ZERO, "replace_with_kernel_inject": True},
            "replace_with_kernel_inject and zero_optimization: expected one of them",
        ),
    ],
)
def test_a_fault_has_its_path_and_what_was_expected(told: dict[str, Any], fault: str, tmp_path: Path) -> None:
    assert read(tmp_path, told, degree=2).faults == [fault]


def test_kernels_are_for_gpus(tmp_path: Path) -> None:
    (fault,) = read(tmp_path, {}, on_cpu=True, replace_with_kernel_inject=True).faults
    assert fault == "replace_with_kernel_inject: DeepSpeed's kernels are for GPUs, the model is on the CPU"


@pytest.mark.parametrize(
    ("told", "remark"),
    [
        ({"optimizer": {}}, "optimizer has no effect: it is about training"),
        ({"dtype": "fp16"}, "dtype has no effect: option.dtype says it"),
        ({"enable_cuda_graph": True}, "enable_cuda_graph has no effect: steps have no fixed shape"),
        ({"checkpoint": "ds.json"}, "checkpoint has no effect: weights are read from the Hugging Face checkpoint"),
        (
            {"zero_optimisation": {}},
            "zero_optimisation has no effect: DeepSpeed has no such key; did you mean zero_optimization?",
        ),
        (
            {"zero_optimization": {"stage": 2}},
            "zero_optimization has no effect: stage 2 partitions what training keeps; expected stage 3",
        ),
        (
            {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}},
            "zero_optimization.offload_optimizer has no effect: it is about training",
        ),
        (
            {"tensor_parallel": {"size": 2}},
            "tensor_parallel.size has no effect: expected enabled, tp_grain_size, tp_size",
        ),
        ({"aio": {}}, "aio has no effect: it is about zero_optimization of stage 3"),
        (
            {"zero_optimization": ZERO},
            "zero_optimization.offload_param.device has no effect: the model computes on the CPU, whose memory has its "
            "weights",
        ),
    ],
)
def test_a_setting_without_effect_is_named_with_the_reason(told: dict[str, Any], remark: str, tmp_path: Path) -> None:
    reading = read(tmp_path, told, on_cpu=True)
    assert (reading.remarks, reading.faults) == ([remark], [])


@pytest.mark.parametrize(("told", "said"), [("{", "is not valid JSON"), ("[]", "expected a JSON object")])
def test_a_file_that_is_none(told: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=said):
        read(tmp_path, told)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"/ds\.json: there is no such file"):
        read_plan(DeepSpeedOptions(deepspeed_config_path="ds.json"), tmp_path, 1, on_cpu=True)
